//! A KV cache on the device whose bytes the test knows.

use std::ops::Range;

use seqshift::device::{DeviceBuffer, Stream};
use seqshift::kv::{DType, Format, KvLayout, SubCache};

use super::{LONG, pattern};

/// A rank's cache, with its own padding between blocks.
pub struct Cache {
    pub buffers: Vec<DeviceBuffer>,
    /// Of each sub-cache: its buffer, and where in it.
    places: Vec<(usize, Range<usize>)>,
    pub layout: KvLayout,
}

impl Cache {
    /// One buffer per sub-cache.
    pub fn new(stream: &Stream, rank: u32, blocks: u64, lengths: &[u64], padding: u64) -> Self {
        Self::with(stream, rank, blocks, lengths, padding, false)
    }

    /// Neighbours of one length in one buffer, a layer each.
    pub fn stacked(stream: &Stream, rank: u32, blocks: u64, lengths: &[u64], padding: u64) -> Self {
        Self::with(stream, rank, blocks, lengths, padding, true)
    }

    fn with(
        stream: &Stream,
        rank: u32,
        blocks: u64,
        lengths: &[u64],
        padding: u64,
        stacked: bool,
    ) -> Self {
        let (mut buffers, mut places, mut layers) = (Vec::new(), Vec::new(), Vec::new());
        for layer in lengths.chunk_by(|a, b| stacked && a == b) {
            let stride = layer[0] + padding;
            let each = (blocks * stride) as usize;
            let seed = |index| u64::from(rank) * 100 + index as u64;
            let first = places.len();
            let parts = (0..layer.len()).map(|index| pattern(seed(first + index), each));
            let bytes = parts.collect::<Vec<_>>().concat();
            let mut buffer = DeviceBuffer::new(stream.runtime(), bytes.len()).expect("memory");
            buffer
                .write(0, &bytes, stream, LONG)
                .expect("the copy is possible");
            let sub_cache = |index: usize| SubCache {
                base: buffer.as_ptr() as u64 + (index * each) as u64,
                extent: (bytes.len() - index * each) as u64,
                blocks,
                stride,
                length: layer[0],
                dtype: DType::Int8,
                format: Format::Nd,
            };
            layers.push((0..layer.len()).map(sub_cache).collect());
            let place = |index| (buffers.len(), index * each..(index + 1) * each);
            places.extend((0..layer.len()).map(place));
            buffers.push(buffer);
        }
        let layout = KvLayout::new(layers).expect("the layout is possible");
        Self {
            buffers,
            places,
            layout,
        }
    }

    /// The contents of all sub-caches.
    pub fn read(&self, stream: &Stream) -> Vec<Vec<u8>> {
        let read = |(buffer, range): &(usize, Range<usize>)| {
            self.buffers[*buffer].read(range.start, range.len(), stream, LONG)
        };
        self.places
            .iter()
            .map(|place| read(place).expect("readable"))
            .collect()
    }

    /// What the blocks are, sub-cache after sub-cache.
    pub fn blocks(&self, contents: &[Vec<u8>], ids: &[u32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (cache, contents) in self.layout.sub_caches().iter().zip(contents) {
            for id in ids {
                let start = (u64::from(*id) * cache.stride) as usize;
                bytes.extend(&contents[start..start + cache.length as usize]);
            }
        }
        bytes
    }
}
