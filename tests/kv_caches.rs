//! Contract: every cache that vLLM's CPU backend and vllm-ascend 0.9.1 to 0.23.0 make can be
//! described, is held against its tensor's real extent, and moves byte for byte by every strategy;
//! ends that mean different things by a block name the field in which they differ.

mod support;

use seqshift::device::{DeviceBuffer, Stream};
use seqshift::kv::{
    BlockCopier, BlockPart, DType, Direction, Format, KvLayout, Strategy, SubCache,
};
use support::fault::Faults;
use support::{LONG, pattern, runtime};

/// Tokens of a block, as NPUs have it.
const TOKENS: u64 = 128;
const KIB: u64 = 1 << 10;

/// One tensor: where it begins in which allocation, and its blocks.
#[derive(Clone, Debug)]
struct Tensor {
    allocation: usize,
    offset: u64,
    stride: u64,
    length: u64,
    dtype: DType,
    format: Format,
}

/// A cache of `blocks` blocks: allocations, and layers of tensors in them.
#[derive(Clone, Debug, Default)]
struct Shape {
    name: &'static str,
    blocks: u64,
    allocations: Vec<u64>,
    layers: Vec<Vec<Tensor>>,
}

impl Shape {
    fn new(name: &'static str, blocks: u64) -> Self {
        Self {
            name,
            blocks,
            ..Self::default()
        }
    }

    /// A tensor of its own, of so many elements per token, contiguous.
    fn own(&mut self, per_token: u64, dtype: DType) -> Tensor {
        let length = TOKENS * per_token * dtype.size();
        self.allocations.push(self.blocks * length);
        self.view(0, length, length, dtype)
    }

    /// A view of the last allocation.
    fn view(&self, offset: u64, stride: u64, length: u64, dtype: DType) -> Tensor {
        Tensor {
            allocation: self.allocations.len() - 1,
            offset,
            stride,
            length,
            dtype,
            format: Format::Nd,
        }
    }

    /// Layers of contiguous tensors, each of its own, given as (elements per token, type).
    fn layers(name: &'static str, blocks: u64, layers: &[&[(u64, DType)]]) -> Self {
        let mut shape = Self::new(name, blocks);
        for tensors in layers {
            let layer = tensors.iter().map(|(per, dtype)| shape.own(*per, *dtype));
            let layer = layer.collect();
            shape.layers.push(layer);
        }
        shape
    }
}

/// Keys and values of one head of 128 in blocks of 128 tokens, and so on, by origin.
fn shapes(blocks: u64) -> Vec<Shape> {
    use DType::{BFloat16, Float8E4M3, Float16, Float32, Int8};
    let mut all = Vec::new();
    let plain = |name, layers: &[&[(u64, DType)]]| Shape::layers(name, blocks, layers);
    for (name, dtype) in [
        ("keys and values, bf16", BFloat16),
        ("keys and values, fp16", Float16),
        ("keys and values, fp32", Float32),
        ("keys and values, int8 (C8)", Int8),
        ("keys and values, fp8 (A5)", Float8E4M3),
    ] {
        all.push(plain(name, &[&[(128, dtype), (128, dtype)][..]; 2]));
    }
    let values = (192, BFloat16);
    all.push(plain(
        "values of another head size",
        &[&[(128, BFloat16), values]],
    ));
    let mla = [(512, BFloat16), (64, BFloat16)];
    all.push(plain("MLA: nope and rope", &[&mla[..]; 2]));
    let sfa = [mla[0], mla[1], (128, BFloat16)];
    all.push(plain(
        "sparse attention: nope, rope, indexer",
        &[&sfa[..]; 2],
    ));
    let one = [(512, Int8)];
    let two = [(512, Int8), (128, Int8)];
    all.push(plain(
        "layers that differ: 1 to 3 tensors",
        &[&one, &two, &sfa],
    ));
    all.push(plain(
        "fa_quant: int8 nope, bf16 rope",
        &[&[(512, Int8), (64, BFloat16)]],
    ));

    // Over-allocated so that the tensor begins at a multiple of 2 MiB (0.9.1).
    let mut aligned = Shape::new("aligned to 2 MiB", blocks);
    let mut layer = Vec::new();
    for _ in 0..2 {
        aligned.allocations.push((2 << 20) + blocks * 32 * KIB);
        layer.push(aligned.view(2 << 20, 32 * KIB, 32 * KIB, BFloat16));
    }
    aligned.layers.push(layer);
    all.push(aligned);

    // vLLM's CPU backend: [2, blocks, ...].
    let mut stacked = Shape::new("one stacked tensor", blocks);
    stacked.allocations.push(2 * blocks * 32 * KIB);
    let half = |kind| stacked.view(kind * blocks * 32 * KIB, 32 * KIB, 32 * KIB, BFloat16);
    stacked.layers = vec![vec![half(0), half(1)]];
    all.push(stacked);

    // Indexer of int8 and its scale in one storage (0.18 and 0.23, C8).
    let mut scaled = Shape::layers("indexer with scale", blocks, &[&mla]);
    let indexer = TOKENS * 128;
    let scale = TOKENS * 2;
    scaled.allocations.push(blocks * (indexer + scale));
    let tail = [
        scaled.view(0, indexer, indexer, Int8),
        scaled.view(blocks * indexer, scale, scale, Float16),
    ];
    scaled.layers[0].extend(tail);
    all.push(scaled);

    // Convolution and state, carved one after the other from one raw buffer.
    let mut mamba = Shape::new("mamba: convolution and state", blocks);
    let (conv, ssm) = (6 * KIB, 64 * KIB);
    mamba.allocations.push(blocks * (conv + ssm));
    mamba.layers = vec![vec![
        mamba.view(0, conv, conv, BFloat16),
        mamba.view(blocks * conv, ssm, ssm, Float32),
    ]];
    all.push(mamba);

    // One raw buffer for a mamba and an attention layer: [convolution, padded][k | ssm][v | pad].
    let mut hybrid = Shape::new("hybrid: attention and mamba share a buffer", blocks);
    hybrid.allocations.push(blocks * (8 + 32 + 32) * KIB);
    let at = |row: u64| blocks * row * KIB;
    hybrid.layers = vec![
        vec![
            hybrid.view(0, 8 * KIB, 6 * KIB, BFloat16),
            hybrid.view(at(8), 32 * KIB, 32 * KIB, Float32),
        ],
        vec![
            hybrid.view(at(8), 32 * KIB, 32 * KIB, BFloat16),
            hybrid.view(at(40), 32 * KIB, 32 * KIB, BFloat16),
        ],
    ];
    all.push(hybrid);

    // Compressed layers (0.23): views of parts of each page, the page being the stride.
    let mut pages = Shape::new("views of the pages of one buffer", blocks);
    let page = 40 * KIB;
    pages.allocations.push(blocks * page);
    let part = |offset, length, dtype| pages.view(offset * KIB, page, length * KIB, dtype);
    pages.layers = vec![
        vec![part(0, 32, BFloat16), part(32, 4, Int8)],
        vec![part(36, 3, Float16)],
    ];
    all.push(pages);

    let mut padded = Shape::new("padded pages (cache_only)", blocks);
    padded.allocations.push(blocks * 33 * KIB);
    padded.layers = vec![vec![padded.view(0, 33 * KIB, 32 * KIB + 64, BFloat16)]];
    all.push(padded);

    // Blocks of the manager that are several of the kernel, and a replicated indexer.
    let split = [(2 * 128, BFloat16), (2 * 128, BFloat16), (4 * 128, Int8)];
    all.push(plain("several kernel blocks per block", &[&split]));

    let mut nz = Shape::layers("NZ: opaque blocks", blocks, &[&mla]);
    for tensor in &mut nz.layers[0] {
        tensor.format = Format::FractalNz;
    }
    all.push(nz);
    all
}

/// A shape in device memory.
struct Cache {
    buffers: Vec<DeviceBuffer>,
    layers: Vec<Vec<SubCache>>,
    /// The allocation of each sub-cache, in canonical order.
    places: Vec<Tensor>,
}

impl Cache {
    fn new(stream: &Stream, seed: u64, shape: &Shape) -> Self {
        let buffer = |(index, bytes): (usize, &u64)| {
            let mut buffer =
                DeviceBuffer::new(stream.runtime(), *bytes as usize).expect("there is room");
            let content = pattern(seed + index as u64, *bytes as usize);
            buffer
                .write(0, &content, stream, LONG)
                .expect("it is written");
            buffer
        };
        let buffers: Vec<_> = shape.allocations.iter().enumerate().map(buffer).collect();
        let sub_cache = |tensor: &Tensor| SubCache {
            base: buffers[tensor.allocation].as_ptr() as u64 + tensor.offset,
            extent: shape.allocations[tensor.allocation] - tensor.offset,
            blocks: shape.blocks,
            stride: tensor.stride,
            length: tensor.length,
            dtype: tensor.dtype,
            format: tensor.format,
        };
        let layers = shape.layers.iter();
        let layers = layers.map(|layer| layer.iter().map(sub_cache).collect());
        Self {
            layers: layers.collect(),
            places: shape.layers.concat(),
            buffers,
        }
    }

    fn layout(&self) -> KvLayout {
        KvLayout::new(self.layers.clone()).expect("it is possible")
    }

    fn read(&self, stream: &Stream) -> Vec<Vec<u8>> {
        let read = |buffer: &DeviceBuffer| buffer.read(0, buffer.len(), stream, LONG);
        let all = self.buffers.iter();
        all.map(|buffer| read(buffer).expect("it can be read"))
            .collect()
    }
}

/// Moves blocks through staging memory, sub-cache after sub-cache, and compares everything.
fn move_all(stream: &Stream, strategy: Option<Strategy>, from: &Shape, to: &Shape) {
    let name = format!("{} by {strategy:?}", from.name);
    let (source, target) = (Cache::new(stream, 1, from), Cache::new(stream, 77, to));
    let (sources, targets) = (source.layout(), target.layout());
    assert_eq!(
        sources.description().difference(&targets.description()),
        None,
        "{name}"
    );
    let before = source.read(stream);
    let mut expected = target.read(stream);
    let ids: [&[u32]; 2] = [&[7, 2, 3, 4, 9, 0], &[1, 8, 5, 6, 0, 3]];
    let mut copier = BlockCopier::new(strategy);
    for (index, cache) in sources.sub_caches().iter().enumerate() {
        let bytes = cache.length as usize * ids[0].len();
        let staging = DeviceBuffer::new(stream.runtime(), bytes).expect("there is room");
        let other = &targets.sub_caches()[index];
        for (direction, cache, ids) in [
            (Direction::Gather, cache, ids[0]),
            (Direction::Scatter, other, ids[1]),
        ] {
            let range = 0..cache.length;
            let part = BlockPart { cache, ids, range };
            // SAFETY: all memory outlives the wait.
            unsafe { copier.copy(direction, &part, staging.as_ptr(), bytes, stream) }
                .expect("it is enqueued");
        }
        stream.wait(LONG).expect("it is done");
        let (here, there) = (&source.places[index], &target.places[index]);
        for (from, to) in ids[0].iter().zip(ids[1]) {
            let start = (here.offset + u64::from(*from) * here.stride) as usize;
            let moved = &before[here.allocation][start..start + here.length as usize];
            let start = (there.offset + u64::from(*to) * there.stride) as usize;
            expected[there.allocation][start..start + moved.len()].copy_from_slice(moved);
        }
    }
    assert!(
        source.read(stream) == before,
        "{name}: the source has changed"
    );
    assert!(
        target.read(stream) == expected,
        "{name}: other bytes arrived"
    );
    let counts = copier.counts();
    let used = match strategy {
        Some(Strategy::Kernels) => counts.kernels == 2 * sources.sub_caches().len() as u64,
        _ => counts.copies + counts.copies_2d > 0,
    };
    assert!(used, "{name}: {counts:?}");
}

#[test]
fn every_cache_moves_byte_for_byte_by_every_strategy() {
    let _faults = Faults::begin();
    let stream = Stream::new(&runtime(0)).expect("a stream");
    // Ranks may have different numbers of blocks.
    for (from, to) in shapes(10).iter().zip(&shapes(12)) {
        let ways = [Strategy::Copies, Strategy::Strided, Strategy::Kernels];
        for strategy in ways.map(Some).into_iter().chain([None]) {
            move_all(&stream, strategy, from, to);
        }
    }
}

#[test]
fn every_tensor_is_held_against_its_real_extent() {
    let _faults = Faults::begin();
    let stream = Stream::new(&runtime(0)).expect("a stream");
    for shape in shapes(3) {
        let cache = Cache::new(&stream, 1, &shape);
        for (layer, sub_caches) in cache.layers.iter().enumerate() {
            for (index, one) in sub_caches.iter().enumerate() {
                let mut layers = cache.layers.clone();
                let needed = (one.blocks - 1) * one.stride + one.length;
                layers[layer][index].extent = needed - 1;
                let error = KvLayout::new(layers).expect_err("a byte is missing");
                let place = (error.layer, error.sub_cache, error.field);
                assert_eq!(place, (layer, index, "extent"), "{}: {error}", shape.name);
            }
        }
    }
}

#[test]
fn ends_that_differ_name_the_field() {
    let _faults = Faults::begin();
    let stream = Stream::new(&runtime(0)).expect("a stream");
    for shape in shapes(3) {
        let cache = Cache::new(&stream, 1, &shape);
        let ours = cache.layout().description();
        for layer in 0..ours.layers.len() {
            for index in 0..ours.layers[layer].len() {
                let place = format!("of layer {layer}, sub-cache {index}, is ");
                type Change = fn(&mut SubCache);
                let changes: [(&str, Change); 3] = [
                    ("the block length ", |one| one.length /= 2),
                    ("the dtype ", |one| {
                        one.dtype = match one.dtype {
                            DType::UInt8 => DType::Int8,
                            _ => DType::UInt8,
                        }
                    }),
                    ("the format ", |one| {
                        one.format = match one.format {
                            Format::Nd => Format::FractalNz,
                            _ => Format::Nd,
                        }
                    }),
                ];
                for (field, change) in changes {
                    let mut layers = cache.layers.clone();
                    change(&mut layers[layer][index]);
                    let theirs = KvLayout::new(layers).expect("it is possible").description();
                    let difference = ours.difference(&theirs).expect("they differ");
                    let text = difference.to_string();
                    let expected = format!("{field}{place}");
                    assert!(text.starts_with(&expected), "{}: {text}", shape.name);
                }
            }
        }
    }
}
