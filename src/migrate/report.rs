//! What one check did.

use std::time::Duration;

use super::policy::{Decision, Flight};
use super::precopy::Precopied;
use crate::wire::message::Load;

/// What became of one move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveResult {
    /// The move.
    pub flight: Flight,
    /// None when it was committed.
    pub error: Option<String>,
    /// It failed before anything was reserved: a reject, not a fault.
    pub rejected: bool,
}

/// What one check did, as this rank saw it.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Every rank's load record.
    pub loads: Vec<Load>,
    /// The plan; without flights when there was none.
    pub decision: Decision,
    /// Every move of the group, in plan order; equal on all ranks.
    pub moves: Vec<MoveResult>,
    /// KV bytes sent from here.
    pub kv_bytes: u64,
    /// KV blocks sent from here or received here, whichever is more.
    pub kv_blocks: u32,
    /// Time spent in the KV exchange.
    pub kv_time: Duration,
    /// Results or aborts were exchanged.
    pub synced: bool,
    /// No KV can be sent: a communicator was needed and could not be made, or the ranks' caches
    /// differ. Equal on all ranks.
    pub kv_failed: bool,
    /// Why, as this rank saw it.
    pub kv_error: Option<String>,
    /// A rank's engine could not be read, so that nothing moved; equal on all ranks.
    pub unreadable: bool,
    /// KV is being copied in the background since this check: the next one is at this
    /// step, on all ranks.
    pub resume_at: Option<u64>,
    /// What a copy in the background, which this check has ended, came to.
    pub precopied: Precopied,
    /// Time from the moment all ranks had entered to the end.
    pub pause: Duration,
}

impl Report {
    /// Whether the ranks' caches have not all the same layout; equal on all ranks.
    pub(super) fn layouts_differ(&self) -> bool {
        self.loads
            .windows(2)
            .any(|pair| pair[0].layout != pair[1].layout)
    }

    /// Moves that were committed.
    pub fn committed(&self) -> usize {
        self.moves.iter().filter(|m| m.error.is_none()).count()
    }

    /// What `max_failures` counts: moves that failed after a reservation, a check that could
    /// send no KV, and an engine that could not be read.
    pub fn faults(&self) -> usize {
        let failed = |m: &&MoveResult| m.error.is_some() && !m.rejected;
        let moves = self.moves.iter().filter(failed).count();
        moves + usize::from(self.kv_failed) + usize::from(self.unreadable)
    }
}
