//! Sticky sessions over replicas. Pure.
