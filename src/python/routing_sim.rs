//! `seqshift._native.simulate_routing`: the routing simulator, JSON in and out.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::sim::routing::Study;
use crate::sim::routing::presets::presets;

/// Runs a study: `study` is a JSON object with the fields of `Study`, absent ones have defaults.
///
/// Returns JSON: the table of policies; with `margin` the table of that margin beside pins that
/// never break; with `suggest` the best margin and the table of those tried.
#[pyfunction]
#[pyo3(signature = (study, *, margin=None, suggest=false))]
pub fn simulate_routing(
    py: Python<'_>,
    study: &str,
    margin: Option<f64>,
    suggest: bool,
) -> PyResult<String> {
    let study: Study = serde_json::from_str(study).map_err(invalid)?;
    let json = py.detach(|| -> Result<_, crate::route::RouteError> {
        Ok(match margin {
            Some(margin) => serde_json::to_string(&study.try_margin(margin)?),
            None if suggest => serde_json::to_string(&study.suggest_margin()?),
            None => serde_json::to_string(&study.compare()?),
        })
    });
    json?.map_err(invalid)
}

/// The presets, as a JSON list of objects with `name`, `about`, `study` and `published`.
#[pyfunction]
pub fn routing_presets() -> PyResult<String> {
    serde_json::to_string(&presets()).map_err(invalid)
}

fn invalid(error: serde_json::Error) -> PyErr {
    PyValueError::new_err(format!("routing study: {error}"))
}
