//! What it costs to move blocks between a cache and staging memory, and which way is cheapest.
//!
//! A model, not a measurement: its constants are published figures for Ascend A2 and A3, and the
//! same on every CANN, the mock included, so that a choice made here is the one made there. What no
//! publication says is assumed, and marked so; `docs/npu-checklist.md` lists how to measure it.

use std::fmt;
use std::str::FromStr;

/// Host time to enqueue one `aclrtMemcpyAsync`, ns. HIXL's benchmarks (hicann/hixl,
/// `benchmarks/performance_en.md`): 5.7 to 5.9 us per copy, the same from 16 KiB to 512 KiB, for
/// copies that the host enqueues (A3, FabricMem, host unfold).
pub const COPY_NS: u64 = 5_800;
/// Time of one row of a two-dimensional copy, ns. Assumed to be that of one descriptor which the
/// device expands itself: 0.9 to 1.0 us in the same tables (A3, AICPU; RoCE work requests).
pub const ROW_NS: u64 = 1_000;
/// Both phases of one kernel, ns. The two calls that write keys and values of one layer by
/// `aclnnInplaceIndexCopy` are profiled at 35 us on a 910B by InfiniOps (`reshape_and_cache`, 256
/// tokens); taken whole for one call, since ours brings its index along.
pub const KERNEL_NS: u64 = 35_000;
/// Bytes per second of copies within a device: the copy engines' best in HIXL's tables (A3,
/// FabricMem, host unfold, 2 MiB), 181.4 GB/s; memfabric_hybrid shows 186.6 GB/s between two dies
/// of a package.
pub const COPY_RATE: u64 = 181_400_000_000;
/// Bytes per second that a kernel moves: half of one die's memory bandwidth of 1.6 TB/s (910C: 3.2
/// TB/s per package of two dies, press), since each byte is read and written.
pub const KERNEL_RATE: u64 = 800_000_000_000;
/// Rows shorter than this cost a kernel as much as rows of this length, bytes. Assumed: what memory
/// transfers of an AI core should at least have to run at full speed.
pub const KERNEL_ROW: u64 = 512;
/// Rows and addresses must be multiples of this, bytes, for kernels to be chosen: an AI core
/// addresses its buffers in blocks of 32 bytes.
pub const KERNEL_ALIGNMENT: u64 = 32;
/// Runs at least this long are sent from the cache, and received into it, without staging, bytes.
/// HCCL copies every item to and from its own buffer and pays per item; from 1 MiB on HIXL's tables
/// show at least nine tenths of their best rate on every path but one.
pub const DIRECT_BYTES: u64 = 1 << 20;

/// A way to move blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Strategy {
    /// One copy per run of adjacent blocks.
    Copies,
    /// The same, and one two-dimensional copy per run of evenly spaced blocks.
    Strided,
    /// One kernel for all blocks: aclnnIndexSelect, aclnnInplaceIndexCopy.
    Kernels,
    /// Nothing is copied: one run, sent from where it lies or received there.
    Direct,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Copies, Self::Strided, Self::Kernels, Self::Direct];

    /// The name, as settings and reports spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copies => "copies",
            Self::Strided => "strided",
            Self::Kernels => "kernels",
            Self::Direct => "direct",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A text that names no strategy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no strategy; there are copies, strided, kernels and direct")]
pub struct UnknownStrategy(String);

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut all = Self::ALL.into_iter();
        all.find(|strategy| strategy.name() == text)
            .ok_or_else(|| UnknownStrategy(text.to_owned()))
    }
}

/// What the loaded CANN can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Means {
    /// Two-dimensional copies within the device.
    pub strided: bool,
    /// Kernels that select and write rows.
    pub kernels: bool,
    /// Whether the blocks may stay where they are while they travel.
    pub direct: bool,
}

/// What is to be moved, in the terms that cost something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Bytes.
    pub bytes: u64,
    /// Runs of adjacent blocks.
    pub runs: u64,
    /// One-dimensional copies that are left when runs of evenly spaced blocks are one
    /// two-dimensional copy each.
    pub singles: u64,
    /// These two-dimensional copies.
    pub spaced: u64,
    /// Their rows, all together.
    pub rows: u64,
    /// Bytes of the rows that a kernel sees: the largest unit that all blocks begin and end at.
    pub unit: u64,
}

/// Why a strategy was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A setting or a test wants it.
    Forced,
    /// All blocks are one long run.
    OneLongRun,
    /// The loaded CANN offers nothing else for these blocks.
    OnlyWay,
    /// The model says that it takes least time.
    Cheapest,
}

impl Reason {
    /// The reason in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Forced => "forced",
            Self::OneLongRun => "one long run",
            Self::OnlyWay => "the only way",
            Self::Cheapest => "least time",
        }
    }
}

/// A strategy, why, and the time it takes by the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The strategy.
    pub strategy: Strategy,
    /// Why.
    pub reason: Reason,
    /// Predicted time, ns.
    pub nanos: u64,
}

/// Whole ns that `bytes` take at `rate` bytes per second.
pub(super) fn transfer(bytes: u64, rate: u64) -> u64 {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

/// Predicted time of a strategy, ns; `None` where it cannot or should not be used.
///
/// Copies overlap with the enqueuing of the next ones, so the slower of both counts.
pub fn nanos(strategy: Strategy, job: &Job, means: Means) -> Option<u64> {
    let moved = transfer(job.bytes, COPY_RATE);
    match strategy {
        Strategy::Copies => Some(job.runs.saturating_mul(COPY_NS).max(moved)),
        Strategy::Strided => {
            let enqueue = (job.singles + job.spaced).saturating_mul(COPY_NS);
            let rows = job.rows.saturating_mul(ROW_NS);
            let useful = means.strided && job.spaced > 0;
            useful.then(|| enqueue.saturating_add(rows).max(moved))
        }
        Strategy::Kernels => {
            let useful = means.kernels && job.unit > 0 && job.unit.is_multiple_of(KERNEL_ALIGNMENT);
            useful.then(|| {
                let rows = job.bytes / job.unit;
                let bytes = rows.saturating_mul(job.unit.max(KERNEL_ROW));
                // The index is uploaded before.
                COPY_NS + KERNEL_NS + transfer(bytes, KERNEL_RATE)
            })
        }
        Strategy::Direct => {
            let useful = means.direct && job.runs == 1 && job.bytes >= DIRECT_BYTES;
            useful.then_some(0)
        }
    }
}

/// The strategy that takes least time; of equals the simplest one.
pub fn choose(job: &Job, means: Means) -> Choice {
    let all = Strategy::ALL.into_iter();
    let possible = all.filter_map(|one| nanos(one, job, means).map(|nanos| (nanos, one)));
    let possible: Vec<_> = possible.collect();
    let (nanos, strategy) = possible
        .iter()
        .copied()
        .min()
        .unwrap_or((0, Strategy::Copies));
    let reason = match strategy {
        Strategy::Direct => Reason::OneLongRun,
        _ if possible.len() == 1 => Reason::OnlyWay,
        _ => Reason::Cheapest,
    };
    Choice {
        strategy,
        reason,
        nanos,
    }
}
