//! Ranks and TP shards as threads over real meshes, with an honest model of an engine and of its
//! KV memory.

pub mod cluster;
pub mod engine;
pub mod faults;
pub mod kv;
pub mod policy;
