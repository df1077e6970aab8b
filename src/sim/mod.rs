//! Rollout and routing simulators. Pure.

pub mod rollout;
pub mod routing;
