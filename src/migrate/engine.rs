//! What the protocol asks of a serving engine.

use crate::wire::manifest::{Manifest, SequenceKey};
use crate::wire::message::{Detail, Sync};

/// An error of the engine or its adapter, as text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EngineError(pub String);

/// Result of an engine call.
pub type Result<T> = std::result::Result<T, EngineError>;

/// Counts of one rank at a step boundary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Running sequences.
    pub running: u32,
    /// Waiting requests.
    pub waiting: u32,
    /// KV blocks that may be given away.
    pub free_kv_blocks: u32,
    /// The engine's limit of running sequences.
    pub max_num_seqs: u32,
    /// Outputs or aborts for other ranks are waiting here.
    pub has_sync: bool,
}

/// What lies ahead of a rank's running sequences.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Outlook {
    /// KV blocks of an average running sequence.
    pub blocks_per_sequence: f64,
    /// The most tokens that one of them may still generate.
    pub longest_remaining: Option<u32>,
}

/// A sequence at its source, by its place in the lists of [`Detail`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// Index in the running list.
    Running(u32),
    /// Index in the waiting list.
    Waiting(u32),
}

/// A sequence's state, read without changing anything.
#[derive(Debug, Clone)]
pub struct Captured {
    /// Everything but the KV.
    pub manifest: Manifest,
    /// Its KV blocks, in token order; only those that hold computed tokens.
    pub blocks: Vec<u32>,
}

/// What has become of a sequence since [`Engine::watch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    /// It still runs, in the blocks that it had; its full blocks may be more by now.
    Running {
        /// Where it is in the list of [`Engine::detail`].
        index: u32,
        /// Its full KV blocks, in token order.
        full: Vec<u32>,
    },
    /// It has finished, been aborted or lost its blocks; the text says which.
    Gone(String),
}

/// A serving engine at a step boundary. Calls come in the order of the
/// protocol; between [`Engine::detail`] and the end of a check nothing else
/// changes the engine.
pub trait Engine {
    /// Counts for the load record.
    ///
    /// # Errors
    /// Ends the check on all ranks.
    fn counts(&mut self) -> Result<Counts>;

    /// What the adaptive trigger wants to know.
    ///
    /// # Errors
    /// Nothing is known then.
    fn outlook(&mut self) -> Result<Outlook> {
        Ok(Outlook::default())
    }

    /// Per-sequence details; fixes the lists that [`Source`] points into.
    ///
    /// # Errors
    /// Ends the check on all ranks.
    fn detail(&mut self) -> Result<Detail>;

    /// Takes the outputs and aborts for other ranks: one [`Sync`] per rank.
    ///
    /// # Errors
    /// Nothing can be returned, which stops the rollout.
    fn take_sync(&mut self, ranks: u32) -> Result<Vec<Sync>>;

    /// Takes in what a peer returned or aborted.
    ///
    /// # Errors
    /// Stops the rollout.
    fn accept_sync(&mut self, sync: Sync) -> Result<()>;

    /// Step 3: reads a sequence's state. It stays frozen until [`Engine::forget`] or [`Engine::thaw`].
    ///
    /// # Errors
    /// The move is withdrawn.
    fn capture(&mut self, source: Source) -> Result<Captured>;

    /// Step 4: a slot and KV blocks for a sequence. Returns the blocks; those that
    /// [`Engine::prepare`] gave for the ticket come first, and are the sequence's now.
    ///
    /// # Errors
    /// The move is rejected with this reason.
    fn reserve(&mut self, manifest: &Manifest, ticket: Option<u32>) -> Result<Vec<u32>>;

    /// Step 6: puts the sequence in place, inactive.
    ///
    /// # Errors
    /// The move is undone.
    fn install(&mut self, key: SequenceKey) -> Result<()>;

    /// Step 6, committed: the sequence runs here from the next step on.
    ///
    /// # Errors
    /// Stops the rollout.
    fn activate(&mut self, key: SequenceKey) -> Result<()>;

    /// Step 6, undone: gives the slot and the blocks back.
    ///
    /// # Errors
    /// Stops the rollout.
    fn release(&mut self, key: SequenceKey) -> Result<()>;

    /// Step 6, committed: the sequence runs on rank `to` now.
    ///
    /// # Errors
    /// Stops the rollout.
    fn forget(&mut self, source: Source, to: u32) -> Result<()>;

    /// Step 6, undone: the sequence goes on as if nothing had happened.
    ///
    /// # Errors
    /// Stops the rollout.
    fn thaw(&mut self, source: Source) -> Result<()>;

    /// Before a copy in the background: the full KV blocks of a running sequence, which
    /// goes on running. The engine remembers it under the ticket.
    ///
    /// # Errors
    /// Nothing is copied in the background for this move.
    fn watch(&mut self, source: Source, ticket: u32) -> Result<Vec<u32>>;

    /// After [`Engine::detail`]: what has become of the sequence.
    ///
    /// # Errors
    /// The move is given up.
    fn watched(&mut self, ticket: u32) -> Result<Watched>;

    /// Holds so many KV blocks for a sequence to come, those already held for the ticket
    /// included. Returns all of them. They stay held, over any number of steps, until
    /// [`Engine::reserve`] or [`Engine::dismiss`] names the ticket.
    ///
    /// # Errors
    /// Nothing is copied in the background for this move.
    fn prepare(&mut self, ticket: u32, blocks: u32) -> Result<Vec<u32>>;

    /// Forgets a ticket, at either end: blocks that are still held for it are free. No copy
    /// is under way any more. A ticket that is not known is no error.
    ///
    /// # Errors
    /// Stops the rollout.
    fn dismiss(&mut self, ticket: u32) -> Result<()>;
}
