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
//! * `interval`: a check in every step that is a multiple of `check_interval`.
//! * `adaptive`: these checks, which see what counts do not show (a request that waits
//!   for KV blocks, say), and others in between. One in the step in which a lower gear
//!   becomes reachable by counts and the move pays back: predicted saving is the
//!   difference of the step times of the two gears times the steps until the busiest
//!   rank would have come down by itself, predicted cost a fixed part plus the blocks
//!   of the busiest rank at the measured bandwidth, and the saving must exceed the
//!   cost by [`PAYBACK`]. One also when as much time has been lost above the lowest
//!   gear as a check and its moves cost: above the largest gear every count is a gear,
//!   a lower one is nearly always reachable and each is worth little, so only the sum
//!   says when to act. And one when requests have waited long enough beside free slots.
//!   After a check that was blocked it backs off from these. Before anything has been
//!   measured it checks every [`FIRST_INTERVAL`] steps.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use super::gears::Gears;
use super::loss::Loss;
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
    /// Also when a lower gear is reachable and pays.
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
    /// The next multiple of `check_interval` after the last check.
    interval_at: u64,
    /// No check before this step, unless a lower gear than `blocked_at` comes up.
    not_before: u64,
    backoff: u64,
    blocked_at: u32,
    /// Request-steps lost by requests that wait although another rank has room.
    waiting: Loss,
    /// Seconds lost by running in a higher gear than the lowest that counts allow.
    slow: Loss,
    /// The steps in which these will have become enough for a check.
    waiting_at: Option<u64>,
    slow_at: Option<u64>,
    /// (step, unfinished sequences), at every change within [`WINDOW`].
    history: VecDeque<(u64, u64)>,
    seen: Vec<RankCount>,
    /// When `seen` was last weighed.
    weighed_at: Option<u64>,
}

impl Trigger {
    /// A trigger for a rollout that starts at step 0. `slots` is `max_num_seqs`.
    pub fn new(mode: Mode, check_interval: u32, gears: Gears, slots: u32) -> Self {
        let check_interval = u64::from(check_interval.max(1));
        Self {
            mode,
            check_interval,
            gears,
            slots,
            shared: Shared::default(),
            last_check: 0,
            interval_at: check_interval,
            not_before: 0,
            backoff: FIRST_BACKOFF,
            blocked_at: 0,
            waiting: Loss::default(),
            slow: Loss::default(),
            waiting_at: None,
            slow_at: None,
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
            interval_at: check_interval,
            ..fresh
        };
    }

    /// Whether a check is made before step `step` (steps count from 1 and never go
    /// back), given the counts of all ranks in rank order. Time: O(ranks).
    pub fn observe(&mut self, step: u64, group: &[RankCount]) -> Option<Cause> {
        if self.mode == Mode::Adaptive {
            self.remember(step, group);
        }
        if step >= self.interval_at {
            return Some(Cause::Interval);
        }
        if self.mode == Mode::Interval {
            return None;
        }
        if step < self.last_check + QUIET {
            return None;
        }
        if !self.shared.measured() {
            return (step >= self.last_check + FIRST_INTERVAL).then_some(Cause::Unmeasured);
        }
        if step >= self.not_before {
            if self.waiting_at.is_some_and(|at| step >= at) {
                return Some(Cause::Waiting);
            }
            if self.slow_at.is_some_and(|at| step >= at) {
                return Some(Cause::LowerGear);
            }
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
            return Some(self.interval_at);
        }
        if !self.shared.measured() {
            return Some(self.interval_at.min(self.last_check + FIRST_INTERVAL));
        }
        let lost = [self.waiting_at, self.slow_at];
        let lost = lost.into_iter().flatten().min();
        let lost = lost.map(|at| at.max(self.not_before).max(self.last_check + QUIET));
        let again = match self.weighed_at {
            Some(at) => self.weigh_again(at),
            None => self.last_check + QUIET,
        };
        [Some(again), Some(self.interval_at), lost]
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
        self.interval_at = (step / self.check_interval + 1) * self.check_interval;
        self.weighed_at = None;
        if let Some(shared) = shared {
            self.shared = shared;
        }
        self.waiting.reset(step);
        self.slow.reset(step);
        self.weigh_losses(step);
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
        self.weigh_losses(step);
    }

    /// What is lost per step from `step` on, and when that will be enough.
    fn weigh_losses(&mut self, step: u64) {
        self.waiting.rate(step, self.placeable() as f64);
        let group = u64::from(self.slots) * self.seen.len() as u64;
        self.waiting_at = self.waiting.reaches((WASTED_STEPS * group) as f64);
        let found = self.reachable();
        self.slow
            .rate(step, found.as_ref().map_or(0.0, |found| found.slower));
        self.slow_at = found.and_then(|found| self.slow.reaches(found.cost));
    }

    /// Requests that wait for a slot although another rank has one. None while a rank
    /// waits for KV blocks: counts do not say where there are blocks, and a request that
    /// is moved early is then soon preempted. The checks of `interval` see to these.
    fn placeable(&self) -> u64 {
        let (mut above, mut room) = (0, 0);
        for count in &self.seen {
            if count.waiting > 0 && count.running < self.slots {
                return 0;
            }
            let held = count.running.saturating_add(count.waiting);
            above += u64::from(held.saturating_sub(self.slots));
            room += u64::from(self.slots.saturating_sub(held));
        }
        above.min(room)
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

    /// The lowest gear that the counts allow, if it is below the current one and there
    /// are measurements.
    fn reachable(&self) -> Option<Reachable> {
        let running = self.seen.iter().map(|c| c.running.min(self.slots));
        let busiest = running.max().filter(|&busiest| busiest > 0)?;
        let (gear, lowest) = (self.gears.gear_of(busiest), self.lowest());
        if lowest >= gear {
            return None;
        }
        let times = &self.shared.step_seconds;
        let moved = f64::from(busiest - lowest) * self.shared.blocks_per_sequence;
        Some(Reachable {
            busiest,
            lowest,
            slower: times.at(gear)? - times.at(lowest)?,
            cost: self.shared.fixed_seconds + moved * self.shared.seconds_per_block,
        })
    }

    fn lower_gear_pays(&self, step: u64) -> bool {
        let Some(found) = self.reachable() else {
            return false;
        };
        // Blocked before: only a gear that was out of reach then is a new case.
        if step < self.not_before && found.lowest >= self.blocked_at {
            return false;
        }
        // Where every count is a gear there is always a lower one soon: each is worth
        // little by itself, and what matters is what has been lost.
        if found.lowest > self.gears.largest() {
            return false;
        }
        let remaining = self.shared.remaining.unwrap_or(UNKNOWN_REMAINING);
        let rate = self.finish_rate(step);
        let alone = (f64::from(found.busiest) / f64::from(found.lowest.max(1))).ln() / rate;
        let steps = if rate > 0.0 {
            alone.min(remaining)
        } else {
            remaining
        };
        found.slower * steps > PAYBACK * found.cost
    }
}

/// A lower gear than the current one.
struct Reachable {
    /// Sequences of the busiest rank.
    busiest: u32,
    lowest: u32,
    /// Seconds by which a step is slower than in the lowest gear.
    slower: f64,
    /// Seconds of a check and its moves.
    cost: f64,
}
