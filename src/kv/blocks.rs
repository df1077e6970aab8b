//! Gather and scatter: copies between blocks of a cache and contiguous staging memory.

use std::ops::Range;

use super::SubCache;
use super::cost::{self, Choice, Means, Reason, Strategy};
use super::runs;
use super::strategy::{Copies, Kernels, Mover, Transport};
use crate::device::{DeviceError, Stream};
use crate::ffi;

/// What a [`BlockCopier`] has enqueued so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// One-dimensional copies.
    pub copies: u64,
    /// Two-dimensional copies.
    pub copies_2d: u64,
    /// Kernels.
    pub kernels: u64,
    /// Bytes.
    pub bytes: u64,
}

impl CopyCounts {
    /// What has been enqueued since.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            copies: self.copies - earlier.copies,
            copies_2d: self.copies_2d - earlier.copies_2d,
            kernels: self.kernels - earlier.kernels,
            bytes: self.bytes - earlier.bytes,
        }
    }
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

/// Moves blocks by the strategy that costs least ([`cost`]), and remembers what the loaded CANN
/// refuses.
#[derive(Debug)]
pub struct BlockCopier {
    forced: Option<Strategy>,
    copies: Copies,
    strided: Copies,
    kernels: Kernels,
}

impl Default for BlockCopier {
    fn default() -> Self {
        Self::new(None)
    }
}

impl BlockCopier {
    /// With a strategy for all blocks where CANN has it, or the choice of the cost model.
    pub fn new(forced: Option<Strategy>) -> Self {
        Self {
            forced,
            copies: Copies::new(false),
            strided: Copies::new(true),
            kernels: Kernels::default(),
        }
    }

    /// Another strategy for all blocks from now on, or the choice of the cost model.
    pub fn set_strategy(&mut self, forced: Option<Strategy>) {
        self.forced = forced;
    }

    /// Which strategy the part will be moved by, to or from this place in staging memory.
    pub fn choice(&self, part: &BlockPart<'_>, staging: *const u8, stream: &Stream) -> Choice {
        let known = self.kernels.is_possible() && stream.runtime().symbols().kernels().is_some();
        let aligned = |address: u64| address.is_multiple_of(cost::KERNEL_ALIGNMENT);
        // A test that forces kernels has the mock, which takes any address.
        let suited = self.forced.is_some()
            || aligned(part.cache.base) && aligned(staging.expose_provenance() as u64);
        let means = Means {
            strided: self.strided.is_possible(),
            kernels: known && suited,
            direct: false,
        };
        let job = runs::job(part);
        let forced = match self.forced {
            Some(Strategy::Copies) => Some(Strategy::Copies),
            Some(Strategy::Strided) if means.strided => Some(Strategy::Strided),
            Some(Strategy::Kernels) if means.kernels => Some(Strategy::Kernels),
            _ => None,
        };
        match forced {
            Some(strategy) => Choice {
                strategy,
                reason: Reason::Forced,
                nanos: cost::nanos(strategy, &job, means).unwrap_or_default(),
            },
            None => cost::choose(&job, means),
        }
    }

    /// Whether the part may be sent from where it lies, or received there: one long run of memory.
    /// Unless a test wants it, not on the mock, where the cache is the host's memory: messages from
    /// there take a copy more than those from staging memory.
    pub(super) fn leaves_in_place(&self, part: &BlockPart<'_>, stream: &Stream) -> bool {
        let wanted = match self.forced {
            None => !stream.runtime().shares_host_memory(),
            Some(forced) => forced == Strategy::Direct,
        };
        wanted && part.bytes() >= cost::DIRECT_BYTES && runs::is_one_run(part)
    }

    /// Enqueues the work that moves the blocks between the cache and staging memory. What CANN
    /// does not take is done by single copies, then and from then on.
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
        check(part, capacity)?;
        if part.ids.is_empty() {
            return Ok(());
        }
        stream.runtime().bind()?;
        let one = Transport {
            direction,
            part,
            staging,
            stream,
        };
        match self.choice(part, staging, stream).strategy {
            Strategy::Kernels => {
                // SAFETY: as the caller promises; the parts were checked.
                let Err(error) = (unsafe { self.kernels.enqueue(&one) }) else {
                    return Ok(());
                };
                if !error.is_timeout() {
                    self.kernels.refuse(&error);
                }
                // Copies of the same bytes do no harm if the kernel runs after all.
                // SAFETY: as above.
                unsafe { self.copies.enqueue(&one) }
            }
            // SAFETY: as above.
            Strategy::Strided => unsafe { self.strided.enqueue(&one) },
            // SAFETY: as above.
            Strategy::Copies | Strategy::Direct => unsafe { self.copies.enqueue(&one) },
        }
    }

    /// A stream will not be used again: its work is done, or it was aborted, and whether that
    /// `stopped` it. Gives back what the kernels on it worked with.
    pub(super) fn leave(&mut self, stream: &Stream, stopped: bool) {
        self.kernels.leave(stream.id(), stopped);
    }

    /// What has been enqueued so far.
    pub fn counts(&self) -> CopyCounts {
        let all: [&dyn Mover; 3] = [&self.copies, &self.strided, &self.kernels];
        let mut sum = CopyCounts::default();
        for counts in all.map(Mover::counts) {
            sum.copies += counts.copies;
            sum.copies_2d += counts.copies_2d;
            sum.kernels += counts.kernels;
            sum.bytes += counts.bytes;
        }
        sum
    }
}

/// Names what is out of range.
fn check(part: &BlockPart<'_>, capacity: usize) -> Result<(), DeviceError> {
    let (cache, range) = (part.cache, &part.range);
    let missing = part.ids.iter().find(|id| u64::from(**id) >= cache.blocks);
    let message = if range.start >= range.end || range.end > cache.length {
        format!("bytes {range:?} are no part of a block of {}", cache.length)
    } else if let Some(id) = missing {
        format!("block {id} is not one of the cache's {}", cache.blocks)
    } else if part.bytes() > capacity as u64 {
        format!("{} bytes exceed staging of {capacity}", part.bytes())
    } else {
        return Ok(());
    };
    Err(DeviceError::Call {
        symbol: "a copy of blocks",
        code: ffi::CANN_INVALID_PARAM,
        message,
    })
}
