//! When to check: the trigger, and the measurements that feed it.
//!
//! What a rank measures enters a decision only after all ranks have exchanged it.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::time::Instant;

use super::Report;
use crate::plan::{Gears, Measured, Mode, Outcome, RankCount, Shared, Trigger};
use crate::wire::message;

/// Samples kept per gear; their median is the gear's step time.
const SAMPLES: usize = 31;

/// Decides before each step whether a check is made, and keeps the time of steps.
#[derive(Debug)]
pub struct Pace {
    trigger: Trigger,
    gears: Gears,
    /// Seconds of recent steps, by gear.
    steps: BTreeMap<u32, VecDeque<f64>>,
    /// When the step under way began, and in which gear.
    since: Option<(Instant, u32)>,
    fixed_seconds: Option<f64>,
    seconds_per_block: Option<f64>,
    /// Seconds of recent steps in any gear, and when the one under way began.
    recent: VecDeque<f64>,
    stepped: Option<Instant>,
}

impl Pace {
    /// A pace for the first rollout. `slots` is `max_num_seqs`.
    pub fn new(mode: Mode, check_interval: u32, gears: Gears, slots: u32) -> Self {
        Self {
            trigger: Trigger::new(mode, check_interval, gears.clone(), slots),
            gears,
            steps: BTreeMap::new(),
            since: None,
            fixed_seconds: None,
            seconds_per_block: None,
            recent: VecDeque::new(),
            stepped: None,
        }
    }

    /// A step begins.
    pub fn step(&mut self, now: Instant) {
        if let Some(since) = self.stepped.replace(now) {
            keep(&mut self.recent, now.duration_since(since).as_secs_f64());
        }
    }

    /// Seconds of a recent step, and per KV block; as far as measured.
    pub fn speeds(&self) -> (Option<f64>, Option<f64>) {
        let step = (!self.recent.is_empty()).then(|| median(&self.recent));
        (step, self.seconds_per_block)
    }

    /// A new rollout; what has been measured stays.
    pub fn restart(&mut self) {
        self.trigger.restart();
        self.since = None;
        self.stepped = None;
    }

    /// Whether a check is made now, after `step` steps, given every rank's counts.
    pub fn observe(&mut self, step: u64, group: &[RankCount], now: Instant) -> bool {
        if let Some((since, gear)) = self.since.take() {
            let samples = self.steps.entry(gear).or_default();
            keep(samples, now.duration_since(since).as_secs_f64());
        }
        // Requests that wait are about to be prefilled: such a step says nothing of its gear.
        if group.iter().all(|c| c.waiting == 0) {
            let busiest = group.iter().map(|c| c.running).max().unwrap_or(0);
            self.since = Some((now, self.gears.gear_of(busiest)));
        }
        self.trigger.observe(step, group).is_some()
    }

    /// What this rank has measured so far.
    pub fn measured(&self, blocks_per_sequence: f64, longest_remaining: Option<u32>) -> Measured {
        Measured {
            step_seconds: self
                .steps
                .iter()
                .map(|(gear, s)| (*gear, median(s)))
                .collect(),
            fixed_seconds: self.fixed_seconds,
            seconds_per_block: self.seconds_per_block,
            blocks_per_sequence,
            longest_remaining,
        }
    }

    /// Takes in a check's report, then what all ranks have measured.
    pub fn checked(&mut self, step: u64, report: &Report, all: Option<&[Measured]>) {
        // The step under way holds the check.
        self.since = None;
        self.stepped = None;
        if report.precopied.blocks > 0 {
            let copied = &report.precopied;
            self.seconds_per_block = Some(copied.time.as_secs_f64() / f64::from(copied.blocks));
        }
        if report.resume_at.is_some() {
            // The plan is still being carried out.
            return;
        }
        let moved = report.committed() > 0;
        if moved {
            let kv = report.kv_time.as_secs_f64();
            self.fixed_seconds = Some(report.pause.as_secs_f64() - kv);
            if report.kv_blocks > 0 {
                self.seconds_per_block = Some(kv / f64::from(report.kv_blocks));
            }
        }
        let outcome = match (moved, report.moves.is_empty()) {
            (true, _) => Outcome::Moved,
            (false, false) => Outcome::Blocked,
            (false, true) if report.decision.blocked => Outcome::Blocked,
            (false, true) => Outcome::Nothing,
        };
        self.trigger.checked(step, outcome, all.map(Shared::merge));
    }
}

fn keep(samples: &mut VecDeque<f64>, seconds: f64) {
    if samples.len() == SAMPLES {
        samples.pop_front();
    }
    samples.push_back(seconds);
}

/// Of at least one.
fn median(samples: &VecDeque<f64>) -> f64 {
    let mut sorted: Vec<f64> = samples.iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

impl From<&Measured> for message::Measured {
    fn from(m: &Measured) -> Self {
        Self {
            step_seconds: m.step_seconds.clone(),
            fixed_seconds: m.fixed_seconds,
            seconds_per_block: m.seconds_per_block,
            blocks_per_sequence: m.blocks_per_sequence,
            longest_remaining: m.longest_remaining,
        }
    }
}

impl From<message::Measured> for Measured {
    fn from(m: message::Measured) -> Self {
        Self {
            step_seconds: m.step_seconds,
            fixed_seconds: m.fixed_seconds,
            seconds_per_block: m.seconds_per_block,
            blocks_per_sequence: m.blocks_per_sequence,
            longest_remaining: m.longest_remaining,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plan::counts;

    #[test]
    fn a_step_is_timed_in_the_gear_of_the_busiest_rank() {
        let gears = Gears::new(&[8, 4]).unwrap();
        let mut pace = Pace::new(Mode::Adaptive, 1000, gears, 8);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        for (step, (running, ms)) in [
            ([7, 1], 0),
            ([7, 1], 30),
            ([7, 1], 60),
            ([4, 1], 91),
            ([4, 1], 101),
        ]
        .into_iter()
        .enumerate()
        {
            pace.observe(step as u64, &counts(&running), at(ms));
        }
        let measured = pace.measured(1.0, None);
        let gears: Vec<u32> = measured
            .step_seconds
            .iter()
            .map(|(gear, _)| *gear)
            .collect();
        assert_eq!(gears, [4, 8]);
        assert!((measured.step_seconds[0].1 - 0.010).abs() < 1e-9);
        assert!((measured.step_seconds[1].1 - 0.030).abs() < 1e-9);
    }

    #[test]
    fn a_step_with_waiting_requests_is_not_timed() {
        let mut pace = Pace::new(Mode::Adaptive, 1000, Gears::new(&[8]).unwrap(), 8);
        let now = Instant::now();
        let mut waiting = counts(&[2]);
        waiting[0].waiting = 1;
        pace.observe(0, &waiting, now);
        pace.observe(1, &counts(&[3]), now + Duration::from_millis(5));
        assert!(pace.measured(1.0, None).step_seconds.is_empty());
    }
}
