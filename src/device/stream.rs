//! Queues of work on the device.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::{DeviceError, Event, Runtime, acl, milliseconds};
use crate::ffi;

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKind {
    /// Pinned host memory to device memory.
    HostToDevice,
    /// Device memory to pinned host memory.
    DeviceToHost,
    /// Within the device.
    DeviceToDevice,
}

impl CopyKind {
    fn raw(self) -> ffi::CannMemcpyKind {
        match self {
            Self::HostToDevice => ffi::CANN_COPY_HOST_TO_DEVICE,
            Self::DeviceToHost => ffi::CANN_COPY_DEVICE_TO_HOST,
            Self::DeviceToDevice => ffi::CANN_COPY_DEVICE_TO_DEVICE,
        }
    }
}

/// Streams made so far.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A queue: what is enqueued runs in order, asynchronously.
#[derive(Debug)]
pub struct Stream {
    runtime: Arc<Runtime>,
    raw: ffi::CannStream,
    id: u64,
    owned: bool,
    aborted: AtomicBool,
}

// SAFETY: CANN lets any thread whose device is the stream's use it, and each call here binds it.
unsafe impl Send for Stream {}
// SAFETY: CANN serialises the calls of several threads on one stream.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream.
    pub fn new(runtime: &Arc<Runtime>) -> Result<Self, DeviceError> {
        runtime.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` lives.
        unsafe {
            acl!(
                runtime.symbols(),
                aclrtCreateStreamWithConfig(&mut raw, 0, 0)
            )
        }?;
        Ok(Self {
            runtime: Arc::clone(runtime),
            raw,
            id: MADE.fetch_add(1, Ordering::Relaxed),
            owned: true,
            aborted: AtomicBool::new(false),
        })
    }

    /// Somebody else's stream, such as the one that torch_npu computes on. It is never destroyed or
    /// aborted here. Null is the device's default stream.
    ///
    /// # Safety
    /// `raw` is an `aclrtStream` of the runtime's device and outlives the returned value.
    pub unsafe fn from_raw(runtime: &Arc<Runtime>, raw: *mut c_void) -> Self {
        Self {
            runtime: Arc::clone(runtime),
            raw,
            id: MADE.fetch_add(1, Ordering::Relaxed),
            owned: false,
            aborted: AtomicBool::new(false),
        }
    }

    /// The `aclrtStream`.
    pub fn raw(&self) -> ffi::CannStream {
        self.raw
    }

    /// A number that no other [`Stream`] of this process has, while handles may come again.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The runtime of the stream's device.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Waits until all that has been enqueued is done.
    ///
    /// # Errors
    /// [`DeviceError::Timeout`] after `limit`; [`DeviceError::Call`] if the work failed.
    pub fn wait(&self, limit: Duration) -> Result<(), DeviceError> {
        self.runtime.bind()?;
        // SAFETY: the stream is valid for as long as `self`.
        let result = unsafe {
            acl!(
                self.runtime.symbols(),
                aclrtSynchronizeStreamWithTimeout(self.raw, milliseconds(limit))
            )
        };
        match result {
            Err(DeviceError::Call { code, .. }) if code == ffi::CANN_RT_STREAM_SYNC_TIMEOUT => {
                Err(DeviceError::Timeout {
                    what: "a stream",
                    limit,
                })
            }
            other => other,
        }
    }

    /// Whether all that has been enqueued is done.
    pub fn is_idle(&self) -> Result<bool, DeviceError> {
        self.runtime.bind()?;
        let mut status = ffi::CANN_STREAM_NOT_READY;
        // SAFETY: the stream is valid, and `status` lives.
        unsafe {
            acl!(
                self.runtime.symbols(),
                aclrtStreamQuery(self.raw, &mut status)
            )
        }?;
        Ok(status == ffi::CANN_STREAM_COMPLETE)
    }

    /// Enqueues the event: it is complete once the stream gets there.
    pub fn record(&self, event: &Event) -> Result<(), DeviceError> {
        self.runtime.bind()?;
        // SAFETY: event and stream are valid.
        unsafe {
            acl!(
                self.runtime.symbols(),
                aclrtRecordEvent(event.raw(), self.raw)
            )
        }
    }

    /// What is enqueued from now on starts after the event, as recorded so far, is complete.
    pub fn wait_event(&self, event: &Event) -> Result<(), DeviceError> {
        self.runtime.bind()?;
        // SAFETY: event and stream are valid.
        unsafe {
            acl!(
                self.runtime.symbols(),
                aclrtStreamWaitEvent(self.raw, event.raw())
            )
        }
    }

    /// Enqueues a copy.
    ///
    /// # Safety
    /// Both ranges are valid for `length` bytes, of the memory that `kind` says, and stay so, and
    /// untouched by others, until the stream has passed the copy.
    pub unsafe fn copy(
        &self,
        destination: *mut u8,
        source: *const u8,
        length: usize,
        kind: CopyKind,
    ) -> Result<(), DeviceError> {
        self.runtime.bind()?;
        // SAFETY: the caller vouches for the ranges.
        unsafe {
            acl!(
                self.runtime.symbols(),
                aclrtMemcpyAsync(
                    destination.cast(),
                    length,
                    source.cast(),
                    length,
                    kind.raw(),
                    self.raw
                )
            )
        }
    }

    /// Whether it was aborted: it serves for nothing but to be dropped.
    pub fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }

    /// Drops what has been enqueued and is not done. Afterwards the stream only serves to be
    /// dropped. Nothing is done to somebody else's stream.
    pub fn abort(&self) -> Result<(), DeviceError> {
        if !self.owned {
            return Ok(());
        }
        self.aborted.store(true, Ordering::Relaxed);
        self.runtime.bind()?;
        // SAFETY: the stream is valid.
        unsafe { acl!(self.runtime.symbols(), aclrtStreamAbort(self.raw)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let symbols = self.runtime.symbols();
        let result = self.runtime.bind().and_then(|()| {
            // SAFETY: the stream is valid and ours, and used by nobody any more.
            unsafe {
                if self.is_aborted() {
                    acl!(symbols, aclrtDestroyStreamForce(self.raw))
                } else {
                    acl!(symbols, aclrtDestroyStream(self.raw))
                }
            }
        });
        if let Err(error) = result {
            tracing::warn!(%error, "a stream could not be destroyed");
        }
    }
}
