//! The messages of the protocol, in the order in which they are sent.

use serde::{Deserialize, Serialize};

use super::list::{list, optional_list};
use super::manifest::{Manifest, SequenceKey};

/// Step 1, every check: what a rank says of itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Engine steps since the rollout began; differs only when ranks lost lockstep.
    pub step: u64,
    /// Running sequences.
    pub running: u32,
    /// Waiting requests.
    pub waiting: u32,
    /// KV blocks that may be given away.
    pub free_kv_blocks: u32,
    /// The engine's limit of running sequences.
    pub max_num_seqs: u32,
    /// The engine could be read; otherwise the check ends here on all ranks.
    pub healthy: bool,
    /// Outputs or aborts for other ranks are waiting here.
    pub has_sync: bool,
    /// The KV communicator must be made anew before KV can be sent.
    pub communicator_broken: bool,
    /// KV is still being copied in the background.
    pub copying: bool,
    /// Fingerprint of what peers' KV caches must share; 0 without caches. Where it differs, the
    /// ranks compare the layouts themselves, and no KV is sent.
    pub layout: u64,
}

/// Step 2: one running sequence, in the order of the rank's running list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceDetail {
    /// Who it is, once it has moved at least once.
    pub key: Option<SequenceKey>,
    /// KV blocks of its computed tokens.
    pub kv_blocks: u32,
    /// Whether its state can be carried.
    pub movable: bool,
}

/// Step 2: what the planner needs beyond the counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detail {
    /// Running sequences.
    #[serde(deserialize_with = "list")]
    pub running: Vec<SequenceDetail>,
    /// Prompt blocks of each waiting request that may move, in queue order.
    #[serde(deserialize_with = "list")]
    pub waiting_blocks: Vec<u32>,
    /// Prompt blocks of each waiting request that may not move, in queue order.
    #[serde(deserialize_with = "list")]
    pub pinned_waiting_blocks: Vec<u32>,
    /// KV blocks that may be given away now.
    pub free_kv_blocks: u32,
    /// The engine could be read; otherwise the check ends here on all ranks.
    pub healthy: bool,
    /// There is a KV communicator; otherwise the check ends here on all ranks, too.
    pub kv_ready: bool,
    /// What the rank has measured.
    pub speeds: Speeds,
    /// What has become of the sequences whose KV was copied from here in the background,
    /// in plan order.
    #[serde(deserialize_with = "list")]
    pub standing: Vec<Standing>,
}

/// Step 2: what decides whether KV is copied in the background.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Speeds {
    /// Nanoseconds of a decode step.
    pub step_nanos: Option<u64>,
    /// Nanoseconds per KV block sent or received.
    pub block_nanos: Option<u64>,
    /// The most tokens that a running sequence may still generate.
    pub remaining: Option<u32>,
}

/// Step 2: what has become of a sequence since its KV was copied in the background.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// It still runs, with what was copied: its index in the running list.
    Running(u32),
    /// It does not, and why.
    Gone(String),
}

/// Step 3: one entry per move from this rank to the receiver, in plan order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Offer {
    /// The sequence's state, and how many of its KV blocks the source has copied already.
    Manifest(Box<Manifest>, u32),
    /// Its state could not be captured.
    Withdrawn(String),
}

/// Step 4: one entry per offer, in the same order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// A slot and KV blocks are reserved; so many of them are filled already, at both ends.
    Accept(u32),
    /// Not taken, and why.
    Reject(String),
}

/// Step 6: what one rank knows of one move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveOutcome {
    /// Index in the plan's flat list of moves.
    pub index: u32,
    /// Digest of the KV sent or received.
    pub digest: Option<u64>,
    /// Why it failed here, if it did.
    pub error: Option<String>,
    /// It failed before anything was reserved.
    pub rejected: bool,
}

/// Step 6: everything that one rank knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The moves that this rank sends or receives.
    #[serde(deserialize_with = "list")]
    pub moves: Vec<MoveOutcome>,
    /// The KV communicator must be made anew.
    pub communicator_broken: bool,
}

/// One generated token on its way to the origin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenOutput {
    /// The token ids of one step (one, without speculation).
    #[serde(deserialize_with = "list")]
    pub token_ids: Vec<u32>,
    /// Log-probability rows, if asked for: one per token.
    #[serde(deserialize_with = "optional_list")]
    pub logprobs: Option<Vec<LogprobRow>>,
    /// Set on the last one, unless a stop string ended it: the origin finds that itself.
    pub finish: Option<Box<Finish>>,
    /// Prefix-cache hits of the request.
    pub num_cached_tokens: i64,
}

/// Log probabilities at one position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogprobRow {
    /// Token ids, the sampled one first.
    #[serde(deserialize_with = "list")]
    pub token_ids: Vec<i64>,
    /// Their log probabilities.
    #[serde(deserialize_with = "list")]
    pub values: Vec<f64>,
    /// Rank of the sampled token.
    pub sampled_rank: i64,
}

/// Why a sequence ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finish {
    /// The engine's name of the reason.
    pub reason: String,
    /// The stop token, where that was the reason.
    pub stop_token: Option<i64>,
}

/// Step 7: outputs of one sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Return {
    /// Whose they are.
    pub key: SequenceKey,
    /// In the order of generation.
    #[serde(deserialize_with = "list")]
    pub outputs: Vec<TokenOutput>,
    /// The sequence runs no more; its origin forgets the move.
    pub done: bool,
}

/// Outputs for their origin, and aborts for whoever runs the sequence.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sync {
    /// Outputs of the receiver's own requests.
    #[serde(deserialize_with = "list")]
    pub returns: Vec<Return>,
    /// Sequences that their origin has aborted.
    #[serde(deserialize_with = "list")]
    pub aborts: Vec<SequenceKey>,
}

/// Among TP shards: what one shard knows of one item.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// Why it failed there, if it did.
    pub error: Option<String>,
    /// It failed before anything was reserved.
    pub rejected: bool,
}

/// Among TP shards: which of a list of things are well on this shard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardVotes {
    /// What the shards must share before they act: a plan's digest, or flags.
    pub plan: u64,
    /// One vote per item.
    #[serde(deserialize_with = "list")]
    pub votes: Vec<Vote>,
}

/// What one rank has measured, for the adaptive trigger.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// (gear, seconds per step).
    #[serde(deserialize_with = "list")]
    pub step_seconds: Vec<(u32, f64)>,
    /// Seconds of a check with moves, without the KV.
    pub fixed_seconds: Option<f64>,
    /// Seconds per KV block.
    pub seconds_per_block: Option<f64>,
    /// KV blocks of an average running sequence.
    pub blocks_per_sequence: f64,
    /// The most tokens that a running sequence may still generate.
    pub longest_remaining: Option<u32>,
}

/// What a rank brings to a new KV communicator. `L` describes the layout of its KV caches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meeting<L> {
    /// From rank 0, where the ranks meet; empty when it could not be made.
    pub root: Vec<u8>,
    /// None without KV caches.
    pub layout: Option<L>,
}
