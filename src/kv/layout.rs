//! Where the blocks of a KV cache lie, and whether two ranks mean the same by a block.

use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{DType, Format};
use crate::ffi::SeqshiftBlocks;

/// One tensor of a layer's cache. Block `b` is the bytes
/// `[base + b * stride, base + b * stride + length)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubCache {
    /// Address of block 0, on the device.
    pub base: u64,
    /// Bytes from `base` to the end of the tensor's memory.
    pub extent: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes from one block to the next.
    pub stride: u64,
    /// Bytes of one block.
    pub length: u64,
    /// Element type.
    pub dtype: DType,
    /// Arrangement of a block's elements.
    pub format: Format,
}

impl SubCache {
    pub(super) fn raw(&self) -> SeqshiftBlocks {
        SeqshiftBlocks {
            base: std::ptr::with_exposed_provenance_mut(self.base as usize),
            blocks: self.blocks,
            stride: self.stride,
            length: self.length,
        }
    }

    /// Address of the end of the last block.
    pub(super) fn end(&self) -> u64 {
        self.base + (self.blocks - 1) * self.stride + self.length
    }

    /// Takes in what follows in the same memory, whole blocks apart; which block it begins at.
    fn take(&mut self, next: &Self) -> Option<u32> {
        let alike = (self.stride, self.length, self.dtype, self.format)
            == (next.stride, next.length, next.dtype, next.format);
        // Both have been checked: no sum here leaves the address space.
        let same_memory = next.base >= self.end() && next.end() <= self.base + self.extent;
        if !alike || !same_memory || self.stride < self.length {
            return None;
        }
        let distance = next.base - self.base;
        let first = u32::try_from(distance / self.stride).ok()?;
        let blocks = u64::from(first) + next.blocks;
        if !distance.is_multiple_of(self.stride) || blocks > u64::from(u32::MAX) {
            return None;
        }
        self.blocks = blocks;
        Some(first)
    }

    /// Names the field that is impossible.
    fn check(&self) -> Result<(), (&'static str, u64, String)> {
        let at_least_one = || "at least 1".to_owned();
        if self.base == 0 {
            return Err(("base", 0, "an address".into()));
        }
        if self.blocks == 0 {
            return Err(("blocks", 0, at_least_one()));
        }
        if self.blocks > u64::from(u32::MAX) {
            return Err(("blocks", self.blocks, format!("at most {}", u32::MAX)));
        }
        if self.length == 0 {
            return Err(("length", 0, at_least_one()));
        }
        if !self.length.is_multiple_of(self.dtype.size()) {
            let expected = format!("a multiple of {}'s {} bytes", self.dtype, self.dtype.size());
            return Err(("length", self.length, expected));
        }
        if self.blocks > 1 && self.stride < self.length {
            let expected = format!("at least the block length of {}", self.length);
            return Err(("stride", self.stride, expected));
        }
        let end = (self.blocks - 1)
            .checked_mul(self.stride)
            .and_then(|last| last.checked_add(self.length));
        match end {
            Some(end) if end <= self.extent => {}
            Some(end) => {
                let expected = format!("at least {end}, where the last block ends");
                return Err(("extent", self.extent, expected));
            }
            None => {
                let expected = "small enough for the blocks to fit into memory".into();
                return Err(("stride", self.stride, expected));
            }
        }
        if self.base.checked_add(self.extent).is_none() {
            return Err(("extent", self.extent, "within the address space".into()));
        }
        Ok(())
    }
}

/// A layout that no memory can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("layer {layer}, sub-cache {sub_cache}: {field} is {value}, but must be {expected}")]
pub struct LayoutError {
    /// Index of the layer.
    pub layer: usize,
    /// Index of the sub-cache in its layer.
    pub sub_cache: usize,
    /// The impossible field.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
    /// What would be possible.
    pub expected: String,
}

/// The KV cache of one rank: layers of sub-caches, any number of each. Block ids are the same in
/// all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvLayout {
    layers: Vec<usize>,
    sub_caches: Vec<SubCache>,
    stacks: Vec<SubCache>,
    /// Of each sub-cache: its stack, and its block 0 there.
    places: Vec<(usize, u32)>,
    blocks: u64,
    block_bytes: u64,
}

impl KvLayout {
    /// Checks every sub-cache against its tensor's extent.
    ///
    /// # Errors
    /// [`LayoutError`] names the first field that cannot be, with layer and sub-cache.
    pub fn new(layers: Vec<Vec<SubCache>>) -> Result<Self, LayoutError> {
        let mut block_bytes = 0_u64;
        for (layer, sub_caches) in layers.iter().enumerate() {
            for (index, sub_cache) in sub_caches.iter().enumerate() {
                let error = |(field, value, expected)| LayoutError {
                    layer,
                    sub_cache: index,
                    field,
                    value,
                    expected,
                };
                sub_cache.check().map_err(error)?;
                block_bytes = block_bytes.checked_add(sub_cache.length).ok_or_else(|| {
                    error((
                        "length",
                        sub_cache.length,
                        "small enough to be added up".into(),
                    ))
                })?;
            }
        }
        let lengths = layers.iter().map(Vec::len).collect();
        let sub_caches: Vec<_> = layers.into_iter().flatten().collect();
        let (stacks, places) = stacks(&sub_caches);
        Ok(Self {
            stacks,
            places,
            layers: lengths,
            blocks: sub_caches
                .iter()
                .map(|cache| cache.blocks)
                .min()
                .unwrap_or(0),
            sub_caches,
            block_bytes,
        })
    }

    /// All sub-caches, layer by layer: the canonical order.
    pub fn sub_caches(&self) -> &[SubCache] {
        &self.sub_caches
    }

    /// The sub-caches, those that lie in one memory, whole blocks apart, as one: keys and values of a
    /// stacked tensor.
    pub(super) fn stacks(&self) -> &[SubCache] {
        &self.stacks
    }

    /// The stack that a sub-cache is part of, and which of its blocks is the sub-cache's block 0.
    pub(super) fn place(&self, sub_cache: usize) -> (usize, u32) {
        self.places[sub_cache]
    }

    /// Number of blocks that all sub-caches have.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Bytes of one block, over all layers.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// The first id that is no block of this cache.
    pub fn missing(&self, ids: &[u32]) -> Option<u32> {
        ids.iter().copied().find(|id| u64::from(*id) >= self.blocks)
    }

    /// What a peer needs to know.
    pub fn description(&self) -> LayoutDescription {
        let mut rest = self.sub_caches.iter();
        let layers = self.layers.iter().map(|count| {
            let describe = |cache: &SubCache| SubCacheDescription {
                length: cache.length,
                dtype: cache.dtype,
                format: cache.format,
            };
            rest.by_ref().take(*count).map(describe).collect()
        });
        LayoutDescription {
            layers: layers.collect(),
        }
    }
}

/// Neighbouring sub-caches as one wherever they can be; of each its stack, and its block 0 there.
fn stacks(sub_caches: &[SubCache]) -> (Vec<SubCache>, Vec<(usize, u32)>) {
    let mut stacks: Vec<SubCache> = Vec::new();
    let mut places = Vec::with_capacity(sub_caches.len());
    for cache in sub_caches {
        let first = stacks.last_mut().and_then(|stack| stack.take(cache));
        if first.is_none() {
            stacks.push(cache.clone());
        }
        places.push((stacks.len() - 1, first.unwrap_or_default()));
    }
    (stacks, places)
}

/// What two ranks must have in common. Addresses, strides and numbers of blocks may differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutDescription {
    /// The sub-caches of each layer.
    pub layers: Vec<Vec<SubCacheDescription>>,
}

/// What a block of a sub-cache is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubCacheDescription {
    /// Bytes of one block.
    pub length: u64,
    /// Element type.
    pub dtype: DType,
    /// Arrangement of a block's elements.
    pub format: Format,
}

/// The first field in which two layouts differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutDifference {
    /// Which field, of which layer and sub-cache.
    pub field: String,
    /// Its value here.
    pub ours: String,
    /// Its value at the peer.
    pub theirs: String,
}

impl fmt::Display for LayoutDifference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            field,
            ours,
            theirs,
        } = self;
        write!(
            formatter,
            "{field} is {ours} here, but {theirs} at the peer"
        )
    }
}

impl LayoutDescription {
    /// The same number for equal descriptions.
    pub fn fingerprint(&self) -> u64 {
        // Writing to memory cannot fail; an empty text would still only compare as different.
        xxh3_64(&postcard::to_stdvec(self).unwrap_or_default())
    }

    /// The first field in which a peer's layout differs from this one.
    pub fn difference(&self, theirs: &Self) -> Option<LayoutDifference> {
        fn differ(field: String, ours: &dyn ToString, theirs: &dyn ToString) -> LayoutDifference {
            let (ours, theirs) = (ours.to_string(), theirs.to_string());
            LayoutDifference {
                field,
                ours,
                theirs,
            }
        }
        let (count, their_count) = (self.layers.len(), theirs.layers.len());
        if count != their_count {
            return Some(differ("the number of layers".into(), &count, &their_count));
        }
        for (layer, (ours, theirs)) in self.layers.iter().zip(&theirs.layers).enumerate() {
            if ours.len() != theirs.len() {
                let field = format!("the number of sub-caches of layer {layer}");
                return Some(differ(field, &ours.len(), &theirs.len()));
            }
            for (index, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
                let field = |name| format!("{name} of layer {layer}, sub-cache {index},");
                if ours.length != theirs.length {
                    return Some(differ(
                        field("the block length"),
                        &ours.length,
                        &theirs.length,
                    ));
                }
                if ours.dtype != theirs.dtype {
                    return Some(differ(field("the dtype"), &ours.dtype, &theirs.dtype));
                }
                if ours.format != theirs.format {
                    return Some(differ(field("the format"), &ours.format, &theirs.format));
                }
            }
        }
        None
    }
}
