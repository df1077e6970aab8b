//! Gather and scatter: copies between blocks of a cache and contiguous staging memory.

use std::ops::Range;

use super::SubCache;
use crate::device::{DeviceError, Stream};
use crate::ffi;

/// What a [`BlockCopier`] has enqueued so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// One-dimensional copies.
    pub copies: u64,
    /// Two-dimensional copies.
    pub copies_2d: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Direction of a copy, seen from the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Out of the cache.
    Gather,
    /// Into the cache.
    Scatter,
}

/// Part of some blocks of one sub-cache.
#[derive(Clone, Debug)]
pub struct BlockPart<'a> {
    /// The sub-cache.
    pub cache: &'a SubCache,
    /// The blocks, in the order they have in staging memory.
    pub ids: &'a [u32],
    /// Which bytes of each block.
    pub range: Range<u64>,
}

impl BlockPart<'_> {
    /// Bytes in staging memory.
    pub fn bytes(&self) -> u64 {
        let part = self.range.end.saturating_sub(self.range.start);
        part.saturating_mul(self.ids.len() as u64)
    }
}

/// Enqueues copies of blocks and remembers what the loaded CANN can do.
#[derive(Debug, Default)]
pub struct BlockCopier {
    state: ffi::SeqshiftCopyState,
}

impl BlockCopier {
    /// Enqueues the copies between blocks and staging memory. Runs of adjacent blocks become one
    /// copy each, evenly spaced ones a two-dimensional copy where CANN has it.
    ///
    /// # Errors
    /// [`DeviceError::Call`] with `CANN_INVALID_PARAM`, and nothing enqueued, if an id or the range
    /// is not in the sub-cache or staging memory is too small; other codes if CANN refuses a copy,
    /// when earlier ones may be under way.
    ///
    /// # Safety
    /// The sub-cache describes device memory of the stream's device, `staging` is `capacity` bytes
    /// of it, and both stay valid and untouched by others until the stream has passed the copies.
    pub unsafe fn copy(
        &mut self,
        direction: Direction,
        part: &BlockPart<'_>,
        staging: *mut u8,
        capacity: usize,
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        let runtime = stream.runtime();
        runtime.bind()?;
        let direction = match direction {
            Direction::Gather => ffi::SEQSHIFT_GATHER,
            Direction::Scatter => ffi::SEQSHIFT_SCATTER,
        };
        // SAFETY: the table is complete, all references live, the caller vouches for the memory.
        let code = unsafe {
            ffi::seqshiftCopyBlocks(
                runtime.symbols().table(),
                &part.cache.raw(),
                part.range.start,
                part.range.end.saturating_sub(part.range.start),
                part.ids.as_ptr(),
                part.ids.len(),
                staging.cast(),
                capacity,
                direction,
                stream.raw(),
                &mut self.state,
            )
        };
        crate::device::check(runtime.symbols(), "a copy of blocks", code)
    }

    /// What has been enqueued so far.
    pub fn counts(&self) -> CopyCounts {
        CopyCounts {
            copies: self.state.copies,
            copies_2d: self.state.copies2d,
            bytes: self.state.bytes,
        }
    }
}
