//! What still moves after a copy in the background, when sequences have ended meanwhile: as much as
//! lowers the gear and makes room for waiting requests as far as all moves would, and no more.

use proptest::collection::vec;
use proptest::prelude::*;
use seqshift::migrate::engine::Source;
use seqshift::migrate::planned::PlannedPolicy;
use seqshift::migrate::policy::{Flight, Policy};
use seqshift::plan::{Gears, Options};
use seqshift::wire::message::Load;

const GEARS: [u32; 5] = [1, 2, 4, 6, 8];

/// Up to six moves among up to four ranks, to which they have room; only ever from the first ones
/// to the others if `apart`.
fn cases(apart: bool) -> impl Strategy<Value = (Vec<Load>, Vec<Flight>)> {
    let load = (0..10_u32, 0..4_u32, 4..10_u32);
    (vec(load, 2..=4), vec(any::<(u32, u32)>(), 0..=6)).prop_map(move |(ranks, picks)| {
        let size = ranks.len() as u32;
        let load = |(running, waiting, max_num_seqs)| Load {
            running,
            waiting,
            max_num_seqs,
            ..Load::default()
        };
        let mut loads: Vec<Load> = ranks.into_iter().map(load).collect();
        let mut flights: Vec<Flight> = Vec::new();
        for (from, to) in picks {
            let (from, to) = match apart {
                true => (from % (size / 2), size / 2 + to % (size - size / 2)),
                false => (from % size, (from + 1 + to % (size - 1)) % size),
            };
            let left = flights.iter().filter(|f| f.from == from).count() as u32;
            if left < loads[from as usize].running {
                flights.push(Flight {
                    from,
                    to,
                    source: Source::Running(left),
                });
            }
        }
        for (rank, load) in (0..).zip(&mut loads) {
            let come = flights.iter().filter(|f| f.to == rank).count() as u32;
            if come > 0 {
                load.max_num_seqs = load.max_num_seqs.max(load.running + come);
            }
        }
        (loads, flights)
    })
}

/// Requests that wait for a slot, and the gear, once those moves are made that are kept.
fn outcome(loads: &[Load], flights: &[Flight], keep: &[bool]) -> (u32, u32) {
    let (mut waiting, mut busiest) = (0, 0);
    for (rank, load) in (0..).zip(loads) {
        let kept = || flights.iter().zip(keep).filter(|(_, keep)| **keep);
        let left = kept().filter(|(f, _)| f.from == rank).count() as u32;
        let come = kept().filter(|(f, _)| f.to == rank).count() as u32;
        let mut running = load.running - left + come;
        // They are after a slot only where none is free.
        if load.running >= load.max_num_seqs {
            let most = load.max_num_seqs.max(load.running);
            let begin = load.waiting.min(most.saturating_sub(running));
            running += begin;
            waiting += load.waiting - begin;
        }
        busiest = busiest.max(running);
    }
    (waiting, Gears::new(&GEARS).unwrap().gear_of(busiest))
}

/// Whether these moves are as good as all: as many requests wait, in as low a gear, unless there
/// is none to gain.
fn as_good(loads: &[Load], flights: &[Flight], keep: &[bool]) -> bool {
    let before = outcome(loads, flights, &vec![false; flights.len()]);
    let all = outcome(loads, flights, &vec![true; flights.len()]);
    let got = outcome(loads, flights, keep);
    got.0 <= all.0 && got.1 <= if all.1 < before.1 { all.1 } else { u32::MAX }
}

fn confirm(loads: &[Load], flights: &[Flight]) -> Vec<bool> {
    let policy = PlannedPolicy::new(Gears::new(&GEARS).unwrap(), Options::default());
    policy.confirm(loads, flights)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_fewer_moves_would_do((loads, flights) in cases(true)) {
        let keep = confirm(&loads, &flights);
        prop_assert!(as_good(&loads, &flights, &keep), "{keep:?}");
        let kept = keep.iter().filter(|keep| **keep).count() as u32;
        for subset in 0..1_u32 << flights.len() {
            if subset.count_ones() < kept {
                let keep: Vec<bool> = (0..flights.len()).map(|i| subset >> i & 1 == 1).collect();
                prop_assert!(!as_good(&loads, &flights, &keep), "{keep:?} would do");
            }
        }
    }

    /// Ranks may give and receive, as where the planner exchanges sequences of different sizes.
    #[test]
    fn gear_and_room_are_those_of_all_moves((loads, flights) in cases(false)) {
        let keep = confirm(&loads, &flights);
        prop_assert!(as_good(&loads, &flights, &keep), "{keep:?}");
    }
}
