//! Memory: on the device, pinned on the host, and host memory that the mock takes for the device's.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use super::{CopyKind, DeviceError, Runtime, Stream, acl};
use crate::ffi;

fn check_range(offset: usize, length: usize, capacity: usize) -> Result<(), DeviceError> {
    match offset.checked_add(length) {
        Some(end) if end <= capacity => Ok(()),
        _ => Err(DeviceError::Range {
            offset,
            length,
            capacity,
        }),
    }
}

/// Device memory of our own.
#[derive(Debug)]
pub struct DeviceBuffer {
    runtime: Arc<Runtime>,
    pointer: NonNull<u8>,
    length: usize,
}

// SAFETY: the buffer owns its memory, and CANN frees it from any thread.
unsafe impl Send for DeviceBuffer {}
// SAFETY: nothing here changes the memory through a shared reference without `unsafe`.
unsafe impl Sync for DeviceBuffer {}

impl DeviceBuffer {
    /// Allocates `length` bytes, at least one. The content is undefined.
    pub fn new(runtime: &Arc<Runtime>, length: usize) -> Result<Self, DeviceError> {
        runtime.bind()?;
        let mut raw: *mut c_void = std::ptr::null_mut();
        // SAFETY: `raw` lives.
        unsafe {
            acl!(
                runtime.symbols(),
                aclrtMalloc(&mut raw, length.max(1), ffi::CANN_MEM_HUGE_FIRST)
            )
        }?;
        let pointer = NonNull::new(raw.cast()).ok_or(DeviceError::Call {
            symbol: "aclrtMalloc",
            code: ffi::CANN_BAD_ALLOC,
            message: "returned a null pointer".into(),
        })?;
        Ok(Self {
            runtime: Arc::clone(runtime),
            pointer,
            length,
        })
    }

    /// Address of the first byte, on the device.
    pub fn as_ptr(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Address of a range's first byte, on the device, if the range lies within the buffer.
    pub fn slice(&self, range: Range<usize>) -> Result<*mut u8, DeviceError> {
        let length = range.end.saturating_sub(range.start);
        check_range(range.start, length, self.length)?;
        Ok(self.as_ptr().wrapping_add(range.start))
    }

    /// Copies bytes into the buffer and waits.
    pub fn write(
        &mut self,
        offset: usize,
        bytes: &[u8],
        stream: &Stream,
        limit: Duration,
    ) -> Result<(), DeviceError> {
        check_range(offset, bytes.len(), self.length)?;
        let mut pinned = HostBuffer::new(&self.runtime, bytes.len())?;
        pinned.as_mut_slice().copy_from_slice(bytes);
        let destination = self.as_ptr().wrapping_add(offset);
        self.transfer(
            pinned,
            destination,
            bytes.len(),
            CopyKind::HostToDevice,
            stream,
            limit,
        )
        .map(drop)
    }

    /// Copies bytes into the start of the buffer, and returns when they are there, whatever streams
    /// do meanwhile. The caller sees to it that no stream uses the buffer.
    pub fn upload(&mut self, bytes: &[u8]) -> Result<(), DeviceError> {
        check_range(0, bytes.len(), self.length)?;
        self.runtime.bind()?;
        // SAFETY: both ranges are valid, and the call returns when it is done with them.
        unsafe {
            acl!(
                self.runtime.symbols(),
                aclrtMemcpy(
                    self.as_ptr().cast(),
                    self.length,
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    ffi::CANN_COPY_HOST_TO_DEVICE
                )
            )
        }
    }

    /// Copies bytes out of the buffer and waits.
    pub fn read(
        &self,
        offset: usize,
        length: usize,
        stream: &Stream,
        limit: Duration,
    ) -> Result<Vec<u8>, DeviceError> {
        check_range(offset, length, self.length)?;
        let pinned = HostBuffer::new(&self.runtime, length)?;
        let source = self.as_ptr().wrapping_add(offset);
        self.transfer(
            pinned,
            source,
            length,
            CopyKind::DeviceToHost,
            stream,
            limit,
        )
        .map(|pinned| pinned.as_slice().to_vec())
    }

    fn transfer(
        &self,
        pinned: HostBuffer,
        device: *mut u8,
        length: usize,
        kind: CopyKind,
        stream: &Stream,
        limit: Duration,
    ) -> Result<HostBuffer, DeviceError> {
        let host = pinned.pointer.as_ptr();
        let (destination, source) = match kind {
            CopyKind::DeviceToHost => (host, device.cast_const()),
            _ => (device, host.cast_const()),
        };
        if length > 0 {
            // SAFETY: both ranges were checked; `pinned` is kept below if the copy is not done.
            unsafe { stream.copy(destination, source, length, kind) }?;
        }
        match stream.wait(limit) {
            Ok(()) => Ok(pinned),
            Err(error) => {
                // The copy may still run: its host memory must not be freed.
                std::mem::forget(pinned);
                Err(error)
            }
        }
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let result = self.runtime.bind().and_then(|()| {
            // SAFETY: the memory is ours, and used by nobody any more.
            unsafe {
                acl!(
                    self.runtime.symbols(),
                    aclrtFree(self.pointer.as_ptr().cast())
                )
            }
        });
        if let Err(error) = result {
            tracing::warn!(%error, "device memory could not be freed");
        }
    }
}

/// Pinned host memory: copies between it and the device are asynchronous.
#[derive(Debug)]
pub struct HostBuffer {
    runtime: Arc<Runtime>,
    pointer: NonNull<u8>,
    length: usize,
}

// SAFETY: the buffer owns its memory, and CANN frees it from any thread.
unsafe impl Send for HostBuffer {}
// SAFETY: shared references only read.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Allocates `length` bytes, at least one, all zero.
    pub fn new(runtime: &Arc<Runtime>, length: usize) -> Result<Self, DeviceError> {
        runtime.bind()?;
        let mut raw: *mut c_void = std::ptr::null_mut();
        // SAFETY: `raw` lives.
        unsafe { acl!(runtime.symbols(), aclrtMallocHost(&mut raw, length.max(1))) }?;
        let pointer = NonNull::new(raw.cast::<u8>()).ok_or(DeviceError::Call {
            symbol: "aclrtMallocHost",
            code: ffi::CANN_BAD_ALLOC,
            message: "returned a null pointer".into(),
        })?;
        // SAFETY: CANN has just given us these bytes.
        unsafe { pointer.write_bytes(0, length) };
        Ok(Self {
            runtime: Arc::clone(runtime),
            pointer,
            length,
        })
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    /// The bytes. Whoever enqueued a copy into them has waited for it.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is initialised and ours.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.length) }
    }

    /// Some of the bytes, while others may be written; `None` if the range is not within them.
    /// Whoever enqueued a copy into these has waited for it.
    pub fn part(&self, range: Range<usize>) -> Option<&[u8]> {
        let length = range.end.checked_sub(range.start)?;
        // SAFETY: the memory is initialised and ours, and the range lies within it.
        (range.end <= self.length)
            .then(|| unsafe { std::slice::from_raw_parts(self.as_ptr().add(range.start), length) })
    }

    /// The bytes, to be written. Whoever enqueued a copy from or into them has waited for it.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the memory is initialised and ours.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        let result = self.runtime.bind().and_then(|()| {
            // SAFETY: the memory is ours, and used by nobody any more.
            unsafe {
                acl!(
                    self.runtime.symbols(),
                    aclrtFreeHost(self.pointer.as_ptr().cast())
                )
            }
        });
        if let Err(error) = result {
            tracing::warn!(%error, "pinned host memory could not be freed");
        }
    }
}

/// Ordinary host memory that the mock takes for device memory until this is dropped.
#[derive(Debug)]
pub struct Registration {
    runtime: Arc<Runtime>,
    pointer: *mut c_void,
}

// SAFETY: only the address is kept; the mock's table of registrations is its own to guard.
unsafe impl Send for Registration {}

impl Registration {
    /// Registers `length` bytes at `pointer`; `None` where the loaded CANN is not the mock, so that
    /// memory is the device's already.
    ///
    /// # Safety
    /// The memory stays allocated for as long as the returned value.
    pub unsafe fn new(
        runtime: &Arc<Runtime>,
        pointer: *mut u8,
        length: usize,
    ) -> Result<Option<Self>, DeviceError> {
        if !runtime.shares_host_memory() {
            return Ok(None);
        }
        let pointer = pointer.cast::<c_void>();
        // SAFETY: the caller vouches for the memory.
        unsafe {
            acl!(
                runtime.symbols(),
                seqshiftMockRegisterDeviceMemory(pointer, length, runtime.device())
            )
        }?;
        Ok(Some(Self {
            runtime: Arc::clone(runtime),
            pointer,
        }))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: the registration is ours.
        let result = unsafe {
            acl!(
                self.runtime.symbols(),
                seqshiftMockUnregisterDeviceMemory(self.pointer)
            )
        };
        if let Err(error) = result {
            tracing::warn!(%error, "memory could not be unregistered");
        }
    }
}
