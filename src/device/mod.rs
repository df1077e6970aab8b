//! Safe CANN runtime: device, stream, event, buffer.
//!
//! # Safety
//!
//! A [`Runtime`] is shared by everything made from it, so CANN outlives its objects. Work on a
//! [`Stream`] is asynchronous: memory handed to it must live, and must not be touched, until the
//! stream has passed it. Functions that enqueue such work are `unsafe`; all others wait. Dropping
//! an object never panics and never waits: what CANN refuses is logged.

mod buffer;
mod error;
mod event;
mod runtime;
mod stream;
mod tensor;

pub use buffer::{DeviceBuffer, HostBuffer, Registration};
pub use error::DeviceError;
pub(crate) use error::{acl, check, recent_message};
pub use event::Event;
pub use runtime::{MemoryInfo, Runtime, RuntimeOptions};
pub use stream::{CopyKind, Stream};
pub use tensor::{Prepared, RowMove, Tensor, prepare};

use std::time::Duration;

/// A limit in whole milliseconds as CANN takes it: at least one, never "for ever".
fn milliseconds(limit: Duration) -> i32 {
    i32::try_from(limit.as_micros().div_ceil(1000))
        .unwrap_or(i32::MAX)
        .max(1)
}
