//! What can be wrong with a simulation.

use thiserror::Error;

/// Why a simulation cannot run. Messages name the field, the value and what is
/// allowed.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum SimError {
    /// A field has an impossible value.
    #[error("{field} = {value}: {problem}")]
    Invalid {
        /// Name of the field.
        field: &'static str,
        /// The value given.
        value: String,
        /// What is allowed.
        problem: String,
    },
    /// A sequence is larger than all KV blocks of a rank.
    #[error(
        "kv_capacity_tokens = {capacity}: a sequence of {tokens} tokens can never run; \
         give at least that many"
    )]
    NeverFits {
        /// Tokens of the sequence, prompt included.
        tokens: u64,
        /// Tokens of the KV cache of a rank.
        capacity: u64,
    },
}

impl SimError {
    pub(super) fn invalid(
        field: &'static str,
        value: impl ToString,
        problem: impl Into<String>,
    ) -> Self {
        Self::Invalid {
            field,
            value: value.to_string(),
            problem: problem.into(),
        }
    }
}
