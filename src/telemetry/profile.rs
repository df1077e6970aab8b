//! The profile lines, with the tags that users grep for.

use std::collections::BTreeMap;
use std::time::Instant;

use super::counters::CheckRecord;

/// Prints what a group does. Group lines come from its first rank, the others
/// from every rank.
#[derive(Debug)]
pub struct Profile {
    enabled: bool,
    interval: u64,
    rank: u32,
    /// Ascending.
    gears: Vec<u32>,
    gear: u32,
    since: Instant,
    at: u64,
}

impl Profile {
    /// Lines every `interval` steps and after every check, if `enabled`;
    /// `gears` are the effective graph batch sizes.
    pub fn new(enabled: bool, interval: u64, rank: u32, gears: &[u32], now: Instant) -> Self {
        let mut gears = gears.to_vec();
        gears.sort_unstable();
        Self {
            enabled,
            interval,
            rank,
            gears,
            gear: 0,
            since: now,
            at: 0,
        }
    }

    /// The group's gear after the last check; 0 before the first.
    pub fn gear(&self) -> u32 {
        self.gear
    }

    fn gear_of(&self, count: u32) -> u32 {
        self.gears
            .iter()
            .copied()
            .find(|g| *g >= count)
            .unwrap_or(count)
    }

    /// Called before each step of a rollout; `steps` counts from 1.
    pub fn step(&mut self, steps: u64, now: Instant) {
        if steps <= self.at {
            (self.since, self.at) = (now, 0);
        }
        if !self.enabled || steps - self.at < self.interval {
            return;
        }
        let seconds = now.duration_since(self.since).as_secs_f64();
        let cost = 1000.0 * seconds / (steps - self.at) as f64;
        (self.since, self.at) = (now, steps);
        let (gear, rank) = (self.gear, self.rank);
        tracing::info!(
            "[ProfileDuration={seconds:.3}s] [ProfileStepCost={cost:.2}ms] [TPOT={cost:.2}ms] \
             [CurrentMaxBS={gear}] rank {rank}, step {steps}"
        );
    }

    /// Called after each check.
    pub fn checked(&mut self, check: &CheckRecord) {
        let running = check.running_after();
        let before = self.gear;
        self.gear = self.gear_of(running.iter().copied().max().unwrap_or(0));
        if !self.enabled {
            return;
        }
        if self.rank == 0 {
            self.group_lines(check, &running, before);
        }
        for one in &check.moves {
            let (from, to) = (one.from, one.to);
            match &one.error {
                None if from == self.rank => {
                    tracing::info!("[TaskSendKvCache] rank {from} -> rank {to}");
                }
                None if to == self.rank => tracing::info!(
                    "[ReceivedTask] [ReceivedKvCache] [ReceivedTaskLoaded] rank {from} -> rank {to}"
                ),
                Some(why) if from == self.rank || to == self.rank => {
                    tracing::warn!("a move from rank {from} to rank {to} failed: {why}");
                }
                _ => {}
            }
        }
    }

    fn group_lines(&self, check: &CheckRecord, running: &[u32], before: u32) {
        let by_rank: BTreeMap<usize, u32> = running.iter().copied().enumerate().collect();
        let gears: BTreeMap<usize, u32> = by_rank
            .iter()
            .map(|(rank, count)| (*rank, self.gear_of(*count)))
            .collect();
        tracing::info!("[BSMap] {gears:?}");
        tracing::info!("[SeqCntMap] {by_rank:?}");
        if before != self.gear {
            tracing::info!("[MaxBSChanged: {before} -> {}]", self.gear);
        }
        if !check.moves.is_empty() {
            let reasons = check.reasons.join(", ");
            tracing::info!(
                "[RebalanceScheduleTasks] {} moves ({reasons})",
                check.moves.len()
            );
        }
    }
}
