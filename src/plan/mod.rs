//! Gears, group load, planner and trigger.
//!
//! Everything here is pure: the same input gives the same output on every rank
//! and every TP shard, whatever the order in which ranks are listed. Clocks,
//! request ids and collectives belong to the callers.

mod error;
mod fill;
mod gears;
mod group;
mod load;
mod loss;
mod outcome;
mod packing;
mod planner;
mod precopy;
mod rounds;
mod shared;
mod shift;
mod state;
mod steps;
mod trigger;
mod unblock;
mod waiting;

pub use error::PlanError;
pub use gears::Gears;
pub use load::{RankLoad, SequenceLoad};
pub use outcome::{Move, Plan, Reason};
pub use planner::{Options, plan};
pub use precopy::Background;
#[cfg(test)]
pub(crate) use shared::counts;
pub use shared::{Measured, RankCount, Shared};
pub use steps::StepTimes;
pub use trigger::{Cause, FIRST_INTERVAL, Mode, Outcome, PAYBACK, Trigger};

#[cfg(test)]
mod answers;
