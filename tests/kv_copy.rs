//! Contract of gather and scatter: on any layout, staging memory gets exactly the bytes of the
//! listed blocks in their order, and scattering writes exactly these bytes of exactly these blocks;
//! the same bytes whichever strategy does it, and on a CANN that refuses one; adjacent blocks cost
//! one copy, and the cost model knows how many copies there are.

mod support;

use std::ops::Range;

use half::bf16;
use proptest::prelude::*;
use seqshift::device::{DeviceBuffer, DeviceError, Stream};
use seqshift::ffi;
use seqshift::kv::{
    BlockCopier, BlockPart, CopyCounts, DType, Direction, Format, KvLayout, Strategy as Way,
    SubCache, cost,
};
use support::fault::{Fault, Faults};
use support::{LONG, pattern, runner, runtime};

/// A cache on the device together with what the host knows of it.
struct Cache {
    buffer: DeviceBuffer,
    bytes: Vec<u8>,
    sub_cache: SubCache,
}

impl Cache {
    fn new(stream: &Stream, seed: u64, blocks: u64, length: u64, padding: u64) -> Self {
        let stride = length + padding;
        let offset = padding;
        let bytes = pattern(seed, (offset + blocks * stride) as usize);
        let mut buffer = DeviceBuffer::new(stream.runtime(), bytes.len()).expect("memory");
        buffer
            .write(0, &bytes, stream, LONG)
            .expect("the copy is possible");
        let sub_cache = SubCache {
            base: buffer.as_ptr() as u64 + offset,
            extent: bytes.len() as u64 - offset,
            blocks,
            stride,
            length,
            dtype: DType::UInt8,
            format: Format::Nd,
        };
        KvLayout::new(vec![vec![sub_cache.clone()]]).expect("the layout is possible");
        Self {
            buffer,
            bytes,
            sub_cache,
        }
    }

    fn place(&self, id: u32, range: &Range<u64>) -> Range<usize> {
        let start = self.buffer_offset() + u64::from(id) * self.sub_cache.stride;
        (start + range.start) as usize..(start + range.end) as usize
    }

    fn buffer_offset(&self) -> u64 {
        self.sub_cache.base - self.buffer.as_ptr() as u64
    }

    fn read(&self, stream: &Stream) -> Vec<u8> {
        self.buffer
            .read(0, self.bytes.len(), stream, LONG)
            .expect("readable")
    }
}

#[derive(Clone, Debug)]
struct Case {
    blocks: u64,
    length: u64,
    paddings: [u64; 2],
    range: Range<u64>,
    ids: Vec<u32>,
}

fn cases() -> impl Strategy<Value = Case> {
    (2_u64..40, 1_u64..700).prop_flat_map(|(blocks, length)| {
        let padding = || prop_oneof![Just(0), Just(64), 0_u64..300];
        let id = 0..blocks as u32;
        let run = (id.clone(), 1_usize..9, 1_u32..4).prop_map(move |(first, count, step)| {
            let ids = (0..count as u32).map(|index| first + index * step);
            ids.filter(|id| u64::from(*id) < blocks)
                .collect::<Vec<u32>>()
        });
        let runs = proptest::collection::vec(run, 0..6).prop_map(|runs| {
            let mut ids = Vec::new();
            for id in runs.concat() {
                if !ids.contains(&id) {
                    ids.push(id);
                }
            }
            ids
        });
        let range = prop_oneof![
            Just(0..length),
            (0..length, 0..length).prop_map(|(a, b)| a.min(b)..a.max(b) + 1)
        ];
        (
            Just(blocks),
            Just(length),
            [padding(), padding()],
            range,
            runs,
        )
            .prop_map(|(blocks, length, paddings, range, ids)| Case {
                blocks,
                length,
                paddings,
                range,
                ids,
            })
    })
}

/// Gathers from one cache, scatters to another of other strides, and compares every byte.
fn move_blocks(
    stream: &Stream,
    copier: &mut BlockCopier,
    case: &Case,
) -> Result<(), TestCaseError> {
    let source = Cache::new(stream, 1, case.blocks, case.length, case.paddings[0]);
    let mut target = Cache::new(stream, 2, case.blocks, case.length, case.paddings[1]);
    let part = |cache| BlockPart {
        cache,
        ids: &case.ids,
        range: case.range.clone(),
    };
    let bytes = part(&source.sub_cache).bytes() as usize;
    let staging = DeviceBuffer::new(stream.runtime(), bytes).expect("memory");
    // SAFETY: all memory outlives the reads, which wait.
    unsafe {
        let (from, to) = (part(&source.sub_cache), part(&target.sub_cache));
        copier
            .copy(Direction::Gather, &from, staging.as_ptr(), bytes, stream)
            .expect("enqueued");
        copier
            .copy(Direction::Scatter, &to, staging.as_ptr(), bytes, stream)
            .expect("enqueued");
    }
    let gathered = staging.read(0, bytes, stream, LONG).expect("readable");
    let expected: Vec<u8> = case
        .ids
        .iter()
        .flat_map(|id| source.bytes[source.place(*id, &case.range)].iter().copied())
        .collect();
    prop_assert!(gathered == expected, "gathered bytes differ");
    let mut written = std::mem::take(&mut target.bytes);
    for id in &case.ids {
        let from = source.bytes[source.place(*id, &case.range)].to_vec();
        written[target.place(*id, &case.range)].copy_from_slice(&from);
    }
    target.bytes = written;
    prop_assert!(
        target.read(stream) == target.bytes,
        "scattered bytes differ"
    );
    prop_assert!(
        source.read(stream) == source.bytes,
        "the source has changed"
    );
    Ok(())
}

/// Moves random blocks by one strategy, or by the cost model's choices.
fn random_layouts(forced: Option<Way>, cases_to_run: u32) -> CopyCounts {
    let runtime = runtime(0);
    let stream = Stream::new(&runtime).expect("a stream");
    let copier = std::cell::RefCell::new(BlockCopier::new(forced));
    let run = |case| move_blocks(&stream, &mut copier.borrow_mut(), &case);
    runner(cases_to_run)
        .run(&cases(), run)
        .unwrap_or_else(|error| panic!("{forced:?}: {error}"));
    copier.borrow().counts()
}

#[test]
fn every_strategy_keeps_every_byte_of_random_layouts() {
    let _faults = Faults::begin();
    for forced in [
        None,
        Some(Way::Copies),
        Some(Way::Strided),
        Some(Way::Kernels),
    ] {
        let counts = random_layouts(forced, 100);
        let CopyCounts {
            copies,
            copies_2d,
            kernels,
            ..
        } = counts;
        match forced {
            Some(Way::Copies) => assert!(copies > 0 && copies_2d == 0 && kernels == 0),
            Some(Way::Kernels) => assert!(kernels > 0 && copies == 0 && copies_2d == 0),
            _ => assert!(copies > 0 && copies_2d > 0, "{forced:?}: {counts:?}"),
        }
    }
}

#[test]
fn a_cann_that_refuses_two_dimensional_copies_gives_the_same_bytes() {
    let faults = Faults::begin();
    let refusal = Fault::Return(i64::from(ffi::CANN_RT_FEATURE_NOT_SUPPORT));
    faults.arm("aclrtMemcpy2dAsync", 1, 0, refusal);
    let counts = random_layouts(Some(Way::Strided), 50);
    assert_eq!(counts.copies_2d, 0);
    assert_eq!(faults.hits(), 1, "once refused, it is not tried again");
}

#[test]
fn a_cann_that_refuses_kernels_in_either_phase_gives_the_same_bytes() {
    let faults = Faults::begin();
    for call in [
        "aclCreateTensor",
        "aclnnIndexSelectGetWorkspaceSize",
        "aclnnIndexSelect",
        "aclnnInplaceIndexCopyGetWorkspaceSize",
        "aclnnInplaceIndexCopy",
    ] {
        let before = faults.hits();
        let refusal = Fault::Return(i64::from(ffi::CANN_NN_PARAM_INVALID));
        faults.arm(call, 1, 0, refusal);
        let counts = random_layouts(Some(Way::Kernels), 20);
        assert!(counts.copies > 0, "{call}: {counts:?}");
        assert_eq!(
            faults.hits() - before,
            1,
            "{call}: once refused, none is tried again"
        );
        faults.clear();
    }
}

/// (one-dimensional, two-dimensional) copies that gathering the blocks costs.
fn cost(stream: &Stream, padding: u64, ids: &[u32]) -> (u64, u64) {
    let cache = Cache::new(stream, 5, 64, 512, padding);
    let staging = DeviceBuffer::new(stream.runtime(), ids.len() * 512).expect("memory");
    let part = BlockPart {
        cache: &cache.sub_cache,
        ids,
        range: 0..512,
    };
    let mut copier = BlockCopier::default();
    // SAFETY: all memory outlives the wait.
    unsafe {
        copier.copy(
            Direction::Gather,
            &part,
            staging.as_ptr(),
            ids.len() * 512,
            stream,
        )
    }
    .expect("enqueued");
    stream.wait(LONG).expect("the copies are done");
    let counts = copier.counts();
    assert_eq!(counts.bytes, ids.len() as u64 * 512);
    (counts.copies, counts.copies_2d)
}

#[test]
fn adjacent_blocks_cost_one_copy() {
    let _faults = Faults::begin();
    let stream = Stream::new(&runtime(0)).expect("a stream");
    assert_eq!(cost(&stream, 0, &[3, 4, 5, 6, 7]), (1, 0));
    assert_eq!(cost(&stream, 0, &[9, 3, 4, 5, 1, 0]), (4, 0));
    assert_eq!(cost(&stream, 64, &[3, 4, 5, 6, 7]), (0, 1));
    assert_eq!(cost(&stream, 64, &[3, 4, 8]), (1, 1));
    assert_eq!(cost(&stream, 0, &[0, 2, 4, 6, 7, 8, 9]), (1, 1));
    // Runs at even distances, of one length; the same block twice; runs that overlap.
    assert_eq!(cost(&stream, 0, &[3, 4, 13, 14, 23, 24, 33]), (1, 1));
    assert_eq!(cost(&stream, 0, &[3, 4, 13, 14, 15, 23, 24]), (3, 0));
    assert_eq!(cost(&stream, 0, &[5, 5]), (2, 0));
    assert_eq!(cost(&stream, 0, &[3, 4, 4, 5]), (2, 0));
    assert_eq!(cost(&stream, 0, &[63]), (1, 0));
}

/// The strategies differ in the number of copies only, and that is what the model multiplies.
#[test]
fn the_cost_model_counts_the_copies_that_are_enqueued() {
    let _faults = Faults::begin();
    let stream = Stream::new(&runtime(0)).expect("a stream");
    let check = |case: Case| {
        let cache = Cache::new(&stream, 1, case.blocks, case.length, case.paddings[0]);
        let part = BlockPart {
            cache: &cache.sub_cache,
            ids: &case.ids,
            range: case.range.clone(),
        };
        let bytes = part.bytes() as usize;
        let staging = DeviceBuffer::new(stream.runtime(), bytes.max(1)).expect("memory");
        let [single, strided] = [Way::Copies, Way::Strided].map(|way| {
            let mut copier = BlockCopier::new(Some(way));
            let nanos = copier.choice(&part, staging.as_ptr(), &stream).nanos;
            let to = staging.as_ptr();
            // SAFETY: all memory outlives the wait.
            unsafe { copier.copy(Direction::Gather, &part, to, bytes, &stream) }.expect("enqueued");
            stream.wait(LONG).expect("the copies are done");
            (copier.counts(), nanos)
        });
        prop_assert_eq!(single.0.copies * cost::COPY_NS, single.1);
        let CopyCounts {
            copies, copies_2d, ..
        } = strided.0;
        let rows = single.0.copies - copies;
        prop_assert!(copies_2d == 0 || rows >= 2 * copies_2d);
        let nanos = (copies + copies_2d) * cost::COPY_NS + rows * cost::ROW_NS;
        // Without any of two dimensions there is no such strategy.
        prop_assert_eq!(if copies_2d > 0 { nanos } else { 0 }, strided.1);
        Ok(())
    };
    runner(300)
        .run(&cases(), check)
        .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn what_is_out_of_range_is_refused_before_anything_is_copied() {
    let _faults = Faults::begin();
    let stream = Stream::new(&runtime(0)).expect("a stream");
    let cache = Cache::new(&stream, 6, 8, 100, 0);
    let staging = DeviceBuffer::new(stream.runtime(), 200).expect("memory");
    let mut copier = BlockCopier::default();
    let cases: [(&[u32], Range<u64>, usize); 5] = [
        (&[0, 8], 0..100, 200),
        (&[0, 1, 2], 0..100, 200),
        (&[0], 50..101, 200),
        (&[0], 50..50, 200),
        (&[0], 200..300, 200),
    ];
    for (ids, range, capacity) in cases {
        let part = BlockPart {
            cache: &cache.sub_cache,
            ids,
            range,
        };
        let to = staging.as_ptr();
        // SAFETY: the memory is valid; nothing is enqueued.
        let result = unsafe { copier.copy(Direction::Scatter, &part, to, capacity, &stream) };
        let code = result.as_ref().err().and_then(DeviceError::code);
        assert_eq!(code, Some(ffi::CANN_INVALID_PARAM), "{part:?}");
    }
    assert_eq!(copier.counts().bytes, 0);
    assert!(cache.read(&stream) == cache.bytes);
}

/// One stacked tensor [2, blocks, tokens, heads, dim] of bf16, as vLLM's CPU backend has it.
#[test]
fn keys_and_values_of_one_stacked_tensor_are_two_sub_caches() {
    let _faults = Faults::begin();
    let stream = Stream::new(&runtime(0)).expect("a stream");
    let (blocks, elements) = (6_usize, 4 * 2 * 8);
    let value = |kind: usize, block: usize, element: usize| {
        bf16::from_f32((kind * 1000 + block * 100 + element) as f32)
    };
    let all = (0..2 * blocks * elements).map(|index| {
        value(
            index / (blocks * elements),
            index / elements % blocks,
            index % elements,
        )
    });
    let bytes: Vec<u8> = all.flat_map(|value| value.to_le_bytes()).collect();
    let mut buffer = DeviceBuffer::new(stream.runtime(), bytes.len()).expect("memory");
    buffer
        .write(0, &bytes, &stream, LONG)
        .expect("the copy is possible");
    let length = (elements * 2) as u64;
    let half = blocks as u64 * length;
    let sub_cache = |kind: u64| SubCache {
        base: buffer.as_ptr() as u64 + kind * half,
        extent: half,
        blocks: blocks as u64,
        stride: length,
        length,
        dtype: DType::BFloat16,
        format: Format::Nd,
    };
    let layout = KvLayout::new(vec![vec![sub_cache(0), sub_cache(1)]]).expect("possible");
    let staging = DeviceBuffer::new(stream.runtime(), length as usize).expect("memory");
    let mut copier = BlockCopier::default();
    for (kind, cache) in layout.sub_caches().iter().enumerate() {
        let part = BlockPart {
            cache,
            ids: &[4],
            range: 0..length,
        };
        let to = staging.as_ptr();
        // SAFETY: all memory outlives the read, which waits.
        unsafe { copier.copy(Direction::Gather, &part, to, length as usize, &stream) }
            .expect("enqueued");
        let got = staging
            .read(0, length as usize, &stream, LONG)
            .expect("readable");
        for (element, bytes) in got.chunks_exact(2).enumerate() {
            assert_eq!(
                bf16::from_le_bytes([bytes[0], bytes[1]]),
                value(kind, 4, element)
            );
        }
    }
}
