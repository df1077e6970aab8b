//! The planner: the best moves for a group state.
//!
//! Objectives, each decided before the next:
//! 1. as many waiting requests as possible get a place on a rank with room beside the
//!    requests that wait there, which it serves first; then the lowest maximum, then the
//!    lowest sum of squares, of running + waiting per rank;
//! 2. the lowest gear that the whole group can reach under `max_num_seqs`, free
//!    KV blocks and movability;
//! 3. the fewest sequences moved;
//! 4. the fewest KV blocks moved;
//! 5. the smallest maximum of blocks that one rank sends or receives;
//! 6. ties by rank and evenly spaced by index, so that everybody computes the same plan.
//!
//! Objective 1 looks at the ranks before running sequences move. What their moves make
//! possible is planned in further rounds ([`super::rounds`]) and is part of the plan, so
//! that a second plan right after it finds nothing. (Between sequences of different sizes
//! it may, very rarely, serve more or reach a lower gear with blocks that the first plan has
//! freed, which could not have been used at once with it.)
//!
//! A plan that neither lowers the gear nor gives a waiting request a place that
//! it would not have at home is replaced by the empty plan, or by one that makes room for
//! waiting requests that cannot move ([`super::unblock`]). Blocks and slots that
//! moves free at a source are not counted as room for other sequences: the source
//! keeps everything until the moves have been committed.
//!
//! For movable sequences of one size all objectives are met exactly; for
//! different sizes their packing is heuristic with a bounded search
//! ([`super::packing`]) and always feasible.

use super::error::PlanError;
use super::gears::Gears;
use super::group::Group;
use super::load::RankLoad;
use super::outcome::{Move, Plan, Reason};
use super::packing::Item;
use super::rounds::continued;
use super::shift::{Limits, Seats, Shift};
use super::unblock::or_unblock;
use super::waiting::{Flow, at_home, place, sum};

/// Gears that are tried one by one for sequences of different sizes; beyond them
/// the search bisects.
const TRIED_ONE_BY_ONE: usize = 16;

/// What limits a plan besides the loads.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Most sequences per rank, for ranks that give none themselves.
    pub max_num_seqs: Option<u32>,
    /// Least predicted fraction (0..1) of the time per step that a plan must save
    /// unless it serves waiting requests. The time of a step is taken as
    /// proportional to its gear, which makes the prediction an upper bound.
    pub minimum_gain: f64,
}

/// The best moves for a group, the same for every order of `loads`.
///
/// Time: O(ranks log counts) plus a linear pass over the sequences, plus
/// O(n log n) for what is moved.
///
/// # Errors
/// A [`PlanError`] when the input contradicts itself.
///
/// ```
/// use seqshift::plan::{Gears, Options, RankLoad, plan};
/// let loads = [RankLoad::counts(0, 12, 0), RankLoad::counts(1, 2, 0)];
/// let plan = plan(&loads, &Gears::new(&[16, 8, 4]).unwrap(), &Options::default()).unwrap();
/// assert_eq!((plan.gear_before, plan.gear_after, plan.moved()), (16, 8, 4));
/// ```
pub fn plan(loads: &[RankLoad], gears: &Gears, options: &Options) -> Result<Plan, PlanError> {
    let group = Group::new(loads, options)?;
    let first = plan_once(&group, gears, options);
    let found = continued(&group, gears, options, first);
    Ok(or_unblock(&group, gears, found))
}

/// What one round finds.
pub(super) struct Round {
    pub(super) plan: Plan,
    /// Waiting requests that have room where they are.
    pub(super) at_home: u64,
}

/// The best moves of a single round.
pub(super) fn plan_once(group: &Group, gears: &Gears, options: &Options) -> Round {
    let home = at_home(group);
    let before: Vec<u32> = group
        .running
        .iter()
        .zip(&home)
        .map(|(&a, &b)| a + b)
        .collect();
    let gear_before = gears.gear_of(group.at_once(&before));
    let nothing = |lower_bound: u32, reasons: Vec<Reason>| Round {
        plan: Plan {
            gear_before,
            gear_after: gear_before,
            lower_bound,
            reasons,
            moves: Vec::new(),
        },
        at_home: sum(&home),
    };
    if group.len() == 1 {
        return nothing(gear_before, vec![Reason::SingleRank]);
    }

    let placed = place(group);
    let seats = Seats::new(group, &placed);
    let found = lowest_gear(&seats, gears);
    let gear_after = found.gear;
    let lower_bound = found.lower_bound;
    let more_served = sum(&placed.served) + u64::from(placed.extra) > sum(&home);
    let lowered = gear_after < gear_before;

    let mut reasons = Vec::new();
    if lowered {
        reasons.push(Reason::Lowered);
    }
    if more_served {
        reasons.push(Reason::WaitingServed);
    }
    if lower_bound >= gear_before && !lowered && !more_served {
        reasons.push(match gears.lower_possible(&before) {
            true => Reason::BlockedByMaxNumSeqs,
            false => Reason::AlreadyLowest,
        });
    }
    let waits_for_kv = placed.unserved.iter().any(|&count| count > 0)
        && (0..group.len()).any(|rank| seats.active[rank] < group.slots[rank]);
    if found.blocked_by_kv || waits_for_kv {
        reasons.push(Reason::BlockedByKv);
    }
    if found.blocked_by_pins {
        reasons.push(Reason::BlockedByPins);
    }
    if !lowered && !more_served {
        return nothing(lower_bound, reasons);
    }

    let served = found.shift.as_ref().map(|shift| shift.served.clone());
    let served = served.unwrap_or_else(|| seats.settled(gear_after));
    // What a request gains by not waiting is not a matter of gears.
    let gain = 1.0 - f64::from(gear_after) / f64::from(gear_before);
    if !more_served && gain < options.minimum_gain {
        return nothing(lower_bound, vec![Reason::BelowMinimumGain]);
    }

    let mut moves = running_moves(group, found.shift);
    moves.extend(waiting_moves(group, placed.flows(group, &served)));
    moves.sort_by_key(|m| (m.from, m.to, !m.needs_kv));
    Round {
        plan: Plan {
            gear_before,
            gear_after,
            lower_bound,
            reasons,
            moves,
        },
        at_home: sum(&home),
    }
}

/// The lowest gear of a group whose waiting requests are placed.
struct Lowest {
    gear: u32,
    /// How to reach it; `None` when no running sequence needs to move.
    shift: Option<Shift>,
    lower_bound: u32,
    blocked_by_kv: bool,
    blocked_by_pins: bool,
}

fn lowest_gear(seats: &Seats, gears: &Gears) -> Lowest {
    let current = gears.step_of(seats.highest());
    let lowest = first(0, current, |step| {
        seats.reachable(gears.size_at(step), 1, Limits::COUNTS)
    });
    let (step, shift) = match seats.group.sizes {
        Some((low, high)) if low == high => {
            let size = u64::from(low);
            let step = first(lowest, current, |step| {
                seats.reachable(gears.size_at(step), size, Limits::ALL)
            });
            (
                step,
                (step < current)
                    .then(|| seats.shift_equal(gears.size_at(step), size))
                    .flatten(),
            )
        }
        Some((low, _)) => {
            let start = first(lowest, current, |step| {
                seats.reachable(gears.size_at(step), low.into(), Limits::ALL)
            });
            search(seats, gears, start, current)
        }
        None => (current, None),
    };
    let missed = step > lowest;
    let (blocked_by_kv, blocked_by_pins) = match missed {
        true => blocked_by(seats, gears.size_at(step - 1)),
        false => (false, false),
    };
    // An idle group has no step of its own with an empty gear list.
    let gear_at = |step| {
        if seats.highest() == 0 {
            gears.gear_of(0)
        } else {
            gears.size_at(step)
        }
    };
    Lowest {
        gear: gear_at(step),
        shift,
        lower_bound: gear_at(lowest),
        blocked_by_kv,
        blocked_by_pins,
    }
}

/// Whether KV, and whether pins, keep a group from `gear`, which counts alone allow. Where
/// lifting one limit alone does not help, both are in the way. A rank cannot give waiting
/// requests as if they ran: where it has too many, KV has kept these from a better place.
fn blocked_by(seats: &Seats, gear: u32) -> (bool, bool) {
    let group = seats.group;
    let without_kv = Limits {
        kv: false,
        pins: true,
    };
    let without_pins = Limits {
        kv: true,
        pins: false,
    };
    let pinned = (0..group.len()).any(|rank| group.movable[rank] < group.running[rank]);
    let pins = pinned && seats.shift(gear, without_pins).is_some();
    if seats.reachable(gear, 1, without_kv) {
        return (true, pins);
    }
    let open = group.with_unlimited_kv();
    let placed = place(&open);
    let open = Seats::new(&open, &placed);
    if open.reachable(gear, 1, without_kv) {
        return (true, pins);
    }
    let both = !pins && pinned && open.reachable(gear, 1, Limits::COUNTS);
    (!pins, pins || both)
}

/// The first step in `low..high` for which `holds`, else `high`; `holds` stays
/// true once it is.
fn first(mut low: usize, mut high: usize, holds: impl Fn(usize) -> bool) -> usize {
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle
        } else {
            low = middle + 1
        }
    }
    low
}

/// The first step in `start..end` that a packing is found for, else `end`.
fn search(seats: &Seats, gears: &Gears, start: usize, end: usize) -> (usize, Option<Shift>) {
    let one_by_one = end.min(start + TRIED_ONE_BY_ONE);
    for step in start..one_by_one {
        if let Some(shift) = seats.shift(gears.size_at(step), Limits::ALL) {
            return (step, Some(shift));
        }
    }
    let (mut low, mut high, mut best) = (one_by_one, end, None);
    while low < high {
        let middle = low + (high - low) / 2;
        match seats.shift(gears.size_at(middle), Limits::ALL) {
            Some(shift) => (high, best) = (middle, Some(shift)),
            None => low = middle + 1,
        }
    }
    (high, best)
}

fn running_moves(group: &Group, shift: Option<Shift>) -> Vec<Move> {
    let Some(Shift { items, to, .. }) = shift else {
        return Vec::new();
    };
    let pair = |item: &Item, to: u32| u64::from(item.source) << 32 | u64::from(to);
    let mut entries: Vec<(u64, u32)> = items
        .iter()
        .zip(to)
        .map(|(item, to)| (pair(item, to), item.index))
        .collect();
    if !entries.is_sorted_by_key(|entry| entry.0) {
        entries.sort_unstable();
    }
    entries
        .chunk_by(|a, b| a.0 == b.0)
        .map(|chunk| {
            let source = (chunk[0].0 >> 32) as usize;
            let mut sequences: Vec<u32> = Vec::new();
            if group.named(source) {
                sequences.extend(chunk.iter().map(|entry| entry.1));
                sequences.sort_unstable();
            }
            Move {
                from: group.loads[source].rank,
                to: group.loads[chunk[0].0 as u32 as usize].rank,
                count: chunk.len() as u32,
                sequences,
                needs_kv: true,
            }
        })
        .collect()
}

fn waiting_moves(group: &Group, flows: Vec<Flow>) -> impl Iterator<Item = Move> {
    flows.into_iter().map(|flow| Move {
        from: group.loads[flow.from].rank,
        to: group.loads[flow.to].rank,
        count: flow.queue.len() as u32,
        sequences: flow.queue,
        needs_kv: false,
    })
}
