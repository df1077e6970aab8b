//! What can go wrong between us and the device.

use std::ffi::CStr;
use std::time::Duration;

use crate::ffi::{self, LoadError, Symbols};

/// An error of the device layer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// CANN, or a mandatory symbol of it, was not found.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The loaded CANN lacks an optional symbol that the operation needs.
    #[error("the loaded CANN has no {symbol}")]
    MissingSymbol {
        /// The exported name.
        symbol: &'static str,
    },
    /// A call returned an error code.
    #[error("{symbol} failed with code {code}{}", detail(message))]
    Call {
        /// The function that failed.
        symbol: &'static str,
        /// CANN's error code as it is, see `CANN_*` in [`crate::ffi`].
        code: i32,
        /// What CANN says about it; may be empty.
        message: String,
    },
    /// A wait took longer than the caller allows.
    #[error("{what} did not finish within {limit:?}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// The limit that the caller set.
        limit: Duration,
    },
    /// A range does not lie within its buffer.
    #[error("bytes {offset} to {offset} + {length} exceed a buffer of {capacity} bytes")]
    Range {
        /// First byte.
        offset: usize,
        /// Number of bytes.
        length: usize,
        /// Size of the buffer.
        capacity: usize,
    },
}

impl DeviceError {
    /// The error code of CANN, if a call failed.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Call { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether device or pinned host memory has run out.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(
            self.code(),
            Some(
                ffi::CANN_BAD_ALLOC
                    | ffi::CANN_RT_MEMORY_ALLOCATION
                    | ffi::CANN_RT_DEVICE_OOM
                    | ffi::CANN_RT_RESOURCE_ALLOC_FAIL
            )
        )
    }

    /// Whether a wait ran into its limit.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }
}

fn detail(message: &str) -> String {
    if message.is_empty() {
        String::new()
    } else {
        format!(": {message}")
    }
}

/// Turns the code of an AscendCL call into a result. Must run on the thread of the call, right
/// after it, since CANN's message belongs to the thread's last call.
pub(crate) fn check(symbols: &Symbols, symbol: &'static str, code: i32) -> Result<(), DeviceError> {
    if code == ffi::CANN_OK {
        return Ok(());
    }
    Err(DeviceError::Call {
        symbol,
        code,
        message: recent_message(symbols),
    })
}

pub(crate) fn recent_message(symbols: &Symbols) -> String {
    let Some(function) = symbols.table().aclGetRecentErrMsg else {
        return String::new();
    };
    // SAFETY: takes nothing; returns null or a C string that lives until the thread's next call.
    unsafe {
        let text = function();
        if text.is_null() {
            String::new()
        } else {
            CStr::from_ptr(text).to_string_lossy().trim().to_owned()
        }
    }
}

/// Calls an AscendCL function through the table; to be used inside `unsafe`.
macro_rules! acl {
    ($symbols:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let symbols: &$crate::ffi::Symbols = $symbols;
        match symbols.table().$name {
            Some(function) => {
                let code = function($($argument),*);
                $crate::device::error::check(symbols, stringify!($name), code)
            }
            None => Err($crate::device::DeviceError::MissingSymbol { symbol: stringify!($name) }),
        }
    }};
}
pub(crate) use acl;
