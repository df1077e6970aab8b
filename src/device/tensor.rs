//! Rows of device memory as aclnn's kernels take them, and the two kernels that move rows.
//!
//! A kernel is called in two phases: the first checks the arguments and says how much workspace the
//! second needs, the second enqueues it ([`Prepared::run`]).

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{DeviceError, Runtime, Stream, acl};
use crate::ffi;

/// Contiguous memory as rows of equal length, or as a list of row numbers. Nothing is owned but the
/// description.
#[derive(Debug)]
pub struct Tensor {
    runtime: Arc<Runtime>,
    raw: NonNull<c_void>,
}

// SAFETY: the description is plain data that CANN frees from any thread.
unsafe impl Send for Tensor {}

impl Tensor {
    /// `rows` rows of `bytes` bytes from `address` on, of the widest element type that the kernels
    /// take for opaque bytes. Only those of at least two bytes run on AI cores.
    pub fn rows(
        runtime: &Arc<Runtime>,
        address: *mut u8,
        rows: u64,
        bytes: u64,
    ) -> Result<Self, DeviceError> {
        let (kind, size) = match bytes {
            _ if bytes.is_multiple_of(4) => (ffi::CANN_TENSOR_INT32, 4),
            _ if bytes.is_multiple_of(2) => (ffi::CANN_TENSOR_FLOAT16, 2),
            _ => (ffi::CANN_TENSOR_INT8, 1),
        };
        let width = (bytes / size) as i64;
        let dims = [rows as i64, width];
        Self::new(runtime, address, &dims, &[width, 1], kind)
    }

    /// `count` row numbers of 64 bits.
    pub fn index(
        runtime: &Arc<Runtime>,
        address: *mut u8,
        count: u64,
    ) -> Result<Self, DeviceError> {
        let kind = ffi::CANN_TENSOR_INT64;
        Self::new(runtime, address, &[count as i64], &[1], kind)
    }

    fn new(
        runtime: &Arc<Runtime>,
        address: *mut u8,
        dims: &[i64],
        strides: &[i64],
        kind: ffi::CannTensorType,
    ) -> Result<Self, DeviceError> {
        let symbol = "aclCreateTensor";
        let create = runtime.symbols().table().aclCreateTensor;
        let create = create.ok_or(DeviceError::MissingSymbol { symbol })?;
        runtime.bind()?;
        let count = dims.len() as u64;
        // SAFETY: shape and strides have `count` entries each; the address is only kept.
        let raw = unsafe {
            create(
                dims.as_ptr(),
                count,
                kind,
                strides.as_ptr(),
                0,
                ffi::CANN_FORMAT_ND,
                dims.as_ptr(),
                count,
                address.cast(),
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| DeviceError::Call {
            symbol,
            code: ffi::CANN_NN_PARAM_INVALID,
            message: super::recent_message(runtime.symbols()),
        })?;
        Ok(Self {
            runtime: Arc::clone(runtime),
            raw,
        })
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: the description is ours, and no call between its phases uses it any more.
        let result = unsafe {
            acl!(
                self.runtime.symbols(),
                aclDestroyTensor(self.raw.as_ptr().cast_const())
            )
        };
        if let Err(error) = result {
            tracing::warn!(%error, "a tensor could not be destroyed");
        }
    }
}

/// Which way rows move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowMove {
    /// `part[i] = whole[index[i]]`, by aclnnIndexSelect.
    Select,
    /// `whole[index[i]] = part[i]`, by aclnnInplaceIndexCopy.
    Write,
}

/// A kernel between its two phases.
#[derive(Debug)]
pub struct Prepared<'a> {
    runtime: &'a Arc<Runtime>,
    executor: ffi::CannExecutor,
    workspace: u64,
    kind: RowMove,
    used: bool,
    /// They must live until the second phase has returned.
    _tensors: [&'a Tensor; 3],
}

/// The first phase.
///
/// # Errors
/// [`DeviceError::MissingSymbol`] without kernels, [`DeviceError::Call`] if they refuse the
/// tensors.
pub fn prepare<'a>(
    runtime: &'a Arc<Runtime>,
    kind: RowMove,
    whole: &'a Tensor,
    index: &'a Tensor,
    part: &'a Tensor,
) -> Result<Prepared<'a>, DeviceError> {
    runtime.bind()?;
    let (mut workspace, mut executor) = (0, std::ptr::null_mut());
    let symbols = runtime.symbols();
    let (rows, by, other) = (
        whole.raw.as_ptr(),
        index.raw.as_ptr().cast_const(),
        part.raw.as_ptr(),
    );
    // SAFETY: the tensors live, as do both results.
    unsafe {
        match kind {
            RowMove::Select => acl!(
                symbols,
                aclnnIndexSelectGetWorkspaceSize(
                    rows.cast_const(),
                    0,
                    by,
                    other,
                    &mut workspace,
                    &mut executor
                )
            ),
            RowMove::Write => acl!(
                symbols,
                aclnnInplaceIndexCopyGetWorkspaceSize(
                    rows,
                    0,
                    by,
                    other.cast_const(),
                    &mut workspace,
                    &mut executor
                )
            ),
        }
    }?;
    Ok(Prepared {
        runtime,
        executor,
        workspace,
        kind,
        used: false,
        _tensors: [whole, index, part],
    })
}

impl Prepared<'_> {
    /// Bytes of device memory that the kernel works in.
    pub fn workspace(&self) -> u64 {
        self.workspace
    }

    /// The second phase: enqueues the kernel.
    ///
    /// # Safety
    /// The tensors describe memory of the stream's device, `workspace` is as much of it as
    /// [`workspace`](Self::workspace) says, and all of it stays valid, and untouched by others,
    /// until the stream has passed the kernel. Every row number is that of a row.
    pub unsafe fn run(mut self, workspace: *mut u8, stream: &Stream) -> Result<(), DeviceError> {
        self.runtime.bind()?;
        self.used = true;
        let symbols = self.runtime.symbols();
        let (at, size) = (workspace.cast(), self.workspace);
        // SAFETY: the executor is one of this kernel and was not used; the caller vouches for the
        // memory.
        unsafe {
            match self.kind {
                RowMove::Select => acl!(
                    symbols,
                    aclnnIndexSelect(at, size, self.executor, stream.raw())
                ),
                RowMove::Write => acl!(
                    symbols,
                    aclnnInplaceIndexCopy(at, size, self.executor, stream.raw())
                ),
            }
        }
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        if self.used {
            return;
        }
        // SAFETY: the executor is ours and was not used.
        let result = unsafe {
            acl!(
                self.runtime.symbols(),
                aclDestroyAclOpExecutor(self.executor)
            )
        };
        if let Err(error) = result {
            tracing::warn!(%error, "the executor of a kernel could not be destroyed");
        }
    }
}
