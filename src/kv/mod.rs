//! KV-cache layout, gather and scatter of blocks, and their exchange between ranks.

mod blocks;
mod dtype;
mod exchange;
mod layout;
mod registration;
pub mod schedule;
mod staging;
mod transfer;

pub use blocks::{BlockCopier, BlockPart, CopyCounts, Direction};
pub use dtype::{DType, Format};
pub use layout::{
    KvLayout, LayoutDescription, LayoutDifference, LayoutError, SubCache, SubCacheDescription,
};
pub use registration::register;
pub use schedule::Move;
pub use transfer::{
    ExchangeReport, MoveOutcome, SelfTest, Timings, Transfer, TransferError, TransferOptions,
};
