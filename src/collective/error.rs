//! What can go wrong between the ranks.

use std::ffi::CStr;
use std::time::Duration;

use crate::device::{DeviceError, recent_message};
use crate::ffi::{self, Symbols};

/// An error of the collective layer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// The device layer failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A call of HCCL returned an error code.
    #[error(
        "{symbol} failed with code {code} ({name}){}{message}",
        separator(message)
    )]
    Call {
        /// The function that failed.
        symbol: &'static str,
        /// HCCL's error code as it is, see `CANN_HCCL_*` in [`crate::ffi`].
        code: i32,
        /// HCCL's name of the code.
        name: String,
        /// What CANN says about it; may be empty.
        message: String,
    },
    /// Peers did not take part in time.
    #[error("{what} did not finish within {limit:?}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// The limit that the caller set.
        limit: Duration,
    },
    /// An earlier failure has left the communicator useless; it must be made anew.
    #[error("the communicator is broken by an earlier failure")]
    Broken,
    /// The system has no thread to spare for joining.
    #[error("no thread to join a communicator on: {0}")]
    Thread(#[source] std::io::Error),
    /// An argument is out of its range.
    #[error("{field} is {value}, but must be {expected}")]
    Invalid {
        /// The argument.
        field: &'static str,
        /// What was given.
        value: String,
        /// What is accepted.
        expected: String,
    },
}

fn separator(message: &str) -> &'static str {
    if message.is_empty() { "" } else { ": " }
}

/// Turns the code of an HCCL call into a result. Must run on the thread of the call, right after it.
pub(super) fn check(
    symbols: &Symbols,
    symbol: &'static str,
    code: i32,
) -> Result<(), CollectiveError> {
    if code == ffi::CANN_HCCL_OK {
        return Ok(());
    }
    let message = recent_message(symbols);
    Err(CollectiveError::Call {
        symbol,
        code,
        name: code_name(symbols, code),
        message,
    })
}

fn code_name(symbols: &Symbols, code: i32) -> String {
    let Some(function) = symbols.table().HcclGetErrorString else {
        return String::new();
    };
    // SAFETY: takes any number; returns null or a static C string.
    unsafe {
        let text = function(code);
        if text.is_null() {
            String::new()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

/// Calls an HCCL function through the table; to be used inside `unsafe`.
macro_rules! hccl {
    ($symbols:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let symbols: &$crate::ffi::Symbols = $symbols;
        match symbols.table().$name {
            Some(function) => {
                let code = function($($argument),*);
                $crate::collective::error::check(symbols, stringify!($name), code)
            }
            None => Err($crate::collective::CollectiveError::Device(
                $crate::device::DeviceError::MissingSymbol { symbol: stringify!($name) },
            )),
        }
    }};
}
pub(super) use hccl;
