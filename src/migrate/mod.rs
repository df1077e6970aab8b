//! The migration protocol as a state machine over traits.
//!
//! `check` (load, return, plan) and then `round` (offer, reserve, transfer,
//! commit) read top to bottom in the order of the protocol; `precopy` may stand between
//! them. [`engine`] is what they ask of a serving engine, [`channel`] what they ask of the
//! KV path, [`policy`] how they come to a plan.

pub mod channel;
mod check;
pub mod engine;
pub mod kv_path;
pub mod pace;
pub mod planned;
pub mod policy;
mod precopy;
mod report;
mod round;

pub use check::Migrator;
pub use precopy::{Precopied, Precopy};
pub use report::{MoveResult, Report};

use crate::collective::control::ControlError;

/// Why a check cannot go on. The rollout must stop: nothing was activated or
/// thawed on a guess, so no sequence runs twice.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// An exchange failed as a whole.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A peer sent something that this rank cannot go on without.
    #[error("{who}: {why}")]
    Peer {
        /// The peer, in words.
        who: String,
        /// What was wrong with its message.
        why: String,
    },
    /// The ranks are not at the same step.
    #[error("ranks lost lockstep: rank {rank} is at step {theirs}, this rank at step {ours}")]
    LostLockstep {
        /// The peer.
        rank: u32,
        /// Its step.
        theirs: u64,
        /// Our step.
        ours: u64,
    },
    /// KV is still being copied in the background, and its blocks can be given to nobody.
    #[error("a copy of KV in the background does not end: {0}")]
    Background(String),
    /// The engine failed where nothing can be undone any more.
    #[error("after the commit, {action} failed: {why}")]
    AfterCommit {
        /// What was being done.
        action: &'static str,
        /// The engine's error.
        why: String,
    },
}
