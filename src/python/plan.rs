//! `seqshift._native.plan_core`: the planner on plain numbers. The Python layer
//! checks types and maps indices to request ids.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::plan::{Gears, Options, PlanError, RankLoad, SequenceLoad, plan};

impl From<PlanError> for PyErr {
    fn from(error: PlanError) -> Self {
        PyValueError::new_err(error.to_string())
    }
}

/// rank, running, waiting, blocks per waiting request, blocks per waiting request that cannot
/// move, free blocks, slots, and (blocks, movable) per running sequence.
type LoadTuple = (
    u32,
    u32,
    u32,
    Option<Vec<u32>>,
    Vec<u32>,
    Option<u64>,
    Option<u32>,
    Option<Vec<(u32, bool)>>,
);

/// from, to, count, indices, needs_kv.
type MoveTuple = (u32, u32, u32, Vec<u32>, bool);

/// Gear before, gear after, lower bound, reasons, moves.
type PlanTuple = (u32, u32, u32, Vec<&'static str>, Vec<MoveTuple>);

/// The plan for a group; `ValueError` when the input contradicts itself.
#[pyfunction]
pub fn plan_core(
    py: Python<'_>,
    loads: Vec<LoadTuple>,
    graph_batch_sizes: Vec<u32>,
    max_num_seqs: Option<u32>,
    minimum_gain: f64,
) -> PyResult<PlanTuple> {
    let found = py.detach(|| {
        let loads: Vec<RankLoad> = loads.into_iter().map(rank_load).collect();
        let gears = Gears::new(&graph_batch_sizes)?;
        let options = Options {
            max_num_seqs,
            minimum_gain,
        };
        plan(&loads, &gears, &options)
    })?;
    let reasons = found.reasons.iter().map(|reason| reason.as_str()).collect();
    let moves = found.moves.into_iter();
    let moves = moves
        .map(|m| (m.from, m.to, m.count, m.sequences, m.needs_kv))
        .collect();
    Ok((
        found.gear_before,
        found.gear_after,
        found.lower_bound,
        reasons,
        moves,
    ))
}

fn rank_load(load: LoadTuple) -> RankLoad {
    let (rank, running, waiting, waiting_kv_blocks, pinned_waiting, free, slots, sequences) = load;
    let sequence = |(kv_blocks, movable)| SequenceLoad { kv_blocks, movable };
    RankLoad {
        rank,
        running,
        waiting,
        waiting_kv_blocks,
        pinned_waiting,
        free_kv_blocks: free,
        max_num_seqs: slots,
        sequences: sequences.map(|listed| listed.into_iter().map(sequence).collect()),
    }
}
