//! Faults of the mock, armed in its control segment (cann_shim/include/seqshift_mock.h).

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use libloading::os::unix::Library;

/// Rules belong to the process: tests that arm some take turns.
static TURN: Mutex<()> = Mutex::new(());

const RULES: usize = 64;
const RULES_OFFSET: usize = 544;

/// What a rule does to the calls it hits.
#[derive(Clone, Copy)]
pub enum Fault {
    /// The call returns the code.
    Return(i64),
    /// The stream's task waits until released.
    Stall,
    /// The stream's task fails with the code.
    FailTask(i64),
    /// The byte at this place of what the call writes is inverted.
    Corrupt(i64),
}

#[repr(C)]
struct Rule {
    symbol: [u8; 56],
    armed: AtomicU32,
    rank: i32,
    pid: i32,
    action: u32,
    first: u64,
    count: u64,
    value: i64,
    seen: u64,
    hits: u64,
    released: AtomicU32,
    stalled: AtomicU32,
}

const _: () = assert!(size_of::<Rule>() == 120);

/// The control segment's rules.
pub struct Rules {
    first: *mut Rule,
    next: AtomicUsize,
}

// SAFETY: the segment is never unmapped, and made to be shared, even between processes.
unsafe impl Send for Rules {}
// SAFETY: as above.
unsafe impl Sync for Rules {}

/// The turn of one test. Rules are disarmed, and stalls released, when it ends.
pub struct Faults {
    rules: Arc<Rules>,
    _turn: MutexGuard<'static, ()>,
}

impl Faults {
    /// Waits for the other tests' turns to end. The mock must be loaded.
    pub fn begin() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let path = super::mock().join("libascendcl.so");
        // SAFETY: the mock's initialisers are ours.
        let library = unsafe { Library::new(path) }.expect("make mock has built the mock");
        // SAFETY: the mock's header declares the function so.
        let control = unsafe {
            let name: &[u8] = b"seqshiftMockControl\0";
            let function = library.get::<unsafe extern "C" fn() -> *mut u8>(name);
            function.expect("the mock has a control segment")()
        };
        std::mem::forget(library);
        let first = control.wrapping_add(RULES_OFFSET).cast();
        let rules = Arc::new(Rules {
            first,
            next: AtomicUsize::new(0),
        });
        rules.clear();
        Self { rules, _turn: turn }
    }

    /// The rules, for the ranks' threads.
    pub fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }
}

impl Deref for Faults {
    type Target = Rules;

    fn deref(&self) -> &Rules {
        &self.rules
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        self.rules.clear();
    }
}

fn wait_until(holds: impl Fn() -> bool) {
    let end = super::deadline();
    while !holds() && Instant::now() < end {
        std::thread::yield_now();
    }
}

impl Rules {
    fn rule(&self, index: usize) -> *mut Rule {
        self.first.wrapping_add(index)
    }

    /// From the `first` call from now on, counted from 1, `count` calls of the symbol are hit.
    pub fn arm(&self, symbol: &str, first: u64, count: u64, fault: Fault) {
        let rule = self.rule(self.next.fetch_add(1, Ordering::Relaxed));
        let (action, value) = match fault {
            Fault::Return(code) => (1, code),
            Fault::Stall => (3, 0),
            Fault::Corrupt(place) => (5, place),
            Fault::FailTask(code) => (6, code),
        };
        let mut name = [0; 56];
        name[..symbol.len()].copy_from_slice(symbol.as_bytes());
        // SAFETY: the segment has 64 rules, is never unmapped, and this one is not armed.
        unsafe {
            rule.write(Rule {
                symbol: name,
                armed: AtomicU32::new(0),
                rank: -1,
                pid: 0,
                action,
                first,
                count,
                value,
                seen: 0,
                hits: 0,
                released: AtomicU32::new(0),
                stalled: AtomicU32::new(0),
            });
            (*rule).armed.store(1, Ordering::Release);
        }
    }

    /// Ends all stalls once the symbol has been called so many times from now on.
    pub fn release_after(self: &Arc<Self>, symbol: &str, calls: u64) -> JoinHandle<()> {
        let rules = Arc::clone(self);
        self.after(symbol, calls, move || rules.clear())
    }

    /// Does something once the symbol has been called so many times from now on.
    pub fn after(
        self: &Arc<Self>,
        symbol: &str,
        calls: u64,
        act: impl FnOnce() + Send + 'static,
    ) -> JoinHandle<()> {
        // A rule that never hits, to count by.
        let counter = self.next.load(Ordering::Relaxed);
        self.arm(symbol, u64::MAX, 1, Fault::Return(0));
        let rules = Arc::clone(self);
        std::thread::spawn(move || {
            // SAFETY: the segment has 64 rules and is never unmapped; the mock only counts up.
            let seen = || unsafe { (&raw const (*rules.rule(counter)).seen).read_volatile() };
            wait_until(|| seen() >= calls);
            act();
        })
    }

    /// Waits until the rules have hit so many calls.
    pub fn await_hits(&self, hits: u64) {
        wait_until(|| self.hits() >= hits);
    }

    /// How many calls the rules have hit.
    pub fn hits(&self) -> u64 {
        // SAFETY: as above.
        let hits = |index| unsafe { (&raw const (*self.rule(index)).hits).read_volatile() };
        (0..self.next.load(Ordering::Relaxed)).map(hits).sum()
    }

    /// Ends all stalls and disarms all rules.
    pub fn clear(&self) {
        for index in 0..RULES {
            // SAFETY: as above.
            unsafe {
                (*self.rule(index)).armed.store(0, Ordering::Release);
                (*self.rule(index)).released.store(1, Ordering::Release);
            }
        }
    }
}
