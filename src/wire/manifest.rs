//! What one moved sequence needs at its destination besides its KV.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Names a sequence across the group, also after several moves and when its
/// request id is used again at the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SequenceKey {
    /// DP rank that the request was added on.
    pub origin: u32,
    /// Counts the origin's moved requests; never used twice by one engine.
    pub serial: u64,
}

/// Token ids, carried as little-endian u32, so that a decoder never allocates
/// more than the frame holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens(pub Vec<u32>);

impl Serialize for Tokens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes: Vec<u8> = self.0.iter().flat_map(|t| t.to_le_bytes()).collect();
        serializer.serialize_bytes(&bytes)
    }
}

impl<'de> Deserialize<'de> for Tokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = <&[u8]>::deserialize(deserializer)?;
        let chunks = bytes.chunks_exact(4);
        if !chunks.remainder().is_empty() {
            return Err(serde::de::Error::custom("token bytes are no multiple of 4"));
        }
        Ok(Self(
            chunks
                .map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]))
                .collect(),
        ))
    }
}

/// Everything but the KV. Field meanings are those of the engine's request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Who this is.
    pub key: SequenceKey,
    /// The request id at the origin.
    pub request_id: String,
    /// Moves so far.
    pub hops: u32,
    /// Prompt.
    pub prompt: Tokens,
    /// Every token generated so far.
    pub output: Tokens,
    /// The request's own sampling parameters, in the engine's own encoding
    /// (opaque here; the adapter decodes them into that one type only).
    pub sampling_params: Vec<u8>,
    /// End-of-sequence token, which can differ by LoRA.
    pub eos_token_id: Option<u32>,
    /// Salt of the prefix-cache hashes.
    pub cache_salt: Option<String>,
    /// Tokens whose KV is in the cache; 0 for a request that moves without KV,
    /// before its prefill or preempted.
    pub num_computed_tokens: u32,
    /// Prefix-cache hits counted at the first prefill; -1 before it.
    pub num_cached_tokens: i64,
    /// State of the seeded generator: opaque, as the device's runner gives it.
    pub generator_state: Option<Vec<u8>>,
    /// KV blocks that hold the computed tokens.
    pub kv_blocks: u32,
}

impl Manifest {
    /// Checks what can be checked without an engine.
    ///
    /// # Errors
    /// Names the field, the value and what it contradicts.
    pub fn validate(&self, block_size: u32) -> Result<(), String> {
        let tokens = self.prompt.0.len() + self.output.0.len();
        if self.prompt.0.is_empty() {
            return Err("prompt: no tokens".into());
        }
        if self.num_computed_tokens == 0 {
            if self.kv_blocks != 0 {
                return Err(format!(
                    "num_computed_tokens: 0 with {} KV blocks",
                    self.kv_blocks
                ));
            }
            return Ok(());
        }
        if self.num_computed_tokens as usize + 1 != tokens || self.output.0.is_empty() {
            return Err(format!(
                "num_computed_tokens: {} of {tokens} tokens; a decoding sequence has all but the last",
                self.num_computed_tokens
            ));
        }
        let blocks = self.num_computed_tokens.div_ceil(block_size);
        if self.kv_blocks != blocks {
            return Err(format!(
                "kv_blocks: {}, but {} computed tokens take {blocks} blocks of {block_size}",
                self.kv_blocks, self.num_computed_tokens
            ));
        }
        Ok(())
    }
}
