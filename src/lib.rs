//! Moves unfinished sequences with their KV cache between the data-parallel
//! ranks of a vLLM group, so that the whole group can decode with a smaller
//! graph batch size ("gear"), and routes multi-turn sessions over replicas.
//!
//! Layers point inward: [`migrate`] uses [`plan`], [`wire`], [`kv`] and
//! [`collective`]; those use [`device`]; that uses [`ffi`]. `plan`, `wire`,
//! `route` and `sim` are pure: time and randomness are arguments.

pub mod collective;
pub mod device;
#[path = "../ffi/mod.rs"]
pub mod ffi;
pub mod kv;
pub mod migrate;
pub mod plan;
pub mod route;
pub mod sim;
pub mod telemetry;
pub mod wire;

#[cfg(feature = "python")]
mod python;
