//! Marks in a stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{DeviceError, Runtime, acl, milliseconds};
use crate::ffi;

/// What is about to be done takes less than falling asleep and being woken.
const SPIN: Duration = Duration::from_micros(500);

/// A mark that a stream passes.
#[derive(Debug)]
pub struct Event {
    runtime: Arc<Runtime>,
    raw: ffi::CannEvent,
}

// SAFETY: CANN lets any thread use an event, and each call here binds the device.
unsafe impl Send for Event {}
// SAFETY: CANN serialises the calls of several threads on one event.
unsafe impl Sync for Event {}

impl Event {
    /// A new event, not recorded yet. Streams and the host can wait for it.
    pub fn new(runtime: &Arc<Runtime>) -> Result<Self, DeviceError> {
        Self::with_flags(
            runtime,
            ffi::CANN_EVENT_FLAG_SYNC | ffi::CANN_EVENT_FLAG_STREAM_PROGRESS,
        )
    }

    /// A new event that also keeps the time, which makes it slower.
    pub fn timed(runtime: &Arc<Runtime>) -> Result<Self, DeviceError> {
        Self::with_flags(
            runtime,
            ffi::CANN_EVENT_FLAG_SYNC
                | ffi::CANN_EVENT_FLAG_STREAM_PROGRESS
                | ffi::CANN_EVENT_FLAG_TIME_LINE,
        )
    }

    fn with_flags(runtime: &Arc<Runtime>, flags: i32) -> Result<Self, DeviceError> {
        runtime.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` lives.
        unsafe {
            acl!(
                runtime.symbols(),
                aclrtCreateEventExWithFlag(&mut raw, flags as u32)
            )
        }?;
        Ok(Self {
            runtime: Arc::clone(runtime),
            raw,
        })
    }

    pub(super) fn raw(&self) -> ffi::CannEvent {
        self.raw
    }

    /// Waits until the stream that recorded the event last has passed it.
    ///
    /// # Errors
    /// [`DeviceError::Timeout`] after `limit`; [`DeviceError::Call`] if the work before it failed.
    pub fn wait(&self, limit: Duration) -> Result<(), DeviceError> {
        self.runtime.bind()?;
        let asked = Instant::now();
        // An event that is not known to be complete is waited for below, whatever the query said.
        while asked.elapsed() < SPIN.min(limit) && matches!(self.is_complete(), Ok(false)) {
            std::thread::yield_now();
        }
        // SAFETY: the event is valid for as long as `self`.
        let result = unsafe {
            acl!(
                self.runtime.symbols(),
                aclrtSynchronizeEventWithTimeout(self.raw, milliseconds(limit))
            )
        };
        match result {
            Err(DeviceError::Call { code, .. }) if code == ffi::CANN_RT_EVENT_SYNC_TIMEOUT => {
                Err(DeviceError::Timeout {
                    what: "an event",
                    limit,
                })
            }
            other => other,
        }
    }

    /// Whether the stream that recorded the event last has passed it.
    pub fn is_complete(&self) -> Result<bool, DeviceError> {
        self.runtime.bind()?;
        let mut status = ffi::CANN_RECORDED_NOT_READY;
        // SAFETY: the event is valid, and `status` lives.
        unsafe {
            acl!(
                self.runtime.symbols(),
                aclrtQueryEventStatus(self.raw, &mut status)
            )
        }?;
        Ok(status == ffi::CANN_RECORDED_COMPLETE)
    }

    /// Device time from `earlier` to this event; both complete and made by [`timed`](Self::timed).
    pub fn since(&self, earlier: &Event) -> Result<Duration, DeviceError> {
        self.runtime.bind()?;
        let mut milliseconds = 0.0_f32;
        // SAFETY: both events are valid, and the number lives.
        unsafe {
            acl!(
                self.runtime.symbols(),
                aclrtEventElapsedTime(&mut milliseconds, earlier.raw, self.raw)
            )
        }?;
        Ok(Duration::from_secs_f32(milliseconds.max(0.0) / 1000.0))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let result = self.runtime.bind().and_then(|()| {
            // SAFETY: the event is valid, and used by nobody any more.
            unsafe { acl!(self.runtime.symbols(), aclrtDestroyEvent(self.raw)) }
        });
        if let Err(error) = result {
            tracing::warn!(%error, "an event could not be destroyed");
        }
    }
}
