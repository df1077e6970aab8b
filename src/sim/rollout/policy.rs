//! What the group does about imbalance.

use serde::{Deserialize, Serialize};

/// A way to run the rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Policy {
    /// One graph of the largest size.
    Static,
    /// Several graphs, nothing moves.
    Gears,
    /// The published method: every 1000 steps counts are made even, whether or not
    /// this lowers the gear; free blocks and waiting requests are not looked at.
    Published,
    /// seqshift with the interval trigger.
    Interval,
    /// seqshift with the adaptive trigger.
    Adaptive,
    /// Every step in the lowest gear that the group can reach, and every waiting
    /// request where there is room, with free and instant moves: what a perfect
    /// trigger on a perfect network could reach. Like all of seqshift it moves
    /// nothing that does not lower the gear.
    Oracle,
    /// KV tokens are spread evenly in every step too, and all ranks share one queue and
    /// one KV cache. Reaching it would take moves that lower no gear. It is a bound below
    /// everything where nothing waits ([`Setup::bound_holds`](super::Setup::bound_holds)),
    /// else a reference only.
    Bound,
}

/// Steps between the checks of the published method.
pub(super) const PUBLISHED_INTERVAL: u32 = 1000;

impl Policy {
    /// All policies, from the least to the most that can be had.
    pub const ALL: [Self; 7] = [
        Self::Static,
        Self::Gears,
        Self::Published,
        Self::Interval,
        Self::Adaptive,
        Self::Oracle,
        Self::Bound,
    ];

    /// The name used in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Gears => "gears",
            Self::Published => "published",
            Self::Interval => "interval",
            Self::Adaptive => "adaptive",
            Self::Oracle => "oracle",
            Self::Bound => "bound",
        }
    }
}
