//! `seqshift._native.simulate_core`: the rollout simulator on JSON documents.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::sim::rollout::{
    GearCost, PRESETS, Policy, Setup, SimError, compare, deepseek_v3, preset, qwen3_235b,
    suggest_gears,
};

impl From<SimError> for PyErr {
    fn from(error: SimError) -> Self {
        PyValueError::new_err(error.to_string())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    Compare {
        setup: Setup,
        policies: Vec<Policy>,
    },
    SuggestGears {
        setup: Setup,
        count: usize,
        graph_seconds: f64,
        graph_mib: f64,
        graph_budget_mib: Option<f64>,
        baseline: Vec<u32>,
    },
}

fn json_error(error: serde_json::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Answers a request, JSON to JSON; `ValueError` names the field and the value.
#[pyfunction]
pub fn simulate_core(py: Python<'_>, request: &str) -> PyResult<String> {
    let request: Request = serde_json::from_str(request).map_err(json_error)?;
    py.detach(|| match request {
        Request::Compare { setup, policies } => {
            let found = compare(&setup, &policies)?;
            serde_json::to_string(&found).map_err(json_error)
        }
        Request::SuggestGears {
            setup,
            count,
            graph_seconds,
            graph_mib,
            graph_budget_mib,
            baseline,
        } => {
            let cost = GearCost {
                seconds: graph_seconds,
                mib: graph_mib,
                budget_mib: graph_budget_mib,
            };
            let found = suggest_gears(&setup, count, cost, &baseline)?;
            serde_json::to_string(&found).map_err(json_error)
        }
    })
}

/// Named setups, their published times, and length presets, as JSON.
#[pyfunction]
pub fn simulate_presets() -> PyResult<String> {
    let mut setups = Map::new();
    for published in [deepseek_v3(), qwen3_235b()] {
        let entry = json!({
            "setup": published.setup,
            "published_without_seconds": published.without_seconds,
            "published_with_seconds": published.with_seconds,
        });
        setups.insert(published.name.to_owned(), entry);
    }
    let lengths: Map<String, Value> = PRESETS
        .iter()
        .filter_map(|&name| Some((name.to_owned(), json!(preset(name)?))))
        .collect();
    serde_json::to_string(&json!({ "setups": setups, "lengths": lengths })).map_err(json_error)
}
