//! One copy per run of adjacent blocks; with `strided`, one two-dimensional copy per run of evenly
//! spaced ones (`cann_shim/src/copy.c`).

use super::{Mover, Transport};
use crate::device::{DeviceError, check};
use crate::ffi;
use crate::kv::blocks::{CopyCounts, Direction};

/// Copies by the runtime's copy engines.
#[derive(Debug)]
pub(in crate::kv) struct Copies {
    state: ffi::SeqshiftCopyState,
}

impl Copies {
    pub(in crate::kv) fn new(strided: bool) -> Self {
        let state = ffi::SeqshiftCopyState {
            refused2d: u64::from(!strided),
            ..Default::default()
        };
        Self { state }
    }
}

impl Mover for Copies {
    unsafe fn enqueue(&mut self, one: &Transport<'_>) -> Result<(), DeviceError> {
        let runtime = one.stream.runtime();
        let part = one.part;
        let direction = match one.direction {
            Direction::Gather => ffi::SEQSHIFT_GATHER,
            Direction::Scatter => ffi::SEQSHIFT_SCATTER,
        };
        let possible = self.is_possible();
        // SAFETY: the table is complete, all references live, the caller vouches for the memory.
        let code = unsafe {
            ffi::seqshiftCopyBlocks(
                runtime.symbols().table(),
                &part.cache.raw(),
                part.range.start,
                part.range.end - part.range.start,
                part.ids.as_ptr(),
                part.ids.len(),
                one.staging.cast(),
                part.bytes() as usize,
                direction,
                one.stream.raw(),
                &mut self.state,
            )
        };
        if possible && !self.is_possible() {
            tracing::warn!("two-dimensional copies are refused: blocks are copied run by run");
        }
        check(runtime.symbols(), "a copy of blocks", code)
    }

    fn is_possible(&self) -> bool {
        self.state.refused2d == 0
    }

    fn counts(&self) -> CopyCounts {
        CopyCounts {
            copies: self.state.copies,
            copies_2d: self.state.copies2d,
            kernels: 0,
            bytes: self.state.bytes,
        }
    }
}
