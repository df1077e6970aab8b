//! Contract of a rank's KV path: caches that differ from a peer's are refused by the name of the
//! field that differs, also when they have become so later; a copy in the background that is
//! abandoned ends at once, wherever it stalls; without a thread for it the copy is made all the
//! same.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use seqshift::collective::control::{Listener, Mesh, SECRET};
use seqshift::device::RuntimeOptions;
use seqshift::ffi::LibraryOptions;
use seqshift::kv::{DType, Format, SubCache};
use seqshift::migrate::channel::{KvChannel, KvMove};
use seqshift::migrate::kv_path::{KvOptions, KvPath};
use support::fault::{Fault, Faults};
use support::{Meeting, deadline, mock, pattern};

/// An abandoned copy waits for its link and its device so long at most, and for a loaded machine.
const SOON: Duration = Duration::from_secs(20);

/// One rank's end. The path is dropped before the cache.
struct End {
    rank: u32,
    path: KvPath,
    mesh: Mesh,
    /// Memory of the host, as a tensor's on the CPU, which the path registers.
    cache: Vec<u8>,
    barrier: Arc<Meeting>,
}

impl End {
    fn new(rank: u32, mesh: Mesh, stack_bytes: usize, barrier: Arc<Meeting>) -> Self {
        let libraries = LibraryOptions {
            directory: Some(mock()),
            toolkit: None,
        };
        let device = rank as i32;
        let path = KvPath::open(KvOptions {
            runtime: RuntimeOptions { libraries, device },
            ranks: 2,
            staging_bytes: 1 << 20,
            comm_buffer_mib: 4,
            verify: true,
            stack_bytes,
        })
        .expect("the mock is there");
        let mut end = Self {
            rank,
            path,
            mesh,
            cache: Vec::new(),
            barrier,
        };
        end.renew(1024);
        end.restore().expect("both ranks meet");
        end
    }

    /// Caches made anew: 16 blocks of so many bytes.
    fn renew(&mut self, length: u64) {
        let mut new = pattern(self.rank.into(), 16 * length as usize);
        let one = SubCache {
            base: new.as_mut_ptr().expose_provenance() as u64,
            extent: 16 * length,
            blocks: 16,
            stride: length,
            length,
            dtype: DType::Int8,
            format: Format::Nd,
        };
        // SAFETY: the cache is dropped after the path, or once the path has another one.
        unsafe { self.path.set_layout(vec![vec![one]]) }.expect("the layout is possible");
        self.cache = new;
    }

    fn restore(&mut self) -> Result<(), String> {
        self.path.restore(&mut self.mesh, deadline())
    }

    /// Blocks 0 to 3 of rank 0 go to blocks 8 to 11 of rank 1.
    fn begin(&mut self) -> Result<(), String> {
        let first = 8 * self.rank;
        let one = vec![KvMove {
            peer: 1 - self.rank,
            blocks: (first..first + 4).collect(),
        }];
        let (outbound, inbound) = match self.rank {
            0 => (one, Vec::new()),
            _ => (Vec::new(), one),
        };
        self.path.begin(outbound, inbound, deadline())
    }

    /// The copy ends well, and the blocks are at rank 1.
    fn arrives(&mut self) {
        let report = self.path.finish().expect("it ends").report;
        let outcomes = report.outbound.iter().chain(&report.inbound);
        let errors: Vec<_> = outcomes.map(|outcome| outcome.error.clone()).collect();
        assert_eq!((report.broken, errors), (false, vec![None]));
        if self.rank == 1 {
            let sent = pattern(0, 4 * 1024);
            assert!(self.cache[8 * 1024..12 * 1024] == sent[..]);
        }
    }
}

/// Runs the body as two ranks; `stacks`: of their background threads, in bytes.
fn pair(stacks: [usize; 2], body: impl Fn(End) + Sync) {
    let barrier = Arc::new(Meeting::new(2));
    let listeners = [0, 1].map(|_| Listener::bind([5; SECRET]).expect("a port"));
    let port = |one: &Listener| format!("127.0.0.1:{}", one.port().expect("it is bound"));
    let addresses: Vec<_> = listeners.iter().map(port).collect();
    thread::scope(|scope| {
        for ((rank, listener), stack) in (0..).zip(listeners).zip(stacks) {
            let (addresses, barrier, body) = (&addresses, Arc::clone(&barrier), &body);
            scope.spawn(move || {
                let never = Arc::new(|| false);
                let mesh = listener
                    .connect(rank, addresses, deadline(), never)
                    .expect("both ranks connect");
                let meeting = Arc::clone(&barrier);
                let run = AssertUnwindSafe(|| body(End::new(rank, mesh, stack, barrier)));
                if let Err(panic) = catch_unwind(run) {
                    meeting.fail();
                    resume_unwind(panic);
                }
            });
        }
    });
}

const STACKS: [usize; 2] = [1 << 20; 2];

#[test]
fn caches_that_have_become_different_are_refused_by_the_name_of_the_field() {
    let _faults = Faults::begin();
    pair(STACKS, |mut end| {
        let before = end.path.layout();
        end.barrier.wait();
        if end.rank == 1 {
            end.renew(2048);
            assert_ne!(end.path.layout(), before);
        }
        let error = end.restore().expect_err("the caches differ");
        let (ours, theirs) = if end.rank == 0 {
            (1024, 2048)
        } else {
            (2048, 1024)
        };
        let why = format!(
            "KV layout of rank {}: the block length of layer 0, sub-cache 0, is {ours} here, but \
             {theirs} at the peer",
            1 - end.rank
        );
        assert_eq!(error, why);
        assert!(end.path.broken());
        if end.rank == 1 {
            end.renew(1024);
            assert_eq!(end.path.layout(), before);
        }
        end.restore().expect("the caches are alike again");
        end.begin().expect("there is a thread");
        end.arrives();
    });
}

#[test]
fn an_abandoned_copy_ends_at_once_wherever_it_stalls() {
    for (symbol, dropped) in [
        ("HcclBatchSendRecv", false),
        ("HcclBatchSendRecv", true),
        ("aclrtMemcpyAsync", false),
    ] {
        let faults = Faults::begin();
        pair(STACKS, |mut end| {
            end.barrier.wait();
            if end.rank == 0 {
                faults.rules().arm(symbol, 1, 0, Fault::Stall);
            }
            end.barrier.wait();
            end.begin().expect("there is a thread");
            end.barrier.wait();
            assert!(end.path.copying());
            let start = Instant::now();
            if dropped {
                drop(end.path);
                assert!(start.elapsed() < SOON, "{symbol}");
                return;
            }
            end.path.abandon();
            let report = end.path.finish().expect("it can be stopped").report;
            assert!(start.elapsed() < SOON, "{symbol}");
            assert!(report.broken && end.path.broken());
            end.barrier.wait();
            faults.rules().clear();
            end.restore().expect("a new communicator serves");
            end.begin().expect("there is a thread");
            end.arrives();
        });
    }
}

#[test]
fn without_a_thread_the_copy_is_made_at_once() {
    let _faults = Faults::begin();
    // No address space holds such a stack.
    pair([1 << 60, 1 << 20], |mut end| {
        let begun = end.begin();
        match end.rank {
            0 => {
                let why = begun.expect_err("there is no thread");
                assert!(why.starts_with("no thread: "), "{why}");
                assert!(!end.path.copying());
            }
            _ => begun.expect("there is a thread"),
        }
        end.arrives();
        // The path is as it was.
        let _ = end.begin();
        end.arrives();
    });
}
