//! Safe HCCL communicator: all-gather, all-to-all-v, batched send/recv.

pub mod control;
