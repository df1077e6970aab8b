//! The ways to move blocks between a cache and staging memory, behind one interface.

mod copies;
mod kernels;

pub(super) use copies::Copies;
pub(super) use kernels::Kernels;

use super::blocks::{BlockPart, CopyCounts, Direction};
use super::cost::{Strategy, UnknownStrategy};
use crate::device::{DeviceError, Stream};

/// Blocks to be moved, checked: every id and the range are in the sub-cache, and staging memory is
/// large enough.
pub(super) struct Transport<'a> {
    pub(super) direction: Direction,
    pub(super) part: &'a BlockPart<'a>,
    pub(super) staging: *mut u8,
    pub(super) stream: &'a Stream,
}

/// One way.
pub(super) trait Mover: std::fmt::Debug {
    /// Enqueues the work.
    ///
    /// # Errors
    /// What CANN refuses. Some of the work may be under way then.
    ///
    /// # Safety
    /// As for [`BlockCopier::copy`](super::BlockCopier::copy).
    unsafe fn enqueue(&mut self, one: &Transport<'_>) -> Result<(), DeviceError>;

    /// Whether the loaded CANN takes this way, as far as is known.
    fn is_possible(&self) -> bool;

    /// What has been enqueued so far.
    fn counts(&self) -> CopyCounts;
}

/// What `SEQSHIFT_TEST_KV_STRATEGY` asks for; tests and benches set it.
pub(super) fn forced_by_environment() -> Result<Option<Strategy>, UnknownStrategy> {
    match std::env::var("SEQSHIFT_TEST_KV_STRATEGY") {
        Ok(name) if !name.is_empty() => name.parse().map(Some),
        _ => Ok(None),
    }
}
