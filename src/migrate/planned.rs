//! The planner as a [`Policy`].

use super::engine::Source;
use super::policy::{Decision, Flight, Policy};
use crate::plan::{self, Gears, Options, RankLoad, Reason, SequenceLoad};
use crate::wire::message::{Detail, Load};

/// Plans with [`crate::plan`] for a group with these gears.
#[derive(Debug)]
pub struct PlannedPolicy {
    gears: Gears,
    options: Options,
}

impl PlannedPolicy {
    /// `gears` are the effective graph batch sizes.
    pub fn new(gears: Gears, options: Options) -> Self {
        Self { gears, options }
    }
}

impl Policy for PlannedPolicy {
    fn idle(&self, loads: &[Load]) -> bool {
        if loads.len() < 2 {
            return true;
        }
        let counts: Vec<u32> = loads.iter().map(|l| l.running).collect();
        loads.iter().all(|l| l.waiting == 0) && !self.gears.lower_possible(&counts)
    }

    fn decide(&mut self, loads: &[Load], details: &[Detail]) -> Decision {
        let group: Vec<RankLoad> = (0..)
            .zip(loads.iter().zip(details))
            .map(rank_load)
            .collect();
        let plan = match plan::plan(&group, &self.gears, &self.options) {
            Ok(plan) => plan,
            Err(error) => {
                tracing::error!(%error, "no plan");
                return Decision {
                    reasons: vec![error.to_string()],
                    ..Decision::default()
                };
            }
        };
        let mut flights = Vec::new();
        for one in &plan.moves {
            let source = if one.needs_kv {
                Source::Running
            } else {
                Source::Waiting
            };
            let flight = |index: &u32| Flight {
                from: one.from,
                to: one.to,
                source: source(*index),
            };
            flights.extend(one.sequences.iter().map(flight));
        }
        Decision {
            flights,
            reasons: plan.reasons.iter().map(ToString::to_string).collect(),
            blocked: [
                Reason::BlockedByKv,
                Reason::BlockedByPins,
                Reason::BelowMinimumGain,
            ]
            .into_iter()
            .any(|reason| plan.has(reason)),
        }
    }
}

fn rank_load((rank, (load, detail)): (u32, (&Load, &Detail))) -> RankLoad {
    let sequence = |s: &crate::wire::message::SequenceDetail| SequenceLoad {
        kv_blocks: s.kv_blocks,
        movable: s.movable,
    };
    RankLoad {
        rank,
        running: detail.running.len() as u32,
        waiting: detail.waiting_blocks.len() as u32,
        waiting_kv_blocks: Some(detail.waiting_blocks.clone()),
        free_kv_blocks: Some(u64::from(detail.free_kv_blocks)),
        max_num_seqs: Some(load.max_num_seqs),
        sequences: Some(detail.running.iter().map(sequence).collect()),
    }
}
