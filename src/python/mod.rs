//! The pyo3 module `seqshift._native`. One file per area registers its own
//! classes and functions; logic stays in the inner modules.

mod engine;
mod group;
mod plan;
mod route;
mod routing_sim;
mod sim;
mod telemetry;

use pyo3::prelude::*;

/// `seqshift._native`.
#[pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::group::{PyGroup, PyListener, count_slot};
    #[pymodule_export]
    use super::plan::plan_core;
    #[pymodule_export]
    use super::route::RouterCore;
    #[pymodule_export]
    use super::routing_sim::{routing_presets, simulate_routing};
    #[pymodule_export]
    use super::sim::{simulate_core, simulate_presets};
    #[pymodule_export]
    use super::telemetry::{count_pinned, log_line, reset_stats, stats, test_faults};

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        m.add("ROUTER_POLICIES", crate::route::POLICY_NAMES.to_vec())?;
        m.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
