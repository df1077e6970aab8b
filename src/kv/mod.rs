//! KV-cache layout, gather and scatter of blocks, and their exchange between ranks.

mod blocks;
pub mod cost;
mod dtype;
mod exchange;
pub mod forecast;
mod items;
mod layout;
mod parts;
mod registration;
mod runs;
pub mod schedule;
mod staging;
mod strategy;
mod transfer;

pub use blocks::{BlockCopier, BlockPart, CopyCounts, Direction};
pub use cost::{Strategy, UnknownStrategy};
pub use dtype::{DType, Format};
pub use layout::{
    KvLayout, LayoutDescription, LayoutDifference, LayoutError, SubCache, SubCacheDescription,
};
pub use registration::register;
pub use schedule::Move;
pub use transfer::{
    ExchangeReport, MoveOutcome, SelfTest, Timings, Transfer, TransferError, TransferOptions,
};
