//! One rank's end of a DP group: `Listener` and `Group`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::engine::PyEngine;
use crate::collective::control::{Interrupt, Listener, Mesh, SECRET};
use crate::migrate::kv_path::{KvOptions, KvPath, SubCacheItems};
use crate::migrate::planned::PlannedPolicy;
use crate::migrate::policy::{Forced, ForcedPolicy, Policy};
use crate::migrate::{MigrateError, Migrator, Report};
use crate::plan::{Gears, Options};

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

/// The exception of a signal handler that ended a wait, until the call that was
/// interrupted raises it.
type Raised = Arc<Mutex<Option<PyErr>>>;

/// Ends a wait when Python has a signal to handle.
fn interrupt(raised: Raised) -> Interrupt {
    Arc::new(move || {
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
    migrator: Mutex<Option<Migrator<KvPath>>>,
    raised: Raised,
}

#[pymethods]
impl PyGroup {
    /// Connects the control channels and opens the device.
    ///
    /// `dp` and `tp` are (listener, rank, addresses "host:port" by rank), None for a group of one.
    #[new]
    #[pyo3(signature = (dp, tp, *, gears, minimum_gain, block_size, deadline_seconds, library_dir,
                        mock, device, staging_mib, comm_buffer_mib, verify_kv, forced_plan=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        dp: Option<(PyRefMut<'_, PyListener>, u32, Vec<String>)>,
        tp: Option<(PyRefMut<'_, PyListener>, u32, Vec<String>)>,
        gears: Vec<u32>,
        minimum_gain: f64,
        block_size: u32,
        deadline_seconds: f64,
        library_dir: Option<String>,
        mock: bool,
        device: i32,
        staging_mib: usize,
        comm_buffer_mib: u32,
        verify_kv: bool,
        forced_plan: Option<&str>,
    ) -> PyResult<Self> {
        let raised = Raised::default();
        let deadline = Duration::from_secs_f64(deadline_seconds);
        let until = Instant::now() + deadline;
        let connect = |end: Option<(PyRefMut<'_, PyListener>, u32, Vec<String>)>| {
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
        let dp = connect(dp)?;
        let tp = connect(tp)?;
        let policy: Box<dyn Policy> = match forced_plan {
            Some(name) => Box::new(ForcedPolicy::new(
                Forced::parse(name).map_err(PyValueError::new_err)?,
            )),
            None => {
                let gears = Gears::new(&gears).map_err(|e| PyValueError::new_err(e.to_string()))?;
                Box::new(PlannedPolicy::new(
                    gears,
                    Options {
                        minimum_gain,
                        ..Options::default()
                    },
                ))
            }
        };
        let options = KvOptions {
            library_dir: library_dir.map(Into::into),
            mock,
            device,
            staging_bytes: staging_mib << 20,
            comm_buffer_mib,
            verify: verify_kv,
        };
        let kv = py.detach(|| KvPath::open(options)).map_err(error)?;
        let migrator = Migrator::new(dp, tp, kv, policy, block_size, deadline);
        Ok(Self {
            migrator: Mutex::new(Some(migrator)),
            raised,
        })
    }

    /// The KV caches: per layer a list of sub-caches
    /// (pointer, blocks, block stride in bytes, block length in bytes, extent in bytes, dtype, format).
    fn set_layout(&self, py: Python<'_>, layers: Vec<Vec<SubCacheItems>>) -> PyResult<()> {
        py.detach(|| self.with(|m| m.kv().set_layout(&layers).map_err(error)))
    }

    /// Makes the KV communicator; all ranks of the group call it.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.with(|m| m.start().map_err(error)))
    }

    /// Runs one check; returns what happened as a dict.
    fn check<'py>(
        &self,
        py: Python<'py>,
        adapter: Py<PyAny>,
        step: u64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let report = self.run(py, adapter, |m, engine| m.check(engine, step))?;
        report_items(py, &report)
    }

    /// The last return of a rollout; true when anything was returned to anybody.
    fn drain(&self, py: Python<'_>, adapter: Py<PyAny>) -> PyResult<bool> {
        self.run(py, adapter, |m, engine| m.drain(engine))
    }

    /// Closes the channels and gives all memory back.
    fn close(&self, py: Python<'_>) {
        let taken = lock(&self.migrator).take();
        py.detach(|| drop(taken));
    }
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
        let mut engine = PyEngine::new(adapter);
        let result = py.detach(|| self.with(|m| Ok(act(m, &mut engine))))?;
        if let Some(signal) = lock(&self.raised).take() {
            return Err(signal);
        }
        if let Some(fatal) = engine.fatal {
            return Err(fatal);
        }
        result.map_err(error)
    }
}

fn report_items<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let items = PyDict::new(py);
    let counts: Vec<(u32, u32)> = report
        .loads
        .iter()
        .map(|l| (l.running, l.waiting))
        .collect();
    let moves: Vec<_> = report
        .moves
        .iter()
        .map(|m| (m.flight.from, m.flight.to, m.error.as_deref(), m.rejected))
        .collect();
    items.set_item("counts", counts)?;
    items.set_item("gear_before", report.decision.gear_before)?;
    items.set_item("gear_after", report.decision.gear_after)?;
    items.set_item("reasons", &report.decision.reasons)?;
    items.set_item("moves", moves)?;
    items.set_item("kv_bytes", report.kv_bytes)?;
    items.set_item("synced", report.synced)?;
    items.set_item("pause_seconds", report.pause.as_secs_f64())?;
    items.set_item("faults", report.faults())?;
    items.set_item("committed", report.committed())?;
    Ok(items)
}
