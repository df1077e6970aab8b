//! Exchange of KV blocks between two processes on the mock, beside a plain copy of the same bytes.
//!
//! Two sequences move from rank 0 to rank 1: 64 layers of keys and values, scattered blocks.
//! Printed are medians of seven runs on the receiving rank, which is the busier one, and their
//! ratio to one thread's copy between buffers out of cache, in the same run. `make bench` builds
//! the mock first.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use seqshift::collective::{Communicator, CommunicatorOptions, RootInfo};
use seqshift::device::{DeviceBuffer, Runtime, RuntimeOptions, Stream};
use seqshift::ffi::LibraryOptions;
use seqshift::kv::{DType, Format, KvLayout, Move, SubCache, Timings, Transfer, TransferOptions};

const LONG: Duration = Duration::from_secs(300);
const RUNS: usize = 7;
const SUB_CACHES: u64 = 128;
/// (bytes of one sequence, bytes of one block in one sub-cache)
const SIZES: [(u64, u64); 4] = [
    (1 << 20, 8 << 10),
    (16 << 20, 32 << 10),
    (64 << 20, 32 << 10),
    (256 << 20, 32 << 10),
];
const STAGING: u64 = 64 << 20;
const CHUNKS: [u64; 2] = [1 << 20, 8 << 20];
/// Argument of the second process.
const CHILD: &str = "--as-rank-1";

fn main() {
    let child = std::env::args().any(|argument| argument == CHILD);
    let mock = LibraryOptions::from_env().directory.unwrap_or_else(|| {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("python_hooks/seqshift/_mock")
    });
    let libraries = LibraryOptions {
        directory: Some(mock),
        toolkit: None,
    };
    let rank = u32::from(child);
    let options = RuntimeOptions {
        libraries,
        device: rank as i32,
    };
    let runtime = Runtime::open(&options).expect("make mock has built the mock");
    let mut other = None;
    let root = if child {
        let mut bytes = vec![0; RootInfo::LEN];
        std::io::stdin()
            .read_exact(&mut bytes)
            .expect("rank 0 sends the root info");
        RootInfo::try_from(bytes.as_slice()).expect("it is one")
    } else {
        let root = RootInfo::create(&runtime).expect("a root info can be made");
        other = Some(second_process(&root));
        root
    };
    let options = CommunicatorOptions {
        ranks: 2,
        rank,
        buffer_mib: 64,
        name: "bench".into(),
    };
    let communicator = Communicator::connect(&runtime, &root, &options, LONG).expect("both join");
    if child {
        println!(
            "{:>8} {:>7} {:>6} {:>10} {:>10} {:>6}  waits (gather, send, scatter, digest) ms",
            "MiB/seq", "chunk", "verify", "exchange", "copy", "ratio"
        );
    }
    for (sequence, block) in SIZES {
        for chunk_bytes in CHUNKS {
            for verify in [false, true] {
                let options = TransferOptions {
                    staging_bytes: STAGING,
                    chunk_bytes,
                    verify,
                };
                let (median, timings) = measure(&runtime, &communicator, options, sequence, block);
                if child {
                    report(options, sequence, median, timings);
                }
            }
        }
    }
    if let Some(mut child) = other {
        assert!(child.wait().expect("the child can be waited for").success());
    }
}

fn second_process(root: &RootInfo) -> Child {
    let program = std::env::current_exe().expect("this program has a path");
    let mut child = Command::new(program)
        .arg(CHILD)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a second process can be started");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    stdin
        .write_all(root.as_bytes())
        .expect("the child reads it");
    child
}

/// Block ids in an order without long runs, the same in every run.
fn scattered(blocks: u64) -> Vec<u32> {
    let step = (blocks / 3) | 1;
    let coprime = (step..).find(|step| gcd(*step, blocks) == 1).unwrap_or(1);
    (0..blocks)
        .map(|index| (index * coprime % blocks) as u32)
        .collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn measure(
    runtime: &Arc<Runtime>,
    communicator: &Communicator,
    options: TransferOptions,
    sequence: u64,
    length: u64,
) -> (Duration, Timings) {
    let per_sequence = sequence / SUB_CACHES / length;
    let blocks = 2 * per_sequence;
    let stream = Stream::new(runtime).expect("a stream");
    let memory = DeviceBuffer::new(runtime, (2 * sequence) as usize).expect("memory");
    let layers = (0..SUB_CACHES / 2).map(|layer| {
        let sub_cache = |kind| SubCache {
            base: memory.as_ptr() as u64 + (2 * layer + kind) * blocks * length,
            extent: blocks * length,
            blocks,
            stride: length,
            length,
            dtype: DType::BFloat16,
            format: Format::Nd,
        };
        vec![sub_cache(0), sub_cache(1)]
    });
    let layout = KvLayout::new(layers.collect()).expect("the layout is possible");
    // SAFETY: the memory outlives the transfer.
    let mut transfer =
        unsafe { Transfer::new(runtime, layout, 2, options) }.expect("there is room");
    let ids = scattered(blocks);
    let peer = 1 - communicator.rank();
    let moves: Vec<_> = ids
        .chunks(per_sequence as usize)
        .map(|blocks| Move { peer, blocks })
        .collect();
    let mut seen = Vec::new();
    for _ in 0..=RUNS {
        communicator.barrier(&stream, LONG).expect("both are here");
        let (outbound, inbound): (&[_], &[_]) = if peer == 1 {
            (&moves, &[])
        } else {
            (&[], &moves)
        };
        let report = transfer.exchange(communicator, outbound, inbound, Instant::now() + LONG);
        assert_eq!(report.broken, None);
        seen.push((report.timings.total, report.timings));
    }
    // The first run touches the memory for the first time.
    let mut seen = seen.split_off(1);
    seen.sort_by_key(|(total, _)| *total);
    seen[RUNS / 2]
}

/// One thread's copy of both sequences, between buffers that are not in the cache.
fn plain_copy(sequence: u64) -> Duration {
    let bytes = (2 * sequence) as usize;
    let buffers = (256_usize << 20).div_ceil(bytes).max(2);
    let sources = vec![vec![1_u8; bytes]; buffers];
    let mut targets = vec![vec![0_u8; bytes]; buffers];
    let mut seen: Vec<_> = (0..RUNS)
        .map(|run| {
            let (source, target) = (&sources[run % buffers], &mut targets[run % buffers]);
            let start = Instant::now();
            target.copy_from_slice(std::hint::black_box(source));
            std::hint::black_box(&target);
            start.elapsed()
        })
        .collect();
    seen.sort_unstable();
    seen[RUNS / 2]
}

fn report(options: TransferOptions, sequence: u64, exchange: Duration, timings: Timings) {
    let copy = plain_copy(sequence);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "{:>8} {:>6}k {:>6} {:>7.2} ms {:>7.2} ms {:>6.1}  {:.2} {:.2} {:.2} {:.2}",
        sequence >> 20,
        options.chunk_bytes >> 10,
        options.verify,
        ms(exchange),
        ms(copy),
        exchange.as_secs_f64() / copy.as_secs_f64(),
        ms(timings.gather),
        ms(timings.send),
        ms(timings.scatter),
        ms(timings.digest),
    );
}
