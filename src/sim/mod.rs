//! Rollout and routing simulators. Pure.

pub mod routing;
