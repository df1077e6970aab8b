//! Faults on the control channel, for tests: `SEQSHIFT_TEST_FAULT`.

use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::mesh::Tamper;
use crate::wire::frame::{HEADER, Kind};

/// The environment variable that [`Fault::from_env`] reads.
pub const VARIABLE: &str = "SEQSHIFT_TEST_FAULT";

/// Frames that were tampered with in this process.
static INJECTED: AtomicU64 = AtomicU64::new(0);

/// How many frames of this process were tampered with: a test asks whether its fault was met.
pub fn injected() -> u64 {
    INJECTED.load(Ordering::Relaxed)
}

/// What happens to a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A byte of the payload is changed (of the checksum, if there is no payload).
    Corrupt,
    /// Half of the payload is missing, and the length says so.
    Truncate,
    /// The frame claims another protocol version.
    Version,
    /// The magic number is wrong, which makes the rest of the connection unreadable.
    Header,
    /// The frame is sent twice.
    Duplicate,
    /// The frame sent before this one to the same peer is sent again first.
    Stale,
    /// The same, but behind this one: frames in another order.
    Reorder,
    /// The frame is not sent.
    Drop,
    /// This rank pauses first.
    Delay(Duration),
}

/// One fault on one rank of a mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The rank that sends.
    pub rank: u32,
    /// Which messages.
    pub kind: Kind,
    /// The receiver; None for every peer, each with a count of its own.
    pub peer: Option<u32>,
    /// What happens.
    pub action: Action,
    /// The first frame concerned, from 1, repeats counted too.
    pub nth: u64,
    /// How many in a row.
    pub times: u64,
}

impl FromStr for Fault {
    type Err = String;

    /// Parses `rank=1,kind=Offer,action=corrupt` with optional `nth`, `times`, `peer` and, for
    /// `action=delay`, `milliseconds`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (mut rank, mut kind, mut peer, mut action) = (None, None, None, None);
        let (mut nth, mut times, mut milliseconds) = (1, 1, 1000);
        for pair in text.split(',') {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("{VARIABLE}: {pair:?} is no key=value"))?;
            let number = || {
                value
                    .parse::<u64>()
                    .map_err(|_| format!("{VARIABLE}: {key}: {value:?} is no number"))
            };
            match key.trim() {
                "rank" => rank = Some(number()? as u32),
                "peer" => peer = Some(number()? as u32),
                "nth" => nth = number()?,
                "times" => times = number()?,
                "milliseconds" => milliseconds = number()?,
                "kind" => {
                    let named = |k: &Kind| k.to_string().eq_ignore_ascii_case(value);
                    let known = Kind::ALL.into_iter().find(named);
                    kind = Some(known.ok_or_else(|| unknown("kind", value, &Kind::ALL))?);
                }
                "action" => action = Some(value.to_string()),
                _ => return Err(format!("{VARIABLE}: unknown key {key:?}")),
            }
        }
        let action = action.ok_or_else(|| missing("action"))?;
        Ok(Self {
            rank: rank.ok_or_else(|| missing("rank"))?,
            kind: kind.ok_or_else(|| missing("kind"))?,
            peer,
            action: match action.as_str() {
                "corrupt" => Action::Corrupt,
                "truncate" => Action::Truncate,
                "version" => Action::Version,
                "header" => Action::Header,
                "duplicate" => Action::Duplicate,
                "stale" => Action::Stale,
                "reorder" => Action::Reorder,
                "drop" => Action::Drop,
                "delay" => Action::Delay(Duration::from_millis(milliseconds)),
                other => {
                    let all = "corrupt truncate version header duplicate stale reorder drop delay";
                    let all: Vec<&str> = all.split(' ').collect();
                    return Err(unknown("action", other, &all));
                }
            },
            nth,
            times,
        })
    }
}

fn missing(key: &str) -> String {
    format!("{VARIABLE}: {key} is missing")
}

fn unknown(key: &str, value: &str, known: &[impl std::fmt::Debug]) -> String {
    format!("{VARIABLE}: {key}: {value:?} is none of {known:?}")
}

impl Fault {
    /// The fault that the environment asks for, if any; warns in the log.
    ///
    /// # Errors
    /// Names the key and value that cannot be.
    pub fn from_env() -> Result<Option<Self>, String> {
        let Ok(text) = std::env::var(VARIABLE) else {
            return Ok(None);
        };
        let fault = text.parse()?;
        tracing::warn!(
            ?fault,
            "{VARIABLE} is set: control messages are tampered with"
        );
        Ok(Some(fault))
    }

    /// The [`Tamper`] for rank `rank`, if the fault is about that rank.
    pub fn on(self, rank: u32) -> Option<Box<dyn Tamper>> {
        let concerned = self.rank == rank;
        concerned.then(|| Box::new(Faulty::new(self)) as Box<dyn Tamper>)
    }
}

struct Faulty {
    fault: Fault,
    /// Per peer: frames of the kind so far, the last message, and the last answer to one.
    sent: Vec<(u64, [Vec<u8>; 2])>,
}

impl Faulty {
    fn new(fault: Fault) -> Self {
        Self {
            fault,
            sent: Vec::new(),
        }
    }

    fn apply(&self, mut frame: Vec<u8>, before: &[u8]) -> Vec<u8> {
        match self.fault.action {
            Action::Corrupt => {
                let last = frame.len() - 1;
                frame[last] ^= 0xff;
                frame
            }
            Action::Truncate => {
                let length = (frame.len() - HEADER) / 2;
                frame.truncate(HEADER + length);
                frame[16..24].copy_from_slice(&(length as u64).to_le_bytes());
                frame
            }
            Action::Version => {
                frame[4] ^= 0xff;
                frame
            }
            Action::Header => {
                frame[0] ^= 0xff;
                frame
            }
            Action::Duplicate => [frame.as_slice(), &frame].concat(),
            Action::Stale => [before, &frame].concat(),
            Action::Reorder => [frame.as_slice(), before].concat(),
            Action::Drop => Vec::new(),
            Action::Delay(time) => {
                std::thread::sleep(time);
                frame
            }
        }
    }
}

impl Tamper for Faulty {
    fn outgoing(&mut self, kind: Kind, peer: u32, frame: Vec<u8>) -> Vec<u8> {
        let at = peer as usize;
        if self.sent.len() <= at {
            self.sent.resize(at + 1, (0, [Vec::new(), Vec::new()]));
        }
        let answer = matches!(kind, Kind::Ack | Kind::Again | Kind::Refused);
        let last = &mut self.sent[at].1[usize::from(answer)];
        let before = std::mem::replace(last, frame.clone());
        let fault = &self.fault;
        if kind != fault.kind || fault.peer.is_some_and(|p| p != peer) {
            return frame;
        }
        self.sent[at].0 += 1;
        let count = self.sent[at].0;
        if (fault.nth..fault.nth.saturating_add(fault.times)).contains(&count) {
            INJECTED.fetch_add(1, Ordering::Relaxed);
            self.apply(frame, &before)
        } else {
            frame
        }
    }
}
