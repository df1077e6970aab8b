//! Multi-turn sessions over replicas with finite KV pools and prefix caches, placed by the router.
//!
//! A simulation answers what a routing policy costs and gains on a workload: [`workload`] makes the
//! sessions, [`replica`] is the model of one inference engine, [`cluster`] runs sessions against a
//! [`crate::route::Router`], [`study`] compares policies over seeds and suggests a margin,
//! [`presets`] names some studies.

pub mod cluster;
pub mod presets;
pub mod replica;
pub mod study;
pub mod workload;

pub use cluster::{Outcome, simulate};
pub use replica::ReplicaModel;
pub use study::{Study, StudyReport};
pub use workload::{Session, Turn, Workload};

/// A finite number that can be a key of a queue.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Finite(f64);

impl Eq for Finite {}

impl PartialOrd for Finite {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Finite {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}
