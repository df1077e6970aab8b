//! What the protocol asks of the KV path.

use std::time::{Duration, Instant};

use crate::collective::control::Mesh;

/// The KV of one move, seen from this rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvMove {
    /// The other end.
    pub peer: u32,
    /// Blocks here, in token order.
    pub blocks: Vec<u32>,
}

/// What became of one move's KV.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KvOutcome {
    /// Digest of the bytes in their canonical order, if asked for.
    pub digest: Option<u64>,
    /// Why it failed here, if it did.
    pub error: Option<String>,
}

/// What became of a whole exchange, in the order of the moves given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KvReport {
    /// Moves sent.
    pub outbound: Vec<KvOutcome>,
    /// Moves received.
    pub inbound: Vec<KvOutcome>,
    /// Bytes sent from here.
    pub bytes: u64,
    /// The communicator must be made anew.
    pub broken: bool,
}

/// What became of an exchange in the background.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Background {
    /// Its outcomes.
    pub report: KvReport,
    /// How long it took.
    pub elapsed: Duration,
}

/// Moves KV between the ranks of a DP group.
pub trait KvChannel {
    /// Whether the communicator must be made anew.
    fn broken(&self) -> bool;

    /// Makes the communicator, together with all ranks of the group.
    ///
    /// # Errors
    /// Says what failed; the moves of this check that need KV then fail.
    fn restore(&mut self, control: &mut Mesh, deadline: Instant) -> Result<(), String>;

    /// Sends and receives. A failure of one move stays with that move where the
    /// transport allows it; nothing waits past the deadline.
    fn exchange(&mut self, outbound: &[KvMove], inbound: &[KvMove], deadline: Instant) -> KvReport;

    /// Bytes of one KV block over all layers.
    fn block_bytes(&self) -> u64;

    /// Fingerprint of what peers' caches must have in common; 0 without caches.
    fn layout(&self) -> u64;

    /// Begins an exchange that goes on in the background. Nothing else is asked of the
    /// channel until [`KvChannel::finish`] but [`KvChannel::broken`], which is false,
    /// [`KvChannel::layout`], [`KvChannel::copying`] and [`KvChannel::abandon`].
    ///
    /// # Errors
    /// There is no thread to be had. The exchange has been made before this returned, since the
    /// peers count on it; [`KvChannel::finish`] gives its outcome as it would otherwise.
    fn begin(
        &mut self,
        outbound: Vec<KvMove>,
        inbound: Vec<KvMove>,
        deadline: Instant,
    ) -> Result<(), String>;

    /// Lets the exchange in the background fail at once, and breaks the communicator: nobody will
    /// use either.
    fn abandon(&mut self);

    /// Whether the exchange in the background goes on.
    fn copying(&self) -> bool;

    /// Waits for its end, which its deadline bounds, and some seconds for what has failed
    /// to stop. Nothing touches the blocks afterwards. Without one it is empty.
    ///
    /// # Errors
    /// It cannot be stopped, so that its blocks can be given to nobody.
    fn finish(&mut self) -> Result<Background, String>;
}
