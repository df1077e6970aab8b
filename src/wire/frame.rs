//! The frame around every control message: a fixed header, then the payload.
//!
//! ```text
//! magic u32 | version u16 | kind u16 | check u64 | length u64 | xxh3-64 of the payload u64
//! ```
//! All little-endian; 32 bytes.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

use super::{VERSION, WireError};

/// Length of the header in bytes.
pub const HEADER: usize = 32;
/// Largest payload in bytes; a manifest of a million tokens takes some 8 MiB.
pub const MAX_PAYLOAD: u64 = 1 << 30;
const MAGIC: u32 = u32::from_le_bytes(*b"SQSH");

/// What a frame carries; each kind is due at one place of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
#[non_exhaustive]
pub enum Kind {
    /// First bytes on a connection.
    Hello = 1,
    /// Step 1: the fixed-size load record.
    Load = 2,
    /// Step 7, also before a plan: outputs and aborts on their way to other ranks.
    Sync = 3,
    /// Step 2: per-sequence details.
    Detail = 4,
    /// Step 3: manifests.
    Offer = 5,
    /// Step 4: accept or reject.
    Reply = 6,
    /// Step 6: the outcome of every move.
    Outcome = 7,
    /// Agreement among the TP shards of one rank.
    Shard = 8,
    /// Root information of a new communicator.
    Root = 9,
    /// The last return of a rollout.
    Drain = 10,
    /// Measurements for the adaptive trigger.
    Measured = 11,
    /// The peer's frame of this exchange has arrived.
    Ack = 12,
    /// The peer's frame of this exchange has arrived damaged and is wanted again.
    Again = 13,
    /// The peer leaves the group.
    Leave = 14,
    /// The peer's frame of this exchange has arrived damaged too often: it counts as not sent.
    Refused = 15,
    /// Before a copy in the background: full KV blocks of each move.
    Prepare = 16,
    /// The answers to it.
    Prepared = 17,
    /// The end of a check that moved something or began to, or of the last return: all that was
    /// agreed on is done.
    Done = 18,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 18] = [
        Self::Hello,
        Self::Load,
        Self::Sync,
        Self::Detail,
        Self::Offer,
        Self::Reply,
        Self::Outcome,
        Self::Shard,
        Self::Root,
        Self::Drain,
        Self::Measured,
        Self::Ack,
        Self::Again,
        Self::Leave,
        Self::Refused,
        Self::Prepare,
        Self::Prepared,
        Self::Done,
    ];

    fn from_u16(value: u16) -> Result<Self, WireError> {
        Self::ALL
            .into_iter()
            .find(|k| *k as u16 == value)
            .ok_or(WireError::Kind(value))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// A parsed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the payload is.
    pub kind: Kind,
    /// Number of the exchange it belongs to.
    pub check: u64,
    /// Payload length in bytes.
    pub length: u64,
    /// xxh3-64 of the payload.
    pub checksum: u64,
}

impl Header {
    /// Parses a header.
    ///
    /// # Errors
    /// Wrong magic, version or kind, an impossible length, or too few bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let [first, check, length, checksum] = words(bytes)?;
        let theirs = (first >> 32) as u16;
        if theirs != VERSION {
            return Err(WireError::Version { theirs });
        }
        let kind = Kind::from_u16((first >> 48) as u16)?;
        if length > MAX_PAYLOAD {
            return Err(WireError::TooLarge(length));
        }
        Ok(Self {
            kind,
            check,
            length,
            checksum,
        })
    }
}

/// Length of the frame that starts here, header included: all that a reader must know to find the
/// next one. Magic and length have the same place in every version.
///
/// # Errors
/// Wrong magic, an impossible length, or too few bytes.
pub fn extent(bytes: &[u8]) -> Result<usize, WireError> {
    let length = words(bytes)?[2];
    if length > MAX_PAYLOAD {
        return Err(WireError::TooLarge(length));
    }
    Ok(HEADER + length as usize)
}

/// The header's four words, if they begin with the magic number.
fn words(bytes: &[u8]) -> Result<[u64; 4], WireError> {
    let Some(bytes) = bytes.first_chunk::<HEADER>() else {
        return Err(WireError::Truncated {
            have: bytes.len(),
            want: HEADER,
        });
    };
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut eight = [0; 8];
        eight.copy_from_slice(bytes);
        *word = u64::from_le_bytes(eight);
    }
    let magic = words[0] as u32;
    if magic != MAGIC {
        return Err(WireError::Magic(magic));
    }
    Ok(words)
}

/// Puts a header before `payload`.
pub fn seal(kind: Kind, check: u64, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER + payload.len());
    frame.extend_from_slice(&MAGIC.to_le_bytes());
    frame.extend_from_slice(&VERSION.to_le_bytes());
    frame.extend_from_slice(&(kind as u16).to_le_bytes());
    frame.extend_from_slice(&check.to_le_bytes());
    frame.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    frame.extend_from_slice(&xxh3_64(payload).to_le_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Checks a whole frame and returns its payload.
///
/// # Errors
/// Everything of [`Header::parse`], a payload of another length or checksum, or
/// another message than the one that is due.
pub fn open(frame: &[u8], kind: Kind, check: u64) -> Result<&[u8], WireError> {
    let header = Header::parse(frame)?;
    let payload = &frame[HEADER..];
    if payload.len() as u64 != header.length {
        return Err(WireError::Truncated {
            have: frame.len(),
            want: HEADER + header.length as usize,
        });
    }
    if (header.kind, header.check) != (kind, check) {
        return Err(WireError::Unexpected {
            got: header.kind,
            got_check: header.check,
            want: kind,
            want_check: check,
        });
    }
    let have = xxh3_64(payload);
    if have != header.checksum {
        return Err(WireError::Checksum {
            have,
            want: header.checksum,
        });
    }
    Ok(payload)
}
