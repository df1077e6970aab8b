//! Room for waiting requests that cannot move: running sequences leave in their place.
//!
//! It is looked for where nothing else is to be gained and no other request waits, on ranks
//! that run as many sequences as they may. As many sequences leave them as others have room
//! for, until the fullest of them has a place for all that wait there; the fewest that do.

use super::gears::Gears;
use super::group::Group;
use super::outcome::{Plan, Reason};
use super::planner::{Options, plan_once};

/// `found`, or if that is empty the moves that give such requests a place.
pub(super) fn or_unblock(group: &Group, gears: &Gears, found: Plan) -> Plan {
    let blocked = |rank: usize| group.running[rank] > group.most[rank];
    let ranks = || 0..group.len();
    let ceiling = ranks().filter(|&rank| blocked(rank)).map(|r| group.most[r]);
    let idle = found.is_empty() && group.waiting.iter().all(|&count| count == 0);
    let Some(ceiling) = ceiling.max().filter(|&most| idle && most > 0) else {
        return found;
    };
    // Every request without a place counts, and only those.
    let most = |rank| if blocked(rank) { u32::MAX } else { 0 };
    let mut view = group.clone();
    view.most = ranks().map(most).collect();
    let levels = Gears::new(&[ceiling]).unwrap_or_default();
    let moves = plan_once(&view, &levels, &Options::default()).plan.moves;
    if moves.is_empty() {
        return found;
    }
    let mut running = group.running.clone();
    for m in &moves {
        let position = |rank| group.loads.partition_point(|load| load.rank < rank);
        running[position(m.from)] -= m.count;
        running[position(m.to)] += m.count;
    }
    Plan {
        gear_after: gears.gear_of(group.at_once(&running)),
        reasons: vec![Reason::WaitingServed],
        moves,
        ..found
    }
}
