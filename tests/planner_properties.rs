//! What holds for every plan: sequences are neither lost nor doubled, slots and
//! free blocks suffice, the order of the ranks does not matter, and a plan leaves
//! nothing for a second one. (Where free blocks limit waiting requests it may leave
//! something: they are placed before running sequences move.)

use std::collections::BTreeSet;

use proptest::prelude::*;
use seqshift::plan::{Gears, Options, Plan, RankLoad, Reason, SequenceLoad, plan};

/// How a group is drawn.
#[derive(Debug, Clone, Copy)]
struct Shape {
    ranks: usize,
    waiting: u32,
    /// Most blocks of a sequence; 0 for sequences of 3 blocks each.
    blocks: u32,
    limited: bool,
}

fn load(shape: Shape) -> impl Strategy<Value = RankLoad> {
    let size = if shape.blocks == 0 {
        3..=3
    } else {
        1..=shape.blocks
    };
    let sequence = (size, prop::bool::weighted(0.9))
        .prop_map(|(kv_blocks, movable)| SequenceLoad { kv_blocks, movable });
    let waiting = prop::collection::vec(1..=4u32, 0..=shape.waiting as usize);
    let (free, blocks) = if shape.limited {
        (0.7, 0..60u64)
    } else {
        (0.1, 1000..2000)
    };
    (
        prop::collection::vec(sequence, 0..24),
        waiting,
        prop::option::weighted(free, blocks),
        prop::option::weighted(0.3, 0..12u32),
        prop::bool::weighted(0.1),
    )
        .prop_map(move |(sequences, waiting, free_kv_blocks, slots, idle)| {
            let sequences = if idle { Vec::new() } else { sequences };
            let running = sequences.len() as u32;
            RankLoad {
                rank: 0,
                running,
                waiting: waiting.len() as u32,
                waiting_kv_blocks: Some(waiting),
                free_kv_blocks,
                max_num_seqs: slots.map(|slots| running + slots),
                sequences: Some(sequences),
            }
        })
}

fn loads(shape: Shape) -> impl Strategy<Value = Vec<RankLoad>> {
    prop::collection::vec(load(shape), 1..=shape.ranks).prop_map(|mut loads| {
        for (load, rank) in loads.iter_mut().zip(0..) {
            load.rank = rank;
        }
        loads
    })
}

fn gears() -> impl Strategy<Value = Gears> {
    prop::collection::vec(1..40u32, 0..6).prop_map(|sizes| Gears::new(&sizes).unwrap())
}

fn planned(loads: &[RankLoad], gears: &Gears) -> Plan {
    let options = Options {
        max_num_seqs: Some(32),
        minimum_gain: 0.0,
    };
    plan(loads, gears, &options).unwrap()
}

/// The loads after a plan, with blocks used at the destinations and, if they are
/// `credited`, freed at the sources; moved waiting requests wait at their
/// destination.
fn applied(loads: &[RankLoad], plan: &Plan, credited: bool) -> Vec<RankLoad> {
    let mut after = loads.to_vec();
    for m in &plan.moves {
        let (from, to) = (m.from as usize, m.to as usize);
        assert_ne!(from, to);
        assert_eq!(m.count as usize, m.sequences.len());
        if m.needs_kv {
            let source = loads[from].sequences.as_ref().unwrap();
            let moved: Vec<_> = m.sequences.iter().map(|&i| source[i as usize]).collect();
            let blocks: u64 = moved.iter().map(|s| u64::from(s.kv_blocks)).sum();
            after[to].free_kv_blocks = after[to].free_kv_blocks.map(|free| free - blocks);
            after[to].sequences.as_mut().unwrap().extend(moved);
            after[to].running += m.count;
        } else {
            let source = loads[from].waiting_kv_blocks.as_ref().unwrap();
            let moved = m.sequences.iter().map(|&i| source[i as usize]);
            after[to].waiting_kv_blocks.as_mut().unwrap().extend(moved);
            after[to].waiting += m.count;
        }
    }
    for (rank, load) in after.iter_mut().enumerate() {
        let gone = |needs_kv| -> BTreeSet<usize> {
            let moves = plan.moves.iter().filter(|m| m.from as usize == rank);
            let moves = moves.filter(|m| m.needs_kv == needs_kv);
            moves
                .flat_map(|m| m.sequences.iter().map(|&i| i as usize))
                .collect()
        };
        let running = gone(true);
        let mut index = 0..;
        load.sequences.as_mut().unwrap().retain(|sequence| {
            let leaves = running.contains(&index.next().unwrap());
            if leaves && credited {
                let blocks = u64::from(sequence.kv_blocks);
                load.free_kv_blocks = load.free_kv_blocks.map(|free| free + blocks);
            }
            !leaves
        });
        load.running -= running.len() as u32;
        let waiting = gone(false);
        let mut index = 0..;
        let queue = load.waiting_kv_blocks.as_mut().unwrap();
        queue.retain(|_| !waiting.contains(&index.next().unwrap()));
        load.waiting -= waiting.len() as u32;
    }
    after
}

fn total(loads: &[RankLoad]) -> (u32, u32) {
    (
        loads.iter().map(|l| l.running).sum(),
        loads.iter().map(|l| l.waiting).sum(),
    )
}

/// All sizes, so that no sequence is doubled or lost.
fn sizes(loads: &[RankLoad]) -> (Vec<u32>, Vec<u32>) {
    let running = loads.iter().flat_map(|l| l.sequences.iter().flatten());
    let mut running: Vec<u32> = running.map(|s| s.kv_blocks).collect();
    let waiting = loads
        .iter()
        .flat_map(|l| l.waiting_kv_blocks.iter().flatten());
    let mut waiting: Vec<u32> = waiting.copied().collect();
    running.sort_unstable();
    waiting.sort_unstable();
    (running, waiting)
}

const LARGE: Shape = Shape {
    ranks: 20,
    waiting: 6,
    blocks: 9,
    limited: true,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sequences_are_conserved_and_fit(loads in loads(LARGE), gears in gears()) {
        let plan = planned(&loads, &gears);
        let after = applied(&loads, &plan, true);
        prop_assert_eq!(total(&loads), total(&after));
        prop_assert_eq!(sizes(&loads), sizes(&after));
        for (before, after) in loads.iter().zip(&after) {
            let arrived = plan.moves.iter().filter(|m| m.to == before.rank);
            let arrived: u32 = arrived.map(|m| m.count).sum();
            let slots = before.max_num_seqs.unwrap_or(32);
            prop_assert!(arrived == 0 || before.running + arrived <= slots);
            // Blocks of moved requests fit while the source still has its own.
            let needed: u64 = plan.moves.iter().filter(|m| m.to == before.rank).map(|m| {
                let source = &loads[m.from as usize];
                m.sequences.iter().map(|&i| match m.needs_kv {
                    true => source.sequences.as_ref().unwrap()[i as usize].kv_blocks,
                    false => source.waiting_kv_blocks.as_ref().unwrap()[i as usize],
                }).map(u64::from).sum::<u64>()
            }).sum();
            prop_assert!(before.free_kv_blocks.is_none_or(|free| needed <= free));
            prop_assert!(after.running <= u32::max(slots, before.running));
        }
        for m in plan.moves.iter().filter(|m| m.needs_kv) {
            let source = loads[m.from as usize].sequences.as_ref().unwrap();
            prop_assert!(m.sequences.iter().all(|&i| source[i as usize].movable));
        }
        prop_assert!(plan.lower_bound <= plan.gear_after);
        let acts = plan.has(Reason::Lowered) || plan.has(Reason::WaitingServed);
        prop_assert_eq!(acts, !plan.is_empty());
        prop_assert_eq!(plan.has(Reason::Lowered), plan.gear_after < plan.gear_before);
        prop_assert!(!plan.reasons.is_empty());
    }

    #[test]
    fn the_order_of_the_ranks_does_not_matter(
        (loads, mixed) in loads(LARGE).prop_flat_map(|l| (Just(l.clone()), Just(l).prop_shuffle())),
        gears in gears(),
    ) {
        prop_assert_eq!(planned(&loads, &gears), planned(&mixed, &gears));
    }

    #[test]
    fn a_second_plan_is_empty(
        loads in loads(Shape { waiting: 0, blocks: 0, ..LARGE }),
        gears in gears(),
    ) {
        let after = applied(&loads, &planned(&loads, &gears), true);
        let again = planned(&after, &gears);
        prop_assert!(again.is_empty(), "{again:#?}");
    }

    #[test]
    fn a_second_plan_is_empty_with_waiting_requests(
        loads in loads(Shape { blocks: 0, limited: false, ..LARGE }),
        gears in gears(),
    ) {
        let after = applied(&loads, &planned(&loads, &gears), true);
        let again = planned(&after, &gears);
        prop_assert!(again.is_empty(), "{again:#?}");
    }

    #[test]
    fn a_second_plan_is_empty_for_different_sizes(
        loads in loads(Shape { waiting: 0, ..LARGE }),
        gears in gears(),
    ) {
        let after = applied(&loads, &planned(&loads, &gears), false);
        let again = planned(&after, &gears);
        prop_assert!(again.is_empty(), "{again:#?}");
    }
}
