//! Safe HCCL communicator: all-gather, all-to-all-v, batched send/recv.

mod communicator;
pub mod control;
mod error;
mod farewell;
pub mod fault;
mod mesh;
mod root;

pub use communicator::{Breaker, Communicator, CommunicatorOptions, SendRecv};
pub use error::CollectiveError;
pub use root::RootInfo;
