//! Raw layer: generated bindings of the shim header and the run-time symbol table.
//!
//! Nothing is linked against CANN. [`Symbols::load`] finds `libascendcl.so` and `libhccl.so` at run
//! time and fills [`SeqshiftSymbols`], the table that the header declares; the C shim gets a
//! pointer to it and looks nothing up.

#[rustfmt::skip]
#[allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
mod bindings;
#[cfg(feature = "mock-core")]
pub mod mock_core;
mod symbols;

pub use bindings::*;
pub use symbols::{Attempt, LibraryOptions, LoadError, Symbols};
