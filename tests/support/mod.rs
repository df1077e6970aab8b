//! What the tests on the mock share: the mock itself, ranks as threads, faults.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use seqshift::collective::{Communicator, CommunicatorOptions, RootInfo};
use seqshift::device::{Runtime, RuntimeOptions};
use seqshift::ffi::LibraryOptions;

pub mod cache;
pub mod fault;
pub mod pair;

/// Longer than anything takes that does not hang.
pub const LONG: Duration = Duration::from_secs(60);

/// The directory of the mock that `make mock` built.
pub fn mock() -> PathBuf {
    LibraryOptions::from_env().directory.unwrap_or_else(|| {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("python_hooks/seqshift/_mock")
    })
}

/// The mock, with one of its devices.
pub fn runtime(device: i32) -> Arc<Runtime> {
    let libraries = LibraryOptions {
        directory: Some(mock()),
        toolkit: None,
    };
    Runtime::open(&RuntimeOptions { libraries, device }).expect("make mock has built the mock")
}

/// A barrier that panics for all when one rank has panicked, so that a failed test ends.
pub struct Meeting {
    ranks: u32,
    state: Mutex<(u32, u64, bool)>,
    changed: Condvar,
}

impl Meeting {
    pub fn new(ranks: u32) -> Self {
        Self {
            ranks,
            state: Mutex::new((0, 0, false)),
            changed: Condvar::new(),
        }
    }

    pub fn wait(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 += 1;
        if state.0 == self.ranks {
            *state = (0, state.1 + 1, state.2);
            self.changed.notify_all();
            return;
        }
        let round = state.1;
        while state.1 == round && !state.2 {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        assert!(state.1 > round, "another rank has failed");
    }

    pub fn fail(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).2 = true;
        self.changed.notify_all();
    }
}

/// One rank of a group.
pub struct Rank {
    pub rank: u32,
    pub ranks: u32,
    pub runtime: Arc<Runtime>,
    pub communicator: Communicator,
    /// For all ranks to come together without the communicator.
    pub barrier: Arc<Meeting>,
    root: Arc<Mutex<Vec<u8>>>,
}

impl Rank {
    /// Makes the communicator anew, on all ranks.
    pub fn reconnect(&mut self) {
        let Self {
            rank,
            ranks,
            runtime,
            barrier,
            root,
            ..
        } = self;
        self.communicator = connect(*rank, *ranks, runtime, barrier, root);
    }
}

fn connect(
    rank: u32,
    ranks: u32,
    runtime: &Arc<Runtime>,
    barrier: &Meeting,
    root: &Mutex<Vec<u8>>,
) -> Communicator {
    if rank == 0 {
        let made = RootInfo::create(runtime).expect("a root info can be made");
        *root.lock().expect("no rank has failed") = made.as_bytes().to_vec();
    }
    barrier.wait();
    let bytes = root.lock().expect("no rank has failed").clone();
    let root = RootInfo::try_from(bytes.as_slice()).expect("it has the right length");
    let options = CommunicatorOptions {
        ranks,
        rank,
        buffer_mib: 4,
        name: "test".into(),
    };
    Communicator::connect(runtime, &root, &options, LONG).expect("all ranks join")
}

/// Runs the body as each of the ranks, one thread and one device each, and returns what they
/// return, in order.
pub fn group<T: Send>(ranks: u32, body: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    let barrier = Arc::new(Meeting::new(ranks));
    let root = Arc::new(Mutex::new(Vec::new()));
    let run = |rank: u32| {
        let runtime = runtime(rank as i32);
        let communicator = connect(rank, ranks, &runtime, &barrier, &root);
        let (barrier, root) = (Arc::clone(&barrier), Arc::clone(&root));
        body(Rank {
            rank,
            ranks,
            runtime,
            communicator,
            barrier,
            root,
        })
    };
    let guarded = |rank| {
        let result = catch_unwind(AssertUnwindSafe(|| run(rank)));
        result.inspect_err(|_| barrier.fail())
    };
    let all: Vec<_> = thread::scope(|scope| {
        let guarded = &guarded;
        let threads: Vec<_> = (0..ranks)
            .map(|rank| scope.spawn(move || guarded(rank)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().and_then(|result| result))
            .collect()
    });
    all.into_iter()
        .map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)))
        .collect()
}

/// The end of [`LONG`], from now.
pub fn deadline() -> Instant {
    Instant::now() + LONG
}

/// A runner of random cases that says how to repeat them: its seed is `SEQSHIFT_TEST_SEED`, or else
/// the time.
pub fn runner(cases: u32) -> TestRunner {
    let given = std::env::var("SEQSHIFT_TEST_SEED").ok();
    let seed = given.map_or_else(
        || {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            since.map_or(0, |since| since.as_nanos() as u64)
        },
        |text| text.parse().expect("SEQSHIFT_TEST_SEED is a number"),
    );
    println!("SEQSHIFT_TEST_SEED={seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases,
        failure_persistence: None,
        // Cases run on the mock; many of them are slow.
        max_shrink_iters: 100,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// Bytes that are all different from test to test, place to place.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}
