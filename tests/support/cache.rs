//! A KV cache on the device whose bytes the test knows.

use seqshift::device::{DeviceBuffer, Stream};
use seqshift::kv::{DType, Format, KvLayout, SubCache};

use super::{LONG, pattern};

/// A rank's cache: one buffer per sub-cache, with its own padding between blocks.
pub struct Cache {
    pub buffers: Vec<DeviceBuffer>,
    pub layout: KvLayout,
}

impl Cache {
    pub fn new(stream: &Stream, rank: u32, blocks: u64, lengths: &[u64], padding: u64) -> Self {
        let mut buffers = Vec::new();
        let layer = |(index, length): (usize, &u64)| {
            let stride = length + padding;
            let bytes = pattern(
                u64::from(rank) * 100 + index as u64,
                (blocks * stride) as usize,
            );
            let mut buffer = DeviceBuffer::new(stream.runtime(), bytes.len()).expect("memory");
            buffer
                .write(0, &bytes, stream, LONG)
                .expect("the copy is possible");
            let sub_cache = SubCache {
                base: buffer.as_ptr() as u64,
                extent: bytes.len() as u64,
                blocks,
                stride,
                length: *length,
                dtype: DType::Int8,
                format: Format::Nd,
            };
            buffers.push(buffer);
            vec![sub_cache]
        };
        let layers = lengths.iter().enumerate().map(layer).collect();
        let layout = KvLayout::new(layers).expect("the layout is possible");
        Self { buffers, layout }
    }

    /// The contents of all buffers.
    pub fn read(&self, stream: &Stream) -> Vec<Vec<u8>> {
        let read = |buffer: &DeviceBuffer| buffer.read(0, buffer.len(), stream, LONG);
        self.buffers
            .iter()
            .map(|buffer| read(buffer).expect("readable"))
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
