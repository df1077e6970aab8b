//! Manifests and replies: versioned, framed, bounds-checked. Pure.
//!
//! A peer's bytes are parsed, never executed. A [`frame`] carries one
//! [`message`]; a [`manifest`] is what one moved sequence needs besides its KV.

pub mod frame;
mod list;
pub mod manifest;
pub mod message;

pub use list::List;

use serde::{Serialize, de::DeserializeOwned};

/// Version of every message of this module; peers with another one are refused.
pub const VERSION: u16 = 1;

/// Why bytes from a peer were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The frame is shorter than its header or than the length it announces.
    #[error("truncated frame: {have} bytes, {want} wanted")]
    Truncated {
        /// Bytes present.
        have: usize,
        /// Bytes needed.
        want: usize,
    },
    /// The frame does not start with this protocol's magic number.
    #[error("not a seqshift frame (magic {0:#010x})")]
    Magic(u32),
    /// The peer speaks another version of the protocol.
    #[error(
        "protocol version {theirs} from the peer, {VERSION} here: run one seqshift version on all ranks"
    )]
    Version {
        /// The peer's version.
        theirs: u16,
    },
    /// Another message was due: duplicated, reordered or stale.
    #[error("got {got} of check {got_check}, expected {want} of check {want_check}")]
    Unexpected {
        /// Kind and check number that arrived.
        got: frame::Kind,
        /// Check number that arrived.
        got_check: u64,
        /// Kind that was due.
        want: frame::Kind,
        /// Check number that was due.
        want_check: u64,
    },
    /// The kind field holds no known value.
    #[error("unknown message kind {0}")]
    Kind(u16),
    /// The payload's checksum does not match.
    #[error("corrupted payload: checksum {have:#018x}, {want:#018x} announced")]
    Checksum {
        /// Checksum of the bytes that arrived.
        have: u64,
        /// Checksum in the header.
        want: u64,
    },
    /// The announced payload is larger than any message may be.
    #[error("payload of {0} bytes exceeds the limit of {max} bytes", max = frame::MAX_PAYLOAD)]
    TooLarge(u64),
    /// The payload does not decode as the expected message.
    #[error("malformed {kind}: {why}")]
    Malformed {
        /// Kind of the message.
        kind: frame::Kind,
        /// What the decoder found.
        why: String,
    },
}

/// Encodes a message body.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Serialising to memory fails only for types without a known length; ours all have one.
    postcard::to_allocvec(message).unwrap_or_default()
}

/// Decodes a message body that must fill `bytes` exactly.
///
/// # Errors
/// [`WireError::Malformed`] when the bytes are no `T`, or when some are left over.
pub fn decode<T: DeserializeOwned>(kind: frame::Kind, bytes: &[u8]) -> Result<T, WireError> {
    let (value, rest) =
        postcard::take_from_bytes::<T>(bytes).map_err(|e| WireError::Malformed {
            kind,
            why: e.to_string(),
        })?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(WireError::Malformed {
            kind,
            why: format!("{} bytes left over", rest.len()),
        })
    }
}
