//! Rollout simulator: what moving sequences gains, before it is tried.
//!
//! A group of DP ranks decodes in lockstep. Nothing happens between two events (a
//! sequence finishes, a request is admitted or preempted, a check is due), so the
//! simulation goes from event to event and adds up the steps in between. Every
//! policy sees the same sequences.
//!
//! * [`Setup`]: group, workload, step time, transfer cost.
//! * [`simulate`]: one [`Policy`]; [`compare`]: several, with their gaps to the
//!   oracle (perfect gears) and to a bound (KV spread too).
//! * [`suggest_gears`]: the gears that a length distribution wants.

mod advisor;
mod cluster;
mod compare;
mod error;
mod lengths;
mod policy;
mod published;
mod run;
mod setup;
mod timeline;

pub use advisor::{GearCost, Suggestion, suggest_gears};
pub use compare::{Comparison, PolicyResult, compare};
pub use error::SimError;
pub use lengths::{Lengths, PRESETS, preset};
pub use policy::Policy;
pub use published::{Published, deepseek_v3, qwen3_235b};
pub use run::{RunResult, simulate};
pub use setup::{Setup, StepModel, Transfer};
pub use timeline::{Sample, Timeline};
