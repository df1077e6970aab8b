//! What a plan says.

use std::fmt;

/// Sequences that go from one rank to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// Source rank.
    pub from: u32,
    /// Destination rank.
    pub to: u32,
    /// How many sequences.
    pub count: u32,
    /// Which ones: indices into the source's `sequences` when KV moves (empty
    /// when the source gave only counts), else positions in its waiting queue.
    pub sequences: Vec<u32>,
    /// True for running sequences, whose KV moves; false for waiting requests.
    pub needs_kv: bool,
}

/// Why a plan is as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The group reaches a lower gear.
    Lowered,
    /// A waiting request gets a place that it would not have had at home.
    WaitingServed,
    /// No distribution of the sequences has a lower gear.
    AlreadyLowest,
    /// One has, but ranks with fewer sequences may run no more: `max_num_seqs` alone
    /// is in the way.
    BlockedByMaxNumSeqs,
    /// More free KV blocks would give a better plan.
    BlockedByKv,
    /// More movable sequences would give a better plan.
    BlockedByPins,
    /// The best plan saves less than the minimum gain.
    BelowMinimumGain,
    /// There is nobody to exchange with.
    SingleRank,
}

impl Reason {
    /// The name used in logs, metrics and Python.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lowered => "lowered",
            Self::WaitingServed => "waiting_served",
            Self::AlreadyLowest => "already_lowest",
            Self::BlockedByMaxNumSeqs => "blocked_by_max_num_seqs",
            Self::BlockedByKv => "blocked_by_kv",
            Self::BlockedByPins => "blocked_by_pins",
            Self::BelowMinimumGain => "below_minimum_gain",
            Self::SingleRank => "single_rank",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The moves of one rebalance check, empty when nothing is worth moving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Gear of the group if nothing moves (waiting requests that have room at
    /// home counted as running).
    pub gear_before: u32,
    /// Gear of the group after the moves.
    pub gear_after: u32,
    /// Lowest gear that counts and `max_num_seqs` alone would allow.
    pub lower_bound: u32,
    /// Why, in the order of [`Reason`].
    pub reasons: Vec<Reason>,
    /// Ordered by source, destination, and running before waiting.
    pub moves: Vec<Move>,
}

impl Plan {
    /// Whether nothing moves.
    pub fn is_empty(&self) -> bool {
        self.moves.is_empty()
    }

    /// Whether `reason` is among the reasons.
    pub fn has(&self, reason: Reason) -> bool {
        self.reasons.contains(&reason)
    }

    /// Number of sequences that move.
    pub fn moved(&self) -> u32 {
        self.moves.iter().map(|m| m.count).sum()
    }
}
