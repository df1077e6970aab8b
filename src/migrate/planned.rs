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

    /// Sequences have ended since the decision. Of what leaves a rank the last ones stay, as many
    /// as neither the lower gear, if there still is one to gain, nor the requests that wait for a
    /// slot there need.
    fn confirm(&self, loads: &[Load], flights: &[Flight]) -> Vec<bool> {
        let most: Vec<u32> = loads
            .iter()
            .map(|l| l.max_num_seqs.max(l.running))
            .collect();
        // Where no slot is free, whatever leaves is replaced by what waits.
        let there = |l: &Load| match l.running >= l.max_num_seqs {
            true => l.running.saturating_add(l.waiting),
            false => l.running,
        };
        let before: Vec<u32> = loads.iter().map(there).collect();
        let gear = |there: &[u32]| {
            let at_once = there
                .iter()
                .zip(&most)
                .map(|(&there, &most)| there.min(most));
            self.gears.gear_of(at_once.max().unwrap_or(0))
        };
        let mut counts = before.clone();
        let shift = |counts: &mut [u32], from: u32, to: u32| {
            counts[from as usize] = counts[from as usize].saturating_sub(1);
            counts[to as usize] = counts[to as usize].saturating_add(1);
        };
        flights
            .iter()
            .for_each(|f| shift(&mut counts, f.from, f.to));
        let lowered = gear(&counts) < gear(&before);
        let target = if lowered { gear(&counts) } else { u32::MAX };
        let blocked = before.iter().zip(&most).any(|(there, most)| there > most);
        let mut keep = vec![lowered || blocked; flights.len()];
        loop {
            let mut same = true;
            for (keep, flight) in keep.iter_mut().zip(flights).rev() {
                let from = flight.from as usize;
                if *keep && counts[from] < most[from].min(target) {
                    (*keep, same) = (false, false);
                    shift(&mut counts, flight.to, flight.from);
                }
            }
            // What stays leaves room where it would have come, so that more can stay there.
            if same {
                return keep;
            }
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
        pinned_waiting: detail.pinned_waiting_blocks.clone(),
        free_kv_blocks: Some(u64::from(detail.free_kv_blocks)),
        max_num_seqs: Some(load.max_num_seqs),
        sequences: Some(detail.running.iter().map(sequence).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is kept of three moves from rank 0 to 1, with gears of 4 and 8.
    fn kept(running: [u32; 2], waiting: u32) -> Vec<bool> {
        let load = |running, waiting| Load {
            running,
            waiting,
            max_num_seqs: 8,
            ..Load::default()
        };
        let flight = |index| Flight {
            from: 0,
            to: 1,
            source: Source::Running(index),
        };
        let policy = PlannedPolicy::new(Gears::new(&[4, 8]).unwrap(), Options::default());
        let loads = [load(running[0], waiting), load(running[1], 0)];
        policy.confirm(&loads, &[0, 1, 2].map(flight))
    }

    #[test]
    fn what_a_lower_gear_no_longer_needs_stays() {
        assert_eq!(kept([7, 1], 0), [true, true, true]);
        assert_eq!(kept([6, 1], 0), [true, true, false]);
        assert_eq!(kept([4, 1], 0), [false, false, false]);
        assert_eq!(kept([8, 5], 0), [false, false, false]);
    }

    #[test]
    fn what_makes_room_for_waiting_requests_moves() {
        assert_eq!(kept([8, 5], 9), [true, true, true]);
        assert_eq!(kept([8, 5], 1), [true, false, false]);
        assert_eq!(kept([7, 5], 9), [false, false, false]);
    }
}
