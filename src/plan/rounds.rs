//! Further rounds: what the first moves make possible.
//!
//! A large sequence may fit only after others have moved; a waiting request may fit
//! where running sequences have left; and once running sequences have moved, other
//! places are best for those that wait. So the planner looks at the group as its
//! moves leave it and plans again until it finds nothing more. All rounds become one
//! plan, in which every sequence moves at most once, and right after which a second
//! plan is empty.
//!
//! Every round serves more waiting requests, or as many in a lower gear, so the rounds
//! end. Running sequences are never sent into slots or blocks that a source of the same
//! plan frees: it keeps everything until the moves have been committed. Waiting
//! requests may be, since they take their blocks in the step that follows.

use super::gears::Gears;
use super::group::Group;
use super::load::RankLoad;
use super::outcome::{Plan, Reason};
use super::planner::{Options, Round, plan_once};
use super::state::State;

/// Most rounds, a bound on the time of odd cases; more than four are rare.
const ROUNDS: usize = 64;

/// `first`, followed by what further rounds find.
pub(super) fn continued(group: &Group, gears: &Gears, options: &Options, first: Round) -> Plan {
    if !may_continue(group, &first.plan) {
        return first.plan;
    }
    let Round {
        plan: mut best,
        at_home,
    } = first;
    let moves = std::mem::take(&mut best.moves);
    // (Requests that do not wait, gear): what a round must improve.
    let (mut served, mut gear) = (at_home, best.gear_before);
    let mut state = State::new(group);
    best.gear_after = best.gear_before;
    let mut rounds = 0;
    let mut next = state.after(&moves);
    while rounds < ROUNDS {
        let Some(reached) = next else { break };
        // With the blocks that sources get back, then, where these would be needed
        // too early, without them.
        let planned = |credited| plan_once(&group.after(&reached, credited), gears, options);
        let Round {
            plan: found,
            at_home: now,
        } = planned(true);
        if now < served || now == served && found.gear_before >= gear {
            break;
        }
        (served, gear) = (now, found.gear_before);
        next = None;
        if !found.is_empty() {
            next = reached.after(&found.moves).or_else(|| {
                let without = planned(false).plan;
                reached
                    .after(&without.moves)
                    .filter(|_| !without.is_empty())
            });
        }
        best = Plan {
            gear_after: gear,
            lower_bound: found.lower_bound,
            reasons: reasons(gear < best.gear_before, served > at_home, &found),
            ..best
        };
        state = reached;
        rounds += 1;
    }
    best.moves = match rounds {
        1 if state.as_planned => moves,
        _ => state.moves(),
    };
    best
}

/// Why a plan is as it is that ends in a state in which `last` is found.
fn reasons(lowered: bool, served: bool, last: &Plan) -> Vec<Reason> {
    let blocked = [Reason::BlockedByKv, Reason::BlockedByPins];
    let mut reasons = Vec::new();
    reasons.extend(lowered.then_some(Reason::Lowered));
    reasons.extend(served.then_some(Reason::WaitingServed));
    reasons.extend(blocked.into_iter().filter(|&reason| last.has(reason)));
    reasons
}

/// Whether a second round could find anything after `first`. Equal sequences without
/// waiting requests reach their lowest gear at once.
fn may_continue(group: &Group, first: &Plan) -> bool {
    if first.is_empty() {
        return false;
    }
    group.waiting.iter().any(|&count| count > 0)
        || first.has(Reason::BlockedByKv) && different_sizes(&group.loads)
}

/// Whether running sequences differ in size.
fn different_sizes(loads: &[&RankLoad]) -> bool {
    let counted = loads
        .iter()
        .any(|load| load.sequences.is_none() && load.running > 0);
    let mut sizes = loads
        .iter()
        .flat_map(|load| load.sequences.iter().flatten())
        .map(|sequence| sequence.kv_blocks);
    let Some(first) = counted.then_some(1).or_else(|| sizes.next()) else {
        return false;
    };
    sizes.any(|size| size != first)
}
