//! Rollout and routing simulators. Pure.
