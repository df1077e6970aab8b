//! Contract of moving blocks by kernels: they are chosen where the cost model says so; the index is
//! uploaded once for the sub-caches that share it; memory that a stream still needs is not freed or
//! written, however many calls are under way; what fails on the device is an error of the stream,
//! and nothing is left behind.

mod support;

use libloading::os::unix::Library;
use seqshift::device::{DeviceBuffer, Stream};
use seqshift::ffi;
use seqshift::kv::cost::Reason;
use seqshift::kv::{BlockCopier, BlockPart, Direction, Strategy, SubCache};
use support::cache::Cache;
use support::fault::{Fault, Faults};
use support::{LONG, mock, runtime};

/// Blocks in no even order.
fn scattered(count: u32, step: u32, blocks: u32) -> Vec<u32> {
    (0..count)
        .map(|index| (index * step + index / 3) % blocks)
        .collect()
}

/// Live device blocks and pinned host blocks of this process.
fn live() -> [i64; 2] {
    // SAFETY: the mock's initialisers are ours.
    let library =
        unsafe { Library::new(mock().join("libascendcl.so")) }.expect("the mock is built");
    // SAFETY: the mock's header declares the function so.
    let count = unsafe { library.get::<unsafe extern "C" fn(i32) -> i64>(b"seqshiftMockLive\0") }
        .expect("the mock counts");
    // SAFETY: takes a number only.
    let live = unsafe { [count(0), count(3)] };
    std::mem::forget((count, library));
    live
}

#[test]
fn many_scattered_blocks_go_by_kernels_and_few_by_copies() {
    let _faults = Faults::begin();
    let stream = Stream::new(&runtime(0)).expect("a stream");
    let cache = Cache::new(&stream, 0, 300, &[4096, 4096 + 8], 4096);
    let copier = BlockCopier::new(None);
    let at = |sub_cache: usize, ids: &[u32], beside: u64, staging: usize| {
        let mut cache = cache.layout.sub_caches()[sub_cache].clone();
        cache.base += beside;
        let part = BlockPart {
            cache: &cache,
            ids,
            range: 0..cache.length,
        };
        copier.choice(&part, std::ptr::without_provenance(staging), &stream)
    };
    let choice = |sub_cache, ids: &[u32]| at(sub_cache, ids, 0, 512);
    let many = choice(0, &scattered(64, 37, 300));
    assert_eq!(
        (many.strategy, many.reason),
        (Strategy::Kernels, Reason::Cheapest)
    );
    assert_eq!(choice(0, &[111, 74, 37, 0]).strategy, Strategy::Copies);
    // Rows of 8 bytes are nothing for an AI core.
    assert_ne!(
        choice(1, &scattered(64, 37, 300)).strategy,
        Strategy::Kernels
    );
    // Nor are other addresses than multiples of 32.
    for (beside, staging) in [(2, 512), (0, 520)] {
        let odd = at(0, &scattered(64, 37, 300), beside, staging);
        assert_ne!(odd.strategy, Strategy::Kernels);
    }
    let even: Vec<u32> = (0..20).map(|index| index * 2).collect();
    assert_eq!(choice(0, &even).strategy, Strategy::Strided);
}

/// Copies whole blocks to or from `staging`; the caller waits for the stream while all memory lives.
fn enqueue(
    copier: &mut BlockCopier,
    direction: Direction,
    cache: &SubCache,
    ids: &[u32],
    staging: *mut u8,
    stream: &Stream,
) {
    let bytes = ids.len() * cache.length as usize;
    let range = 0..cache.length;
    let part = BlockPart { cache, ids, range };
    // SAFETY: the callers wait before they give any of the memory back.
    unsafe { copier.copy(direction, &part, staging, bytes, stream) }.expect("it is enqueued");
}

/// Gathers and scatters `calls` times on one stream, each time other blocks, and compares.
fn round_trips(stream: &Stream, copier: &mut BlockCopier, cache: &Cache, calls: u32) {
    let before = cache.read(stream);
    let one = &cache.layout.sub_caches()[0];
    let mut staged = Vec::new();
    for call in 0..calls {
        let ids = scattered(20 + call * 7, 3 + 2 * call, 200);
        let bytes = ids.len() * one.length as usize;
        let staging = DeviceBuffer::new(stream.runtime(), bytes).expect("there is room");
        for direction in [Direction::Gather, Direction::Scatter] {
            enqueue(copier, direction, one, &ids, staging.as_ptr(), stream);
        }
        staged.push((ids, staging));
    }
    stream.wait(LONG).expect("all is done");
    for (ids, staging) in staged {
        let got = staging
            .read(0, staging.len(), stream, LONG)
            .expect("readable");
        assert!(got == cache.blocks(&before, &ids), "{} blocks", ids.len());
    }
    assert!(cache.read(stream) == before);
}

#[test]
fn a_slow_stream_holds_what_it_needs() {
    let faults = Faults::begin();
    let stream = Stream::new(&runtime(0)).expect("a stream");
    let cache = Cache::new(&stream, 0, 200, &[2048], 0);
    let mut copier = BlockCopier::new(Some(Strategy::Kernels));
    // More calls than indices are kept, each with a larger workspace than the one before.
    faults.arm("aclnnIndexSelect", 1, 1, Fault::Stall);
    let release = faults.rules().release_after("aclnnInplaceIndexCopy", 6);
    round_trips(&stream, &mut copier, &cache, 20);
    release.join().expect("the rules are released");
    assert_eq!(copier.counts().kernels, 40);
    assert_eq!(copier.counts().copies, 0);
}

#[test]
fn one_index_serves_all_sub_caches() {
    let faults = Faults::begin();
    let stream = Stream::new(&runtime(0)).expect("a stream");
    let cache = Cache::new(&stream, 0, 100, &[1024; 6], 0);
    let staging = DeviceBuffer::new(stream.runtime(), 6 * 40 * 1024).expect("there is room");
    let mut copier = BlockCopier::new(Some(Strategy::Kernels));
    let ids = scattered(40, 7, 100);
    faults.arm("aclrtMemcpy", 1, 0, Fault::Corrupt(1 << 40));
    for (index, one) in cache.layout.sub_caches().iter().enumerate() {
        let at = staging.as_ptr().wrapping_add(index * 40 * 1024);
        enqueue(&mut copier, Direction::Gather, one, &ids, at, &stream);
    }
    assert_eq!(faults.hits(), 1, "one upload");
    assert_eq!(copier.counts().kernels, 6);
    // The upload was damaged: no row has such a number, and the device says so.
    assert!(stream.wait(LONG).is_err());
}

/// The index of an earlier call is where the new one did not arrive.
#[test]
fn without_its_index_no_kernel_runs() {
    let faults = Faults::begin();
    let stream = Stream::new(&runtime(0)).expect("a stream");
    let cache = Cache::new(&stream, 0, 200, &[2048], 0);
    let staging = DeviceBuffer::new(stream.runtime(), 20 * 2048).expect("there is room");
    let mut copier = BlockCopier::new(Some(Strategy::Kernels));
    let mut scatter = |ids: &[u32]| {
        let (one, at) = (&cache.layout.sub_caches()[0], staging.as_ptr());
        enqueue(&mut copier, Direction::Scatter, one, ids, at, &stream);
        stream.wait(LONG).expect("it is done");
        copier.counts().kernels
    };
    let (first, second) = (scattered(20, 7, 200), scattered(20, 9, 200));
    assert_eq!(scatter(&first), 1);
    let before = cache.read(&stream);
    let failure = i64::from(ffi::CANN_RT_INTERNAL);
    faults.arm("aclrtMemcpy", 1, 1, Fault::Return(failure));
    assert_eq!(scatter(&second), 1);
    assert_eq!(faults.hits(), 1);
    let after = cache.read(&stream);
    let staged = staging.read(0, staging.len(), &stream, LONG);
    assert!(cache.blocks(&after, &second) == staged.expect("readable"));
    let others: Vec<u32> = (0..200).filter(|id| !second.contains(id)).collect();
    assert!(cache.blocks(&after, &others) == cache.blocks(&before, &others));
}

#[test]
fn a_kernel_that_fails_on_the_device_is_an_error_of_the_stream() {
    let faults = Faults::begin();
    let runtime = runtime(0);
    let mut stream = Stream::new(&runtime).expect("a stream");
    let cache = Cache::new(&stream, 0, 200, &[2048], 0);
    let mut copier = BlockCopier::new(Some(Strategy::Kernels));
    let code = ffi::CANN_RT_AICORE_EXCEPTION;
    faults.arm("aclnnIndexSelect", 1, 1, Fault::FailTask(i64::from(code)));
    let staging = DeviceBuffer::new(&runtime, 20 * 2048).expect("there is room");
    let ids = scattered(20, 7, 200);
    let (one, at) = (&cache.layout.sub_caches()[0], staging.as_ptr());
    enqueue(&mut copier, Direction::Gather, one, &ids, at, &stream);
    let error = stream.wait(LONG).expect_err("the kernel failed");
    assert_eq!(error.code(), Some(code));
    // Another stream trusts nothing that the failed one may have uploaded.
    stream.abort().expect("it can be aborted");
    stream = Stream::new(&runtime).expect("a stream");
    round_trips(&stream, &mut copier, &cache, 3);
}

#[test]
fn without_memory_for_a_workspace_blocks_are_copied() {
    let faults = Faults::begin();
    let stream = Stream::new(&runtime(0)).expect("a stream");
    let cache = Cache::new(&stream, 0, 200, &[2048], 0);
    let staging = DeviceBuffer::new(stream.runtime(), 20 * 2048).expect("there is room");
    let before = cache.read(&stream);
    let mut copier = BlockCopier::new(Some(Strategy::Kernels));
    let ids = scattered(20, 7, 200);
    // The index comes first, then the workspace.
    let code = i64::from(ffi::CANN_RT_MEMORY_ALLOCATION);
    faults.arm("aclrtMalloc", 2, 1, Fault::Return(code));
    let (one, at) = (&cache.layout.sub_caches()[0], staging.as_ptr());
    enqueue(&mut copier, Direction::Gather, one, &ids, at, &stream);
    let got = staging
        .read(0, staging.len(), &stream, LONG)
        .expect("readable");
    assert!(got == cache.blocks(&before, &ids));
    assert_eq!(copier.counts().kernels, 0);
    assert!(copier.counts().copies > 0);
}

#[test]
fn nothing_is_left_behind() {
    let _faults = Faults::begin();
    let stream = Stream::new(&runtime(0)).expect("a stream");
    let before = live();
    {
        let cache = Cache::new(&stream, 0, 200, &[2048], 0);
        let mut copier = BlockCopier::new(Some(Strategy::Kernels));
        round_trips(&stream, &mut copier, &cache, 5);
        assert!(live() > before);
    }
    assert_eq!(live(), before);
}
