//! One rank's end of a DP group: `Listener` and `Group`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use super::engine::{PyEngine, Raised};
use super::telemetry::counters;
use crate::collective::control::{Interrupt, Listener, Mesh, SECRET};
use crate::collective::fault::Fault;
use crate::device::RuntimeOptions;
use crate::ffi::LibraryOptions;
use crate::kv::{DType, Format, SubCache};
use crate::migrate::engine::Engine;
use crate::migrate::kv_path::{KvOptions, KvPath};
use crate::migrate::pace::Pace;
use crate::migrate::planned::PlannedPolicy;
use crate::migrate::policy::{Forced, ForcedPolicy, Policy};
use crate::migrate::{MigrateError, Migrator, MoveResult, Precopied, Precopy, Report};
use crate::plan::{Gears, Mode, Options, RankCount};
use crate::telemetry::{CheckRecord, MoveRecord, Profile};
use crate::wire::frame::Kind;

/// A socket that the other ranks of a group connect to.
#[pyclass(name = "Listener", module = "seqshift._native")]
pub struct PyListener(Option<Listener>, u16);

#[pymethods]
impl PyListener {
    /// `secret`: 16 bytes that all ranks of the group share.
    #[new]
    fn new(secret: Vec<u8>) -> PyResult<Self> {
        let secret: [u8; SECRET] = secret.try_into().map_err(|s: Vec<u8>| {
            PyValueError::new_err(format!("secret: {} bytes, {SECRET} wanted", s.len()))
        })?;
        let listener = Listener::bind(secret).map_err(error)?;
        let port = listener.port().map_err(error)?;
        Ok(Self(Some(listener), port))
    }

    /// The port to connect to.
    #[getter]
    fn port(&self) -> u16 {
        self.1
    }
}

fn error(e: impl std::fmt::Display) -> PyErr {
    PyRuntimeError::new_err(e.to_string())
}

/// Ends a wait when Python has a signal to handle, or the adapter has met one.
fn interrupt(raised: Raised) -> Interrupt {
    Arc::new(move || {
        if lock(&raised).is_some() {
            return true;
        }
        let Some(error) = Python::attach(|py| py.check_signals().err()) else {
            return false;
        };
        lock(&raised).get_or_insert(error);
        true
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One rank of a DP group, and its TP shards.
#[pyclass(name = "Group", module = "seqshift._native")]
pub struct PyGroup {
    /// Never waited for with the interpreter attached: whoever has it may be waiting for that.
    migrator: Mutex<Option<Migrator<KvPath>>>,
    raised: Raised,
    rank: u32,
    profile: Mutex<Profile>,
    pace: Mutex<Pace>,
    adaptive: bool,
    precopy: Precopy,
}

#[pymethods]
impl PyGroup {
    /// Connects the control channels and opens the device.
    ///
    /// `dp` and `tp` are (listener, rank, addresses "host:port" by rank), None for a
    /// group of one; `options` is a dict with the items of `GroupOptions`.
    #[new]
    fn new(
        py: Python<'_>,
        dp: Option<End<'_>>,
        tp: Option<End<'_>>,
        options: GroupOptions,
    ) -> PyResult<Self> {
        let raised = Raised::default();
        let deadline = Duration::from_secs_f64(options.deadline_seconds);
        let until = Instant::now() + deadline;
        let connect = |end: Option<End<'_>>| {
            let Some((mut listener, rank, addresses)) = end else {
                return Ok(Mesh::alone());
            };
            let listener = listener
                .0
                .take()
                .ok_or_else(|| error("this listener was used before"))?;
            let stop = interrupt(raised.clone());
            py.detach(|| listener.connect(rank, &addresses, until, stop))
                .map_err(error)
        };
        let (mut dp, mut tp) = (connect(dp)?, connect(tp)?);
        let rank = dp.rank();
        if let Some(fault) = Fault::from_env().map_err(PyValueError::new_err)? {
            // Votes pass among the shards of a rank, everything else among ranks.
            let votes = fault.kind == Kind::Shard;
            let mesh = if votes { &mut tp } else { &mut dp };
            if let Some(tamper) = fault.on(mesh.rank()) {
                mesh.set_tamper(tamper);
            }
        }
        let gears = Gears::new(&options.gears).map_err(|e| PyValueError::new_err(e.to_string()))?;
        let policy: Box<dyn Policy> = match &options.forced_plan {
            Some(name) => {
                let plan = Forced::parse(name).map_err(PyValueError::new_err)?;
                Box::new(ForcedPolicy::new(plan))
            }
            None => {
                let limits = Options {
                    minimum_gain: options.minimum_gain,
                    ..Options::default()
                };
                Box::new(PlannedPolicy::new(gears.clone(), limits))
            }
        };
        let precopy =
            Precopy::new(options.precopy, &options.test_precopy).map_err(PyValueError::new_err)?;
        let mut libraries = LibraryOptions::from_env();
        libraries.directory = options.library_dir.map(Into::into).or(libraries.directory);
        let device = options.device;
        let kv = KvOptions {
            runtime: RuntimeOptions { libraries, device },
            ranks: dp.size(),
            staging_bytes: options.staging_mib << 20,
            comm_buffer_mib: options.comm_buffer_mib,
            verify: options.verify_kv,
            stack_bytes: 1 << 20,
        };
        let kv = py.detach(|| KvPath::open(kv)).map_err(error)?;
        let mode = if options.adaptive {
            Mode::Adaptive
        } else {
            Mode::Interval
        };
        let (interval, slots) = (options.check_interval, options.max_num_seqs);
        let now = Instant::now();
        let every = options.profile_interval;
        let mut migrator = Migrator::new(dp, tp, kv, policy, options.block_size, deadline);
        migrator.set_precopy(precopy);
        Ok(Self {
            migrator: Mutex::new(Some(migrator)),
            raised,
            rank,
            profile: Mutex::new(Profile::new(
                options.profile,
                every,
                rank,
                &options.gears,
                now,
            )),
            pace: Mutex::new(Pace::new(mode, interval, gears, slots)),
            adaptive: options.adaptive,
            precopy,
        })
    }

    /// The KV caches: per layer a list of sub-caches (pointer, blocks, block stride,
    /// block length, extent, dtype, ACL format); in bytes.
    ///
    /// The memory must stay allocated until the next call, or until the group is closed.
    fn set_layout(&self, py: Python<'_>, layers: Vec<Vec<SubCacheItems>>) -> PyResult<()> {
        let layers = layers
            .into_iter()
            .map(|layer| layer.into_iter().map(sub_cache_of).collect())
            .collect::<PyResult<Vec<Vec<SubCache>>>>()?;
        // SAFETY: the adapter names its engine's own tensors, and resolves them anew at every rollout.
        let set = |m: &mut Migrator<KvPath>| unsafe { m.kv().set_layout(layers) }.map_err(error);
        py.detach(|| self.with(set))
    }

    /// The stream that computes on the KV caches, as the integer that torch gives for it.
    fn set_producer(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        let set = |m: &mut Migrator<KvPath>| {
            // SAFETY: torch keeps its current stream, and the adapter names it before every check.
            unsafe { m.kv().set_producer(stream) };
            Ok(())
        };
        py.detach(|| self.with(set))
    }

    /// Makes the KV communicator; all ranks of the group call it.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.with(|m| m.start().map_err(error)))
    }

    /// Called before each step that counts; `steps` counts from 1.
    fn step(&self, steps: u64) {
        counters().steps += 1;
        let now = Instant::now();
        lock(&self.profile).step(steps, now);
        if self.precopy != Precopy::Off {
            lock(&self.pace).step(now);
        }
    }

    /// A rollout begins.
    fn restart(&self) {
        lock(&self.pace).restart();
    }

    /// The rollout ends: waits for a copy in the background. With `leaving` the engine leaves the
    /// group, and the copy is stopped.
    #[pyo3(signature = (adapter, leaving = false))]
    fn cancel(&self, py: Python<'_>, adapter: Py<PyAny>, leaving: bool) -> PyResult<()> {
        let precopied = self.run(py, adapter, |m, engine| match leaving {
            true => m.abandon(engine),
            false => m.cancel(engine),
        })?;
        count_precopied(&precopied);
        counters().kv_bytes_moved += precopied.bytes;
        Ok(())
    }

    /// Whether the adaptive trigger wants a check now, after `step` steps. `slots` is
    /// the group vector of `count_slot`, by rank.
    fn observe(&self, step: u64, slots: Vec<i32>) -> bool {
        let group: Vec<RankCount> = slots.into_iter().map(RankCount::from_slot).collect();
        lock(&self.pace).observe(step, &group, Instant::now())
    }

    /// Runs one check; returns (moves committed, faults, the step of the next check where
    /// that is given), equal on all ranks.
    fn check(
        &self,
        py: Python<'_>,
        adapter: Py<PyAny>,
        step: u64,
    ) -> PyResult<(usize, usize, Option<u64>)> {
        let report = self.run(py, adapter, |m, engine| {
            let (step_seconds, seconds_per_block) = lock(&self.pace).speeds();
            m.set_speeds(step_seconds, seconds_per_block);
            let report = m.check(engine, step)?;
            let mut all = None;
            if self.adaptive && report.resume_at.is_none() {
                let outlook = engine.outlook().unwrap_or_default();
                let mine = lock(&self.pace)
                    .measured(outlook.blocks_per_sequence, outlook.longest_remaining);
                all = Some(m.exchange_measured(&mine)?);
            }
            lock(&self.pace).checked(step, &report, all.as_deref());
            Ok(report)
        })?;
        count_precopied(&report.precopied);
        let record = record_of(&report);
        let mut profile = lock(&self.profile);
        profile.checked(&record);
        counters().record(self.rank, &record, profile.gear());
        Ok((report.committed(), report.faults(), report.resume_at))
    }

    /// A check that plans nothing: results and aborts go home.
    fn give_back(&self, py: Python<'_>, adapter: Py<PyAny>, step: u64) -> PyResult<()> {
        self.run(py, adapter, |m, engine| m.give_back(engine, step))
    }

    /// The last return of a rollout; true when anything was returned to anybody.
    fn drain(&self, py: Python<'_>, adapter: Py<PyAny>) -> PyResult<bool> {
        self.run(py, adapter, |m, engine| m.drain(engine))
    }

    /// The engine has failed for `why`: leaves the group. Returns who had left it before, in words.
    fn end(&self, py: Python<'_>, why: &str) -> Option<String> {
        let end = |taken: &mut Option<Migrator<KvPath>>| taken.as_mut()?.end(why);
        py.detach(|| end(&mut lock(&self.migrator)))
            .map(|gone| gone.to_string())
    }

    /// Closes the channels and gives all memory back.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.migrator).take()));
    }
}

/// What a group is made with; sizes in MiB, times in seconds, gears and counts in sequences.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct GroupOptions {
    gears: Vec<u32>,
    minimum_gain: f64,
    block_size: u32,
    max_num_seqs: u32,
    deadline_seconds: f64,
    library_dir: Option<String>,
    device: i32,
    staging_mib: u64,
    comm_buffer_mib: u32,
    verify_kv: bool,
    profile: bool,
    profile_interval: u64,
    adaptive: bool,
    check_interval: u32,
    forced_plan: Option<String>,
    precopy: bool,
    test_precopy: String,
}

/// (listener, own rank, "host:port" by rank)
type End<'py> = (PyRefMut<'py, PyListener>, u32, Vec<String>);

/// (pointer, blocks, block stride, block length, extent, dtype, ACL format); bytes.
type SubCacheItems = (u64, u64, u64, u64, u64, String, i32);

fn sub_cache_of(items: SubCacheItems) -> PyResult<SubCache> {
    let (base, blocks, stride, length, extent, dtype, format) = items;
    let dtype = DType::from_torch(&dtype).ok_or_else(|| {
        PyValueError::new_err(format!("dtype: {dtype} is not one that KV caches have"))
    })?;
    let format = Format::from_acl(format);
    Ok(SubCache {
        base,
        extent,
        blocks,
        stride,
        length,
        dtype,
        format,
    })
}

impl PyGroup {
    fn with<T>(&self, act: impl FnOnce(&mut Migrator<KvPath>) -> PyResult<T>) -> PyResult<T> {
        let mut guard = lock(&self.migrator);
        act(guard
            .as_mut()
            .ok_or_else(|| error("this group is closed"))?)
    }

    fn run<T: Send>(
        &self,
        py: Python<'_>,
        adapter: Py<PyAny>,
        act: impl FnOnce(&mut Migrator<KvPath>, &mut PyEngine) -> Result<T, MigrateError> + Send,
    ) -> PyResult<T> {
        let mut engine = PyEngine::new(adapter, self.raised.clone());
        let result = py.detach(|| self.with(|m| Ok(act(m, &mut engine))))?;
        if let Some(signal) = lock(&self.raised).take() {
            return Err(signal);
        }
        result.map_err(error)
    }
}

/// A rank's counts as one slot of the group vector; 0 exactly when it has nothing unfinished.
#[pyfunction]
pub fn count_slot(running: u32, waiting: u32) -> i32 {
    RankCount { running, waiting }.to_slot()
}

fn count_precopied(precopied: &Precopied) {
    for why in &precopied.aborted {
        tracing::info!("a copy in the background was of no use: {why}");
    }
    let mut counters = counters();
    counters.precopy_rounds += u64::from(precopied.rounds);
    counters.precopied_bytes += precopied.bytes;
    for why in &precopied.aborted {
        *counters.precopy_aborted.entry(why.clone()).or_default() += 1;
    }
}

fn record_of(report: &Report) -> CheckRecord {
    let one = |m: &MoveResult| MoveRecord {
        from: m.flight.from,
        to: m.flight.to,
        error: m.error.clone(),
        rejected: m.rejected,
    };
    CheckRecord {
        running: report.loads.iter().map(|l| l.running).collect(),
        moves: report.moves.iter().map(one).collect(),
        reasons: report.decision.reasons.clone(),
        refused: report.kv_error.clone(),
        faults: report.faults() as u64,
        kv_bytes: report.kv_bytes,
        pause_seconds: report.pause.as_secs_f64(),
    }
}
