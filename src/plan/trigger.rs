//! When to check: the step in which a rebalance check pays.
//!
//! A check is a collective, so every rank must decide alike. A [`Trigger`] is
//! therefore fed only with what all ranks hold: the group vector that the
//! all-reduce of "anyone unfinished?" carries in every step ([`RankCount`]), the
//! outcome of a check, and the [`Shared`] values that the ranks exchanged in it.
//! Own measurements never enter a decision before they have been exchanged. The
//! arithmetic is the same on every rank and TP shard; so is the decision. Drained
//! ranks get the same vector and decide alike.
//!
//! * `interval`: a check every `check_interval` steps.
//! * `adaptive`: a check in the step in which a lower gear becomes reachable by
//!   counts and the move pays back. Predicted saving is the difference of the
//!   step times of the two gears times the steps until the busiest rank would
//!   have come down by itself; predicted cost is a fixed part plus the blocks of
//!   the busiest rank at the measured bandwidth. The saving must exceed the cost
//!   by [`PAYBACK`]. After a check that was blocked it backs off. Before anything
//!   has been measured it checks like `interval`, every [`FIRST_INTERVAL`] steps.

use std::collections::VecDeque;

use super::gears::Gears;
use super::shared::{RankCount, Shared};

/// Steps between checks of the adaptive trigger until the first measured values
/// have been exchanged (or `check_interval`, if shorter).
pub const FIRST_INTERVAL: u64 = 32;

/// Predicted saving over predicted cost from which a move is made. Above 1, since
/// both are predictions and a later move would save a part as well.
pub const PAYBACK: f64 = 1.5;

/// Steps after a check in which there is no other one.
const QUIET: u64 = 4;

/// Steps after which unchanged counts are weighed again.
const REWEIGH: u64 = 64;

/// A check for waiting requests is made when as many request-steps have been lost
/// as the whole group decodes in this many steps: moved requests are prefilled
/// anew, for which all ranks wait, so a few at a time would cost more than they
/// gain; and what the scheduler admits by itself is gone sooner.
const WASTED_STEPS: u64 = 4;

/// First back-off after a blocked check; it doubles up to `check_interval`.
const FIRST_BACKOFF: u64 = 32;

/// Steps over which the rate at which sequences finish is measured, at most and,
/// since a single sequence says little, at least.
const WINDOW: u64 = 1024;
const LEAST_WINDOW: u64 = 128;

/// Expected remaining steps while nobody knows better.
const UNKNOWN_REMAINING: f64 = 1000.0;

/// Which trigger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Every `check_interval` steps.
    Interval,
    /// When a lower gear is reachable and pays.
    Adaptive,
}

/// Why a check is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The interval is over.
    Interval,
    /// Nothing has been measured yet: a check brings the first values.
    Unmeasured,
    /// A lower gear is reachable and pays back.
    LowerGear,
    /// Requests wait while another rank has room.
    Waiting,
}

impl Cause {
    /// The name used in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Interval => "interval",
            Self::Unmeasured => "unmeasured",
            Self::LowerGear => "lower_gear",
            Self::Waiting => "waiting",
        }
    }
}

/// How a check ended, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Sequences moved.
    Moved,
    /// Free KV blocks, pins or the minimum gain were in the way, or moves were
    /// rejected.
    Blocked,
    /// There was nothing to gain.
    Nothing,
}

/// Decides in every step whether a check is made. One per engine and rollout.
#[derive(Debug, Clone)]
pub struct Trigger {
    mode: Mode,
    check_interval: u64,
    gears: Gears,
    slots: u32,
    shared: Shared,
    /// Step of the last check or of the start.
    last_check: u64,
    /// No check before this step, unless a lower gear than `blocked_at` comes up.
    not_before: u64,
    backoff: u64,
    blocked_at: u32,
    /// Requests that wait although another rank has room, since when, and the
    /// request-steps that were lost before.
    placeable: u64,
    placeable_since: u64,
    wasted: u64,
    /// (step, unfinished sequences), at every change within [`WINDOW`].
    history: VecDeque<(u64, u64)>,
    seen: Vec<RankCount>,
    /// When `seen` was last weighed.
    weighed_at: Option<u64>,
}

impl Trigger {
    /// A trigger for a rollout that starts at step 0. `slots` is `max_num_seqs`.
    pub fn new(mode: Mode, check_interval: u32, gears: Gears, slots: u32) -> Self {
        Self {
            mode,
            check_interval: u64::from(check_interval.max(1)),
            gears,
            slots,
            shared: Shared::default(),
            last_check: 0,
            not_before: 0,
            backoff: FIRST_BACKOFF,
            blocked_at: 0,
            placeable: 0,
            placeable_since: 0,
            wasted: 0,
            history: VecDeque::new(),
            seen: Vec::new(),
            weighed_at: None,
        }
    }

    /// A new rollout; what has been measured stays.
    pub fn restart(&mut self) {
        let fresh = Self::new(self.mode, 1, self.gears.clone(), self.slots);
        let (shared, check_interval) = (std::mem::take(&mut self.shared), self.check_interval);
        *self = Self {
            shared,
            check_interval,
            ..fresh
        };
    }

    /// Whether a check is made before step `step` (steps count from 1 and never go
    /// back), given the counts of all ranks in rank order. Time: O(ranks).
    pub fn observe(&mut self, step: u64, group: &[RankCount]) -> Option<Cause> {
        let interval_over = step >= self.last_check + self.check_interval;
        if self.mode == Mode::Interval {
            return interval_over.then_some(Cause::Interval);
        }
        self.remember(step, group);
        if step < self.last_check + QUIET {
            return None;
        }
        if !self.shared.measured() {
            let first = self.check_interval.min(FIRST_INTERVAL);
            return (step >= self.last_check + first).then_some(Cause::Unmeasured);
        }
        if step >= self.not_before && self.waste_is_full().is_some_and(|full| step >= full) {
            return Some(Cause::Waiting);
        }
        if self
            .weighed_at
            .is_some_and(|at| step < self.weigh_again(at))
        {
            return None;
        }
        self.weighed_at = Some(step);
        self.lower_gear_pays(step).then_some(Cause::LowerGear)
    }

    /// The first step after `step` in which [`Trigger::observe`] could ask for a
    /// check although the counts stay as they are.
    pub fn next_due(&self, step: u64) -> Option<u64> {
        if self.mode == Mode::Interval {
            return Some(self.last_check + self.check_interval);
        }
        if !self.shared.measured() {
            return Some(self.last_check + self.check_interval.min(FIRST_INTERVAL));
        }
        let waiting = self.waste_is_full().map(|full| full.max(self.not_before));
        let again = match self.weighed_at {
            Some(at) => self.weigh_again(at),
            None => self.last_check + QUIET,
        };
        [Some(again), waiting]
            .into_iter()
            .flatten()
            .min()
            .map(|due| due.max(step + 1))
    }

    /// When counts that were weighed at `at`, and stay, are weighed again: once
    /// the back-off is over, else after a while, since the rate has changed.
    fn weigh_again(&self, at: u64) -> u64 {
        if at < self.not_before {
            self.not_before
        } else {
            at + REWEIGH
        }
    }

    /// Tells how the check at `step` ended and what the ranks exchanged in it
    /// (`None`: nothing new).
    pub fn checked(&mut self, step: u64, outcome: Outcome, shared: Option<Shared>) {
        self.last_check = step;
        self.weighed_at = None;
        (self.wasted, self.placeable_since) = (0, step);
        if let Some(shared) = shared {
            self.shared = shared;
        }
        if outcome == Outcome::Moved {
            self.backoff = FIRST_BACKOFF;
            self.not_before = 0;
            self.blocked_at = 0;
        } else {
            self.not_before = step + self.backoff;
            self.backoff = (self.backoff * 2).min(self.check_interval.max(FIRST_BACKOFF));
            self.blocked_at = self.lowest();
        }
    }

    /// The lowest gear that the last counts allow.
    fn lowest(&self) -> u32 {
        let total: u64 = self
            .seen
            .iter()
            .map(|c| u64::from(c.running + c.waiting))
            .sum();
        let ranks = self.seen.len().max(1) as u64;
        self.gears
            .gear_of(total.div_ceil(ranks).min(self.slots.into()) as u32)
    }

    fn remember(&mut self, step: u64, group: &[RankCount]) {
        if self.seen == group {
            return;
        }
        self.seen.clear();
        self.seen.extend_from_slice(group);
        self.weighed_at = None;
        let total = group.iter().map(|c| u64::from(c.running + c.waiting)).sum();
        if self.history.back().is_none_or(|&(_, last)| last != total) {
            self.history.push_back((step, total));
        }
        // One entry before the window stays: it is the state at its start.
        while self.history.len() > 2 && self.history[1].0 + WINDOW <= step {
            self.history.pop_front();
        }
        self.wasted += self.placeable * (step - self.placeable_since);
        self.placeable_since = step;
        let slots = self.slots;
        let held = |c: &RankCount| c.running.saturating_add(c.waiting);
        let above: u64 = group
            .iter()
            .map(|c| u64::from(held(c).saturating_sub(slots)))
            .sum();
        let room: u64 = group
            .iter()
            .map(|c| u64::from(slots.saturating_sub(held(c))))
            .sum();
        self.placeable = above.min(room);
        if self.placeable == 0 {
            self.wasted = 0;
        }
    }

    /// The step in which enough request-steps will have been lost.
    fn waste_is_full(&self) -> Option<u64> {
        let enough = WASTED_STEPS * u64::from(self.slots) * self.seen.len() as u64;
        let missing = enough.saturating_sub(self.wasted);
        (self.placeable > 0).then(|| self.placeable_since + missing.div_ceil(self.placeable))
    }

    /// Fraction of the sequences that finish per step.
    fn finish_rate(&self, step: u64) -> f64 {
        let (Some(&(start, before)), Some(&(_, now))) = (self.history.front(), self.history.back())
        else {
            return 0.0;
        };
        let steps = (step - start).max(LEAST_WINDOW) as f64;
        if now == 0 || now >= before {
            0.0
        } else {
            (before as f64 / now as f64).ln() / steps
        }
    }

    fn lower_gear_pays(&self, step: u64) -> bool {
        let busiest = self
            .seen
            .iter()
            .map(|c| (c.running + c.waiting).min(self.slots));
        let Some(busiest) = busiest.max().filter(|&busiest| busiest > 0) else {
            return false;
        };
        let (gear, lowest) = (self.gears.gear_of(busiest), self.lowest());
        // Blocked before: only a gear that was out of reach then is a new case.
        if lowest >= gear || step < self.not_before && lowest >= self.blocked_at {
            return false;
        }
        let times = &self.shared.step_seconds;
        let (Some(slow), Some(fast)) = (times.at(gear), times.at(lowest)) else {
            return false;
        };
        let remaining = self.shared.remaining.unwrap_or(UNKNOWN_REMAINING);
        let rate = self.finish_rate(step);
        let alone = (f64::from(busiest) / f64::from(lowest.max(1))).ln() / rate;
        let saving = (slow - fast)
            * if rate > 0.0 {
                alone.min(remaining)
            } else {
                remaining
            };
        let moved = f64::from(busiest - lowest) * self.shared.blocks_per_sequence;
        let cost = self.shared.fixed_seconds + moved * self.shared.seconds_per_block;
        saving > PAYBACK * cost
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::Measured;
    use super::*;

    fn counts(running: &[u32]) -> Vec<RankCount> {
        running
            .iter()
            .map(|&running| RankCount {
                running,
                waiting: 0,
            })
            .collect()
    }

    fn adaptive() -> Trigger {
        Trigger::new(Mode::Adaptive, 1000, Gears::new(&[16, 8, 4]).unwrap(), 16)
    }

    fn shared(fixed_seconds: f64) -> Shared {
        Shared::merge(&[Measured {
            step_seconds: vec![(16, 0.04), (8, 0.02)],
            fixed_seconds: Some(fixed_seconds),
            seconds_per_block: Some(0.001),
            blocks_per_sequence: 10.0,
            longest_remaining: Some(2000),
        }])
    }

    #[test]
    fn interval_is_an_interval() {
        let mut trigger = Trigger::new(Mode::Interval, 100, Gears::new(&[4]).unwrap(), 4);
        let group = counts(&[4, 0]);
        let mut checks = Vec::new();
        for step in 1..=350 {
            if trigger.observe(step, &group) == Some(Cause::Interval) {
                checks.push(step);
                trigger.checked(step, Outcome::Nothing, None);
            }
        }
        assert_eq!(checks, [100, 200, 300]);
    }

    #[test]
    fn unmeasured_it_checks_soon() {
        let mut trigger = adaptive();
        let group = counts(&[12, 2]);
        let first = (1..).find_map(|step| trigger.observe(step, &group).map(|c| (step, c)));
        assert_eq!(first, Some((FIRST_INTERVAL, Cause::Unmeasured)));
    }

    #[test]
    fn it_acts_in_the_step_in_which_a_lower_gear_is_reachable() {
        let mut trigger = adaptive();
        trigger.checked(1, Outcome::Nothing, Some(shared(0.1)));
        trigger.not_before = 0;
        assert_eq!(trigger.observe(10, &counts(&[12, 5])), None);
        assert_eq!(
            trigger.observe(11, &counts(&[12, 4])),
            Some(Cause::LowerGear)
        );
        trigger.checked(11, Outcome::Moved, None);
        assert_eq!(trigger.observe(40, &counts(&[8, 8])), None);
    }

    #[test]
    fn a_move_that_does_not_pay_is_not_made() {
        let mut trigger = adaptive();
        trigger.checked(1, Outcome::Moved, Some(shared(30.0)));
        assert_eq!(trigger.observe(10, &counts(&[12, 4])), None);
        trigger.checked(10, Outcome::Moved, Some(shared(20.0)));
        assert_eq!(
            trigger.observe(20, &counts(&[12, 4])),
            Some(Cause::LowerGear)
        );
    }

    #[test]
    fn a_group_that_comes_down_by_itself_is_left_alone() {
        let mut trigger = adaptive();
        trigger.checked(1, Outcome::Moved, Some(shared(2.0)));
        // Both ranks lose a tenth of their sequences per step.
        assert_eq!(trigger.observe(5, &counts(&[16, 16])), None);
        assert_eq!(trigger.observe(6, &counts(&[14, 14])), None);
        assert_eq!(trigger.observe(7, &counts(&[12, 4])), None);
    }

    #[test]
    fn blocked_it_backs_off_until_a_lower_gear_comes_up() {
        let mut trigger = adaptive();
        trigger.checked(1, Outcome::Moved, Some(shared(0.1)));
        let mut checks = Vec::new();
        let group = counts(&[12, 2]);
        for step in 5..400 {
            if trigger.observe(step, &group).is_some() {
                checks.push(step);
                trigger.checked(step, Outcome::Blocked, None);
                assert!(trigger.next_due(step) > Some(step));
            }
        }
        assert_eq!(checks, [5, 37, 101, 229]);
        // A lower gear than the blocked one does not wait for the back-off.
        assert_eq!(trigger.observe(400, &counts(&[9, 0])), None);
        assert_eq!(
            trigger.observe(401, &counts(&[8, 0])),
            Some(Cause::LowerGear)
        );
    }

    #[test]
    fn waiting_requests_get_a_check_when_enough_is_lost() {
        let mut trigger = adaptive();
        trigger.checked(1, Outcome::Moved, Some(shared(0.1)));
        let group = [
            RankCount {
                running: 16,
                waiting: 3,
            },
            RankCount {
                running: 15,
                waiting: 0,
            },
        ];
        let first = (6..).find_map(|step| trigger.observe(step, &group).map(|c| (step, c)));
        assert_eq!(first, Some((6 + WASTED_STEPS * 32, Cause::Waiting)));
    }
}
