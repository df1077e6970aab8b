//! What only an NPU can show (docs/npu-checklist.md). Runs with `SEQSHIFT_TEST_NPU=1`, on the CANN
//! that the environment selects and devices 0 and 1; says that it skips otherwise. It also runs on
//! the mock with `SEQSHIFT_CANN_LIB_DIR` set to it, which shows that the tests themselves are
//! right.

#[path = "support/cache.rs"]
mod cache;

use std::cell::Cell;
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cache::Cache;
use seqshift::collective::{Communicator, CommunicatorOptions, RootInfo};
use seqshift::device::{
    CopyKind, DeviceBuffer, DeviceError, Event, HostBuffer, Runtime, RuntimeOptions, Stream,
};
use seqshift::ffi::LibraryOptions;
use seqshift::kv::{ExchangeReport, Move, Strategy, Transfer, TransferOptions};

const LONG: Duration = Duration::from_secs(120);

/// One test at a time: they share the devices. None where there are none.
fn turn(test: &str) -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    if std::env::var_os("SEQSHIFT_TEST_NPU").is_none_or(|value| value != "1") {
        eprintln!("SKIPPED {test}: set SEQSHIFT_TEST_NPU=1 on a machine with NPUs");
        return None;
    }
    Some(TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

fn open(device: i32) -> Arc<Runtime> {
    let libraries = LibraryOptions::from_env();
    Runtime::open(&RuntimeOptions { libraries, device }).expect("CANN is installed and has NPUs")
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let byte = |index: usize| (index as u64 ^ (index as u64 >> 8)).wrapping_mul(seed | 1) as u8;
    (0..length).map(byte).collect()
}

/// A copy of 256 MiB to pinned memory, which keeps a stream busy.
struct LargeCopy {
    device: DeviceBuffer,
    host: HostBuffer,
}

impl LargeCopy {
    const BYTES: usize = 256 << 20;

    fn new(runtime: &Arc<Runtime>) -> Self {
        Self {
            device: DeviceBuffer::new(runtime, Self::BYTES).expect("memory"),
            host: HostBuffer::new(runtime, Self::BYTES).expect("pinned memory"),
        }
    }

    /// The caller waits for the stream while this lives.
    fn enqueue(&self, stream: &Stream) {
        let (to, from) = (self.host.as_ptr(), self.device.as_ptr());
        // SAFETY: the callers wait before they give the buffers back.
        unsafe { stream.copy(to, from, Self::BYTES, CopyKind::DeviceToHost) }.expect("enqueued");
    }
}

/// A transfer of a cache's blocks; dropped before the cache.
struct Path {
    transfer: Transfer,
    cache: Cache,
}

impl Path {
    fn new(runtime: &Arc<Runtime>, cache: Cache) -> Self {
        let options = TransferOptions::new(runtime, 64 << 20, true);
        // SAFETY: the cache outlives the transfer.
        let transfer = unsafe { Transfer::new(runtime, cache.layout.clone(), 2, options) }
            .expect("there is room");
        Self { transfer, cache }
    }
}

/// Both ways at once between two ranks: 200 blocks of each into other blocks of its peer.
struct Crossing {
    path: Path,
    peer: u32,
    /// What the peer's cache holds.
    theirs: Cache,
    own: Vec<u32>,
    other: Vec<u32>,
}

impl Crossing {
    /// `make` makes the cache of a rank.
    fn new(runtime: &Arc<Runtime>, rank: u32, make: impl Fn(u32) -> Cache) -> Self {
        Self {
            path: Path::new(runtime, make(rank)),
            peer: 1 - rank,
            theirs: make(1 - rank),
            own: (0..200).collect(),
            other: (256..456).collect(),
        }
    }

    fn exchange(&mut self, communicator: &Communicator) -> ExchangeReport {
        let of = |blocks| Move {
            peer: self.peer,
            blocks,
        };
        let (out, into) = ([of(&self.own)], [of(&self.other)]);
        let transfer = &mut self.path.transfer;
        let report = transfer.exchange(communicator, &out, &into, Instant::now() + LONG);
        assert_eq!(report.broken, None);
        let (sent, received) = (&report.outbound[0], &report.inbound[0]);
        assert_eq!((&sent.error, &received.error), (&None, &None));
        assert!(sent.digest.is_some());
        report
    }

    /// The peer's blocks have come.
    fn check(&self, stream: &Stream) {
        let (got, sent) = (self.path.cache.read(stream), self.theirs.read(stream));
        let cache = &self.path.cache;
        assert!(cache.blocks(&got, &self.other) == self.theirs.blocks(&sent, &self.own));
    }
}

#[test]
fn the_chip_and_its_memory_are_known() {
    let Some(_turn) = turn("the_chip_and_its_memory_are_known") else {
        return;
    };
    let runtime = open(0);
    let memory = runtime.memory().expect("it can be asked");
    println!(
        "chip {:?}, CANN runtime {:?}, {} devices, {} of {} MiB free, found at {:?}",
        runtime.chip(),
        runtime.version(),
        runtime.device_count().expect("it can be asked"),
        memory.free >> 20,
        memory.total >> 20,
        runtime.symbols().places()
    );
    assert!(memory.free > 0);
}

/// Gather and scatter on dense and on padded blocks, by each strategy and by the cost model's
/// choice; prints what each costs, and whether two-dimensional copies and kernels are accepted.
#[test]
fn gather_and_scatter_keep_every_byte() {
    let Some(_turn) = turn("gather_and_scatter_keep_every_byte") else {
        return;
    };
    let runtime = open(0);
    let stream = Stream::new(&runtime).expect("a stream");
    println!("kernels: {:?}", runtime.symbols().kernels());
    for (length, padding) in [(16 << 10, 0), (128 << 10, 0), (128 << 10, 4096), (1000, 24)] {
        let cache = Cache::new(&stream, 0, 512, &[length, length], padding);
        let mut path = Path::new(&runtime, cache);
        let (transfer, cache) = (&mut path.transfer, &path.cache);
        let before = cache.read(&stream);
        for (name, step) in [("adjacent", 1_u32), ("every second", 2), ("scattered", 37)] {
            let ids: Vec<u32> = (0..128).map(|index| index * step % 512).collect();
            for strategy in [
                None,
                Some(Strategy::Copies),
                Some(Strategy::Strided),
                Some(Strategy::Kernels),
            ] {
                transfer.set_strategy(strategy);
                let counted = transfer.counts();
                let result = transfer
                    .self_test(&ids, LONG)
                    .expect("the bytes are the same");
                let counts = transfer.counts();
                println!(
                    "blocks of {length} + {padding} bytes, {name}, by {}: {:.2} GB/s there and back; \
                     {} copies, {} two-dimensional ones, {} kernels",
                    strategy.map_or("the model", Strategy::name),
                    result.bytes as f64 * 3.0 / result.elapsed.as_secs_f64() / 1e9,
                    counts.copies - counted.copies,
                    counts.copies_2d - counted.copies_2d,
                    counts.kernels - counted.kernels
                );
            }
        }
        assert!(cache.read(&stream) == before);
    }
}

#[test]
fn pinned_memory_events_and_time() {
    let Some(_turn) = turn("pinned_memory_events_and_time") else {
        return;
    };
    let runtime = open(0);
    let stream = Stream::new(&runtime).expect("a stream");
    let large = LargeCopy::new(&runtime);
    let events = [0; 2].map(|_| Event::timed(&runtime).expect("an event"));
    stream.record(&events[0]).expect("recorded");
    let start = Instant::now();
    large.enqueue(&stream);
    let enqueued = start.elapsed();
    stream.record(&events[1]).expect("recorded");
    events[1].wait(LONG).expect("the copy is done");
    let total = start.elapsed();
    let on_device = events[1].since(&events[0]).expect("both are complete");
    println!("256 MiB to the host: enqueued in {enqueued:?}, done in {total:?} ({on_device:?})");
    assert!(
        enqueued < total / 2,
        "a copy to pinned memory must be asynchronous"
    );
    assert!(on_device <= total + Duration::from_millis(1) && !on_device.is_zero());
}

#[test]
fn running_out_of_memory_is_recognised() {
    let Some(_turn) = turn("running_out_of_memory_is_recognised") else {
        return;
    };
    let runtime = open(0);
    let total = runtime.memory().expect("it can be asked").total;
    let error = DeviceBuffer::new(&runtime, 2 * total).expect_err("there is not so much");
    assert!(error.is_out_of_memory(), "code {:?}: {error}", error.code());
}

/// A second process-wide start, and a thread that used another device before.
#[test]
fn cann_that_runs_already_is_shared() {
    let Some(_turn) = turn("cann_that_runs_already_is_shared") else {
        return;
    };
    let (first, second) = (open(0), open(0));
    assert!(!second.is_owner());
    assert!(!second.finalize().expect("nothing is done"));
    let stream = Stream::new(&first).expect("CANN still runs");
    stream.wait(LONG).expect("nothing to wait for");
}

/// Runs the body as two ranks on devices 0 and 1, connected as often as they ask for it.
fn pair(body: impl Fn(u32, &Arc<Runtime>, &dyn Fn() -> Communicator) + Sync) {
    let (barrier, root) = (Barrier::new(2), Mutex::new(Vec::new()));
    let run = |rank: u32| {
        let runtime = open(rank as i32);
        let made = Cell::new(0);
        let connect = || {
            if rank == 0 {
                let made = RootInfo::create(&runtime).expect("a root info can be made");
                *root.lock().expect("no rank has failed") = made.as_bytes().to_vec();
            }
            barrier.wait();
            let bytes = root.lock().expect("no rank has failed").clone();
            let root = RootInfo::try_from(bytes.as_slice()).expect("it has the right length");
            // Both ranks make their communicators in the same order.
            let name = format!("seqshift-npu-test-{}", made.replace(made.get() + 1));
            let options = CommunicatorOptions {
                ranks: 2,
                rank,
                buffer_mib: 64,
                name,
            };
            let start = Instant::now();
            let communicator =
                Communicator::connect(&runtime, &root, &options, LONG).expect("both ranks join");
            println!("rank {rank}: joined in {:?}", start.elapsed());
            communicator
        };
        body(rank, &runtime, &connect);
        barrier.wait();
    };
    thread::scope(|scope| {
        let run = &run;
        let threads = [0, 1].map(|rank| scope.spawn(move || run(rank)));
        for thread in threads {
            thread.join().expect("the rank is well");
        }
    });
}

/// Both ways at once, from dense blocks to padded ones; prints the speed.
#[test]
fn blocks_cross_between_two_devices() {
    let Some(_turn) = turn("blocks_cross_between_two_devices") else {
        return;
    };
    pair(|rank, runtime, connect| {
        let communicator = connect();
        let stream = Stream::new(runtime).expect("a stream");
        // Keys and values of one stacked tensor, and two tensors of their own.
        let lengths = [128 << 10, 128 << 10, 64 << 10, 512];
        let make = |rank| Cache::stacked(&stream, rank, 512, &lengths, u64::from(rank) * 512);
        let mut crossing = Crossing::new(runtime, rank, make);
        for round in 0..3 {
            let report = crossing.exchange(&communicator);
            let speed = report.sent as f64 / report.timings.total.as_secs_f64() / 1e9;
            println!(
                "rank {rank}, exchange {round}: {speed:.2} GB/s, {} of {} bytes not staged, {:?}",
                report.direct,
                report.sent + report.received,
                report.timings
            );
        }
        crossing.check(&stream);
    });
}

/// An exchange on our communicator while another thread runs the engine's collectives on another
/// one: both come to their end, in whichever order the ranks enqueue them, and bytes are right.
#[test]
fn a_copy_in_the_background_runs_beside_the_engines_collectives() {
    let Some(_turn) = turn("a_copy_in_the_background_runs_beside_the_engines_collectives") else {
        return;
    };
    const GATHERS: usize = 300;
    pair(|rank, runtime, connect| {
        let (engine, ours) = (connect(), connect());
        let stream = Stream::new(runtime).expect("a stream");
        let make = |rank| Cache::new(&stream, rank, 512, &[128 << 10], 0);
        let mut crossing = Crossing::new(runtime, rank, make);
        let gathers = |engine: Communicator| {
            let stream = Stream::new(runtime).expect("a stream");
            let send = DeviceBuffer::new(runtime, 4096).expect("memory");
            let mut receive = DeviceBuffer::new(runtime, 2 * 4096).expect("memory");
            let start = Instant::now();
            for _ in 0..GATHERS {
                engine
                    .all_gather(&send, &mut receive, 4096, &stream, LONG)
                    .expect("both ranks take part");
            }
            (engine, start.elapsed() / GATHERS as u32)
        };
        let (engine, alone) = gathers(engine);
        let mut exchange = || crossing.exchange(&ours).timings.total;
        let quiet = exchange();
        let (beside, busy) = thread::scope(|scope| {
            let engine = scope.spawn(|| gathers(engine));
            let busy = exchange();
            let (_, beside) = engine.join().expect("the collectives end");
            (beside, busy)
        });
        println!(
            "rank {rank}: all-gather {alone:?} alone, {beside:?} beside a copy; the copy {quiet:?} \
             alone, {busy:?} beside all-gathers"
        );
        crossing.check(&stream);
    });
}

/// A kernel's index is uploaded by a call that waits for itself only, so that a kernel never runs
/// on an index that did not arrive; prints what it costs while a stream is busy.
#[test]
fn an_index_is_uploaded_past_busy_streams_or_not_at_all() {
    let Some(_turn) = turn("an_index_is_uploaded_past_busy_streams_or_not_at_all") else {
        return;
    };
    let runtime = open(0);
    let stream = Stream::new(&runtime).expect("a stream");
    let large = LargeCopy::new(&runtime);
    let mut index = DeviceBuffer::new(&runtime, 8192).expect("memory");
    let rows = pattern(3, 8192);
    let time = |index: &mut DeviceBuffer| {
        let start = Instant::now();
        index.upload(&rows).expect("the copy is possible");
        start.elapsed()
    };
    let idle = time(&mut index);
    large.enqueue(&stream);
    let busy = time(&mut index);
    let passed = !stream.is_idle().expect("it can be asked");
    stream.wait(LONG).expect("the copy is done");
    println!("an index of 8 KiB: {idle:?}, and {busy:?} past a busy stream; overtook it: {passed}");
    let read = index.read(0, rows.len(), &stream, LONG).expect("readable");
    assert!(read == rows);
    let error = index.upload(&pattern(3, 8193)).expect_err("no room");
    println!("an upload that is refused: {error}");
}

/// A peer that never comes: the wait ends, the stream is aborted, and a new communicator works in
/// the same process.
#[test]
fn an_absent_peer_is_given_up_and_a_new_communicator_works() {
    let Some(_turn) = turn("an_absent_peer_is_given_up_and_a_new_communicator_works") else {
        return;
    };
    let gone = Barrier::new(2);
    pair(|rank, runtime, connect| {
        let communicator = connect();
        let stream = Stream::new(runtime).expect("a stream");
        if rank == 0 {
            let start = Instant::now();
            let limit = Duration::from_secs(2);
            communicator
                .barrier(&stream, limit)
                .expect_err("the peer is absent");
            println!("given up after {:?}", start.elapsed());
            assert!(start.elapsed() < 2 * limit + Duration::from_secs(10));
        }
        gone.wait();
        drop((stream, communicator));
        let communicator = connect();
        let stream = Stream::new(runtime).expect("a stream");
        communicator
            .barrier(&stream, LONG)
            .expect("both ranks are here");
    });
}

/// Host memory is not the device's: what the mock refuses, CANN should not let pass silently.
#[test]
fn a_wrong_pointer_is_an_error() {
    let Some(_turn) = turn("a_wrong_pointer_is_an_error") else {
        return;
    };
    let runtime = open(0);
    let stream = Stream::new(&runtime).expect("a stream");
    let buffer = DeviceBuffer::new(&runtime, 4096).expect("memory");
    let wild = buffer.as_ptr().wrapping_add(1 << 46);
    // SAFETY: nothing valid is touched; the copy is refused or fails on the device.
    let result = unsafe { stream.copy(buffer.as_ptr(), wild, 4096, CopyKind::DeviceToDevice) }
        .and_then(|()| stream.wait(LONG));
    let error = result.expect_err("there is no such memory");
    println!("a wrong pointer: {error}");
    assert!(matches!(error, DeviceError::Call { .. }));
    stream.abort().expect("the stream can be aborted");
}
