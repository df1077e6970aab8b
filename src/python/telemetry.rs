//! Counters and log of this process.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::telemetry::{Counters, init_log};

static COUNTERS: Mutex<Counters> = Mutex::new(Counters::new());

/// The counters of this process.
pub fn counters() -> MutexGuard<'static, Counters> {
    COUNTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What this process has done since the hooks went in, as a dict.
#[pyfunction]
pub fn stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let now = counters().clone();
    let items = PyDict::new(py);
    items.set_item("steps", now.steps)?;
    items.set_item("checks", now.checks)?;
    items.set_item("plans", now.plans)?;
    items.set_item("sequences_moved", now.sequences_moved)?;
    items.set_item("sequences_received", now.sequences_received)?;
    items.set_item("moves_rejected", now.moves_rejected)?;
    items.set_item("moves_rolled_back", now.moves_rolled_back)?;
    items.set_item("faults", now.faults)?;
    items.set_item("pinned", now.pinned)?;
    items.set_item("failures", now.failures)?;
    items.set_item("kv_bytes_moved", now.kv_bytes_moved)?;
    items.set_item("precopied_bytes", now.precopied_bytes)?;
    items.set_item("precopy_rounds", now.precopy_rounds)?;
    items.set_item("precopy_aborted", now.precopy_aborted)?;
    items.set_item("pause_seconds", now.pause_seconds)?;
    items.set_item("gear", now.gear)?;
    Ok(items)
}

/// Control messages that this process has tampered with: `SEQSHIFT_TEST_FAULT`, for tests.
#[pyfunction]
pub fn test_faults() -> u64 {
    crate::collective::fault::injected()
}

/// Back to zero.
#[pyfunction]
pub fn reset_stats() {
    *counters() = Counters::new();
}

/// Counts a request that cannot be moved.
#[pyfunction]
pub fn count_pinned(reason: &str) {
    counters().pin(reason);
}

/// Writes a log line; `level` is a name of Python's logging module.
#[pyfunction]
pub fn log_line(level: &str, message: &str) {
    init_log();
    match level {
        "DEBUG" => tracing::debug!("{message}"),
        "INFO" => tracing::info!("{message}"),
        "WARNING" => tracing::warn!("{message}"),
        _ => tracing::error!("{message}"),
    }
}
