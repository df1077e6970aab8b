//! Sticky sessions over replicas that let go in time. Pure: randomness comes from a seed, and there
//! is no clock (time is counted in acquires).
//!
//! A [`Router`] places each turn of a conversation. The first turn goes to a least-loaded server
//! and pins the conversation there; later turns follow the pin for as long as the selected
//! [`policy`] says that it is worth it. Every choice comes with its [`Reason`].
//!
//! | operation | cost |
//! |---|---|
//! | [`Router::acquire`], [`Router::release`] | O(log distinct loads), whatever the number of servers and conversations |
//! | [`Router::add_server`] | O(log distinct loads) |
//! | [`Router::remove_server`] | O(servers) |
//! | [`Router::clear_pins`] | O(conversations) |

mod conversations;
mod loads;
pub mod policy;
mod retention;
mod router;
mod servers;

pub use policy::{POLICY_NAMES, Policy, PolicyOptions};
pub use router::{Decision, Request, Router, RouterConfig, ShadowCounts};

/// Errors of the router.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The pool is empty. A verl client recognises this text and tries again.
    #[error("No available servers in load balancer: the pool is empty, call add_servers() first")]
    NoServers,
    /// The server is not in the pool.
    #[error("unknown server {0:?}: it is not in the pool, call add_servers() first")]
    UnknownServer(String),
    /// An option has a value that it cannot have.
    #[error("{option}={value} is not valid: expected {expected}")]
    InvalidOption {
        /// Name of the option.
        option: &'static str,
        /// The value as given.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
}

/// Why a server was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The conversation had no pin: a least-loaded server.
    New,
    /// The pin was followed.
    Kept,
    /// The policy broke the pin: a least-loaded server, which is the new pin.
    Broken,
    /// The pinned server has left the pool since: a least-loaded server, which is the new pin.
    ServerGone,
    /// By hash of the id over the full pool, whatever the load.
    Deterministic,
}

impl Reason {
    /// All reasons, in the order of [`Router::reasons`].
    pub const ALL: [Self; 5] = [
        Self::New,
        Self::Kept,
        Self::Broken,
        Self::ServerGone,
        Self::Deterministic,
    ];

    /// The label used in counters and events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Kept => "kept",
            Self::Broken => "broken",
            Self::ServerGone => "server_gone",
            Self::Deterministic => "deterministic",
        }
    }
}
