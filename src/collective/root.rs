//! Where ranks meet.

use super::CollectiveError;
use super::error::hccl;
use crate::device::Runtime;
use crate::ffi;

/// What the ranks meet by: made by one of them, carried to the others as bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct RootInfo(Box<[u8; RootInfo::LEN]>);

impl RootInfo {
    /// Bytes of a root info.
    pub const LEN: usize = ffi::CANN_HCCL_ROOT_INFO_BYTES as usize;

    /// A new meeting place, kept open by this process.
    pub fn create(runtime: &Runtime) -> Result<Self, CollectiveError> {
        runtime.bind()?;
        let mut root = ffi::CannHcclRoot::default();
        // SAFETY: `root` lives.
        unsafe { hccl!(runtime.symbols(), HcclGetRootInfo(&mut root)) }?;
        Ok(Self(Box::new(root.bytes.map(|byte| byte as u8))))
    }

    /// The bytes, for another channel.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_slice()
    }

    pub(super) fn raw(&self) -> ffi::CannHcclRoot {
        ffi::CannHcclRoot {
            bytes: self.0.map(|byte| byte as std::ffi::c_char),
        }
    }
}

impl TryFrom<&[u8]> for RootInfo {
    type Error = CollectiveError;

    fn try_from(bytes: &[u8]) -> Result<Self, CollectiveError> {
        let bytes = bytes.try_into().map_err(|_| CollectiveError::Invalid {
            field: "the length of a root info",
            value: bytes.len().to_string(),
            expected: format!("{} bytes", Self::LEN),
        })?;
        Ok(Self(Box::new(bytes)))
    }
}

impl std::fmt::Debug for RootInfo {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RootInfo").finish_non_exhaustive()
    }
}
