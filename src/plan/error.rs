//! What can be wrong with the input of a plan.

use thiserror::Error;

/// Why no plan can be computed from an input. Every message names the field,
/// the value and what is allowed.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No rank was given.
    #[error("loads: empty; give one entry per rank of the group")]
    NoRanks,
    /// Two entries have the same rank.
    #[error("rank: {rank} is given twice; every rank has one entry")]
    DuplicateRank {
        /// The rank in question.
        rank: u32,
    },
    /// A gear of zero sequences.
    #[error("graph_batch_sizes: 0 is not a batch size; give integers of at least 1")]
    ZeroGear,
    /// More running sequences are described than run.
    #[error("sequences: rank {rank} lists {listed} sequences but has running={running}")]
    TooManySequences {
        /// The rank in question.
        rank: u32,
        /// Entries given.
        listed: usize,
        /// Running sequences of that rank.
        running: u32,
    },
    /// The blocks of waiting requests do not match their number.
    #[error("waiting_kv_blocks: rank {rank} lists {listed} values but has waiting={waiting}")]
    WaitingBlocks {
        /// The rank in question.
        rank: u32,
        /// Entries given.
        listed: usize,
        /// Waiting requests of that rank.
        waiting: u32,
    },
    /// The minimum gain is not a fraction.
    #[error("minimum_gain: {value} is not in 0..1; it is a fraction of the rollout time")]
    MinimumGain {
        /// The value given.
        value: f64,
    },
}
