//! Gather and scatter on the mock by block size and strategy, beside a plain copy of the same bytes
//! in the same run.
//!
//! In each of 24 rounds every strategy follows a plain copy, always between places that are out of
//! the cache. Printed are GB/s by the clock (median, slowest and fastest), the ratio of the medians,
//! and the load average: other processes that use the processors or the memory show there and in
//! the spread. The bound, four fifths of the plain copy from blocks of 64 KiB on, is one for that
//! ratio. Measured once; exits with 1 if it is missed. `make bench` builds the mock first.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use seqshift::device::{DeviceBuffer, Runtime, RuntimeOptions, Stream};
use seqshift::ffi::LibraryOptions;
use seqshift::kv::{
    BlockCopier, BlockPart, DType, Direction, Format, KvLayout, Strategy, SubCache,
};

const LONG: Duration = Duration::from_secs(60);
const ROUNDS: usize = 24;
/// Bytes that are gathered at once.
const BYTES: usize = 16 << 20;
/// Places for as many bytes, in the cache and in staging memory, and in the plain copy's buffers.
const PLACES: usize = 8;
const SIZES: [usize; 8] = [16, 32, 64, 128, 256, 512, 1024, 2048];
/// Block size from which on the bound holds, KiB, and the bound.
const BOUND: (usize, f64) = (64, 0.8);

/// A strategy with blocks that suit it.
struct Way {
    name: &'static str,
    strategy: Option<Strategy>,
    ids: Vec<u32>,
    copier: BlockCopier,
    /// Seconds of gathers and of scatters.
    times: [Vec<f64>; 2],
}

impl Way {
    fn new(name: &'static str, strategy: Option<Strategy>, ids: &[u32]) -> Self {
        Self {
            name,
            strategy,
            ids: ids.to_vec(),
            copier: BlockCopier::new(strategy),
            times: [Vec::new(), Vec::new()],
        }
    }
}

fn main() {
    let mock = LibraryOptions::from_env().directory.unwrap_or_else(|| {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("python_hooks/seqshift/_mock")
    });
    let libraries = LibraryOptions {
        directory: Some(mock),
        toolkit: None,
    };
    let device = 0;
    let runtime = Runtime::open(&RuntimeOptions { libraries, device }).expect("make mock was run");
    println!(
        "gather and scatter on the mock, GB/s (slowest-fastest), medians over memcpy's; {} MiB, {}, load average {}",
        BYTES >> 20,
        machine(),
        load_average()
    );
    println!(
        "{:>9} {:>20} {:>14} {:>26} {:>26}",
        "block", "strategy", "memcpy", "gather", "scatter"
    );
    let memory = Memory::new(&runtime);
    let missed: usize = SIZES
        .iter()
        .map(|size| measure(&runtime, &memory, *size))
        .sum();
    let (from, bound) = BOUND;
    println!(
        "load average {}; bound: {bound} of memcpy from {from} KiB on: {}",
        load_average(),
        if missed == 0 {
            "held".into()
        } else {
            format!("MISSED by {missed} figures")
        }
    );
    std::process::exit(i32::from(missed > 0));
}

/// What is copied from and to. A place of the cache is twice as large as what is gathered from it.
struct Memory {
    cache: DeviceBuffer,
    staging: DeviceBuffer,
    source: Vec<u8>,
}

impl Memory {
    fn new(runtime: &Arc<Runtime>) -> Self {
        let buffer = |bytes| DeviceBuffer::new(runtime, bytes).expect("there is room");
        Self {
            cache: buffer(2 * PLACES * BYTES),
            staging: buffer(PLACES * BYTES),
            source: vec![1; PLACES * BYTES],
        }
    }

    /// One of the places, as blocks.
    fn place(&self, index: usize, length: usize) -> SubCache {
        let one = SubCache {
            base: self.cache.as_ptr() as u64 + (index % PLACES * 2 * BYTES) as u64,
            extent: 2 * BYTES as u64,
            blocks: (2 * BYTES / length) as u64,
            stride: length as u64,
            length: length as u64,
            dtype: DType::BFloat16,
            format: Format::Nd,
        };
        KvLayout::new(vec![vec![one.clone()]]).expect("the layout is possible");
        one
    }
}

/// How many figures miss the bound.
fn measure(runtime: &Arc<Runtime>, memory: &Memory, kib: usize) -> usize {
    let length = kib << 10;
    let count = BYTES / length;
    let stream = Stream::new(runtime).expect("a stream");
    let spaced: Vec<u32> = (0..count as u32).map(|index| 2 * index).collect();
    let scattered = scattered(2 * count as u32, count);
    let mut ways = [
        Way::new("copies", Some(Strategy::Copies), &scattered),
        Way::new("strided", Some(Strategy::Strided), &spaced),
        Way::new("kernels", Some(Strategy::Kernels), &scattered),
        Way::new("chosen", None, &scattered),
    ];
    let mut target = vec![0_u8; PLACES * BYTES];
    let mut plain = Vec::new();
    // The first rounds touch the memory for the first time.
    for round in 0..PLACES + ROUNDS {
        for (number, way) in ways.iter_mut().enumerate() {
            // All come to all places, each to another one than the others.
            let place = (round + 2 * number) % PLACES;
            let at = place * BYTES..(place + 1) * BYTES;
            let start = Instant::now();
            target[at.clone()].copy_from_slice(std::hint::black_box(&memory.source[at.clone()]));
            std::hint::black_box(&target);
            if round >= PLACES {
                plain.push(start.elapsed().as_secs_f64());
            }
            for (kind, direction) in [Direction::Gather, Direction::Scatter]
                .into_iter()
                .enumerate()
            {
                // Not where the gather before has just been.
                let cache = memory.place(place + 4 * kind, length);
                let offset = (place + 4 * kind) % PLACES * BYTES;
                let part = BlockPart {
                    cache: &cache,
                    ids: &way.ids,
                    range: 0..length as u64,
                };
                let staging = memory.staging.as_ptr().wrapping_add(offset);
                let start = Instant::now();
                // SAFETY: all memory outlives the wait.
                unsafe { way.copier.copy(direction, &part, staging, BYTES, &stream) }
                    .expect("it is enqueued");
                stream.wait(LONG).expect("it is done");
                if round >= PLACES {
                    way.times[kind].push(start.elapsed().as_secs_f64());
                }
            }
        }
    }
    let sub_cache = &memory.place(0, length);
    let memcpy = Rate::of(&plain);
    let mut missed = 0;
    for way in &ways {
        let part = BlockPart {
            cache: sub_cache,
            ids: &way.ids,
            range: 0..length as u64,
        };
        let name = match way.strategy {
            Some(_) => way.name.to_owned(),
            None => format!(
                "{}: {}",
                way.name,
                way.copier
                    .choice(&part, memory.staging.as_ptr(), &stream)
                    .strategy
            ),
        };
        let [gather, scatter] = [0, 1].map(|kind| {
            let rate = Rate::of(&way.times[kind]);
            let ratio = rate.median / memcpy.median;
            let short = ratio < BOUND.1 && kib >= BOUND.0;
            missed += usize::from(short);
            let mark = if short { "!" } else { " " };
            let Rate {
                least,
                median,
                most,
            } = rate;
            format!("{median:.1} ({least:.1}-{most:.1}) {ratio:.2}{mark}")
        });
        println!(
            "{kib:>5} KiB {name:>20} {:>4.1} ({:.1}-{:.1}) {gather:>26} {scatter:>26}",
            memcpy.median, memcpy.least, memcpy.most
        );
    }
    missed
}

/// GB/s.
struct Rate {
    least: f64,
    median: f64,
    most: f64,
}

impl Rate {
    fn of(seconds: &[f64]) -> Self {
        let mut rates: Vec<_> = seconds
            .iter()
            .map(|time| BYTES as f64 / time / 1e9)
            .collect();
        rates.sort_by(f64::total_cmp);
        Self {
            least: rates[0],
            median: rates[rates.len() / 2],
            most: rates[rates.len() - 1],
        }
    }
}

/// So many different block ids, no two of which follow one another.
fn scattered(blocks: u32, count: usize) -> Vec<u32> {
    let step = (blocks * 2 / 5) | 1;
    let step = (step..).find(|step| gcd(*step, blocks) == 1).unwrap_or(1);
    let ids =
        (0..u64::from(blocks)).map(|index| (index * u64::from(step) % u64::from(blocks)) as u32);
    ids.take(count).collect()
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Of the last minute.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}

/// The processor, and how many of them.
fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let name = name.map_or("unknown processor", |rest| {
        rest.trim_matches([' ', '\t', ':'])
    });
    let count = std::thread::available_parallelism().map_or(1, |count| count.get());
    format!("{count} x {name}")
}
