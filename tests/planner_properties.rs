//! What holds for every plan: sequences are neither lost nor doubled, slots and free
//! blocks suffice (beside all that wait at the destination and cannot move, and for
//! waiting requests beside all that wait there), the
//! order of the ranks does not matter, and a plan leaves nothing for a second one.

#[path = "planner/applied.rs"]
mod applied;

use applied::applied;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use seqshift::plan::{Gears, Options, Plan, RankLoad, Reason, SequenceLoad, plan};

/// How a group is drawn.
#[derive(Debug, Clone, Copy)]
struct Shape {
    ranks: usize,
    waiting: u32,
    /// Most blocks of a sequence; 0 for sequences of 3 blocks each.
    blocks: u32,
    /// Blocks of each waiting request; 0 for different sizes.
    prompt: u32,
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
    let prompt = if shape.prompt == 0 {
        1..=4
    } else {
        shape.prompt..=shape.prompt
    };
    let waiting = prop::collection::vec(prompt, 0..=shape.waiting as usize);
    // In groups with waiting requests, some ranks have such as cannot move.
    let most = if shape.waiting > 0 { 4 } else { 0 };
    let pinned = prop::collection::vec(1..=4u32, 0..=most);
    let pinned = (prop::bool::weighted(0.3), pinned)
        .prop_map(|(some, pinned)| if some { pinned } else { Vec::new() });
    let (free, blocks) = if shape.limited {
        (0.7, 0..60u64)
    } else {
        (0.1, 1000..2000)
    };
    (
        prop::collection::vec(sequence, 0..24),
        (waiting, pinned),
        prop::option::weighted(free, blocks),
        prop::option::weighted(0.3, 0..12u32),
        prop::bool::weighted(0.1),
    )
        .prop_map(move |(sequences, queue, free_kv_blocks, slots, idle)| {
            let (waiting, pinned_waiting) = queue;
            let sequences = if idle { Vec::new() } else { sequences };
            let running = sequences.len() as u32;
            RankLoad {
                rank: 0,
                running,
                waiting: waiting.len() as u32,
                waiting_kv_blocks: Some(waiting),
                pinned_waiting,
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
    prompt: 0,
    limited: true,
};

/// Small and large groups with and without waiting requests, sequences and requests of
/// one size or several, free blocks that limit or not.
fn shapes() -> impl Strategy<Value = Shape> {
    let ranks = prop::sample::select(vec![2, 4, 20]);
    let waiting = prop::sample::select(vec![0, 3, 6]);
    let blocks = prop::sample::select(vec![0, 9]);
    let prompt = prop::sample::select(vec![0, 2, 5]);
    (ranks, waiting, blocks, prompt, any::<bool>()).prop_map(
        |(ranks, waiting, blocks, prompt, limited)| Shape {
            ranks,
            waiting,
            blocks,
            prompt,
            limited,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sequences_are_conserved_and_fit(loads in loads(LARGE), gears in gears()) {
        let plan = planned(&loads, &gears);
        let after = applied(&loads, &plan);
        prop_assert_eq!(total(&loads), total(&after));
        prop_assert_eq!(sizes(&loads), sizes(&after));
        for (before, after) in loads.iter().zip(&after) {
            let slots = before.max_num_seqs.unwrap_or(32);
            let arrived = |needs_kv| {
                let moves = plan.moves.iter().filter(|m| m.to == before.rank);
                let moves = moves.filter(|m| m.needs_kv == needs_kv);
                let sizes = moves.flat_map(|m| {
                    let source = &loads[m.from as usize];
                    m.sequences.iter().map(|&i| match m.needs_kv {
                        true => source.sequences.as_ref().unwrap()[i as usize].kv_blocks,
                        false => source.waiting_kv_blocks.as_ref().unwrap()[i as usize],
                    })
                });
                sizes.fold((0, 0), |(n, blocks), size| (n + 1, blocks + u64::from(size)))
            };
            // Running sequences fit while the source still has its own ones ...
            let (count, blocks) = arrived(true);
            let pinned: u64 = before.pinned_waiting.iter().copied().map(u64::from).sum();
            let stay = before.running + before.pinned_waiting.len() as u32;
            prop_assert!(count == 0 || stay + count <= slots);
            let fits = |free: u64| blocks + pinned <= free;
            prop_assert!(count == 0 || before.free_kv_blocks.is_none_or(fits));
            // ... and waiting requests once all of them are where they go, behind those that
            // waited there before.
            let queue = after.waiting_kv_blocks.iter().flatten();
            let blocks: u64 = queue.map(|&size| u64::from(size)).sum();
            let none = arrived(false).0 == 0;
            let stay = after.running + after.pinned_waiting.len() as u32;
            prop_assert!(none || stay + after.waiting <= slots);
            let fits = |free: u64| blocks + pinned <= free;
            prop_assert!(none || after.free_kv_blocks.is_none_or(fits));
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
}

/// A plan names pins only where a running sequence is pinned, and where lifting them (and KV,
/// if that is named too) serves more requests or reaches a lower gear. Waiting requests can
/// all move here: lifting their pins would also place them anew.
#[test]
fn pins_are_named_only_where_they_block() {
    let mut runner = TestRunner::deterministic();
    let (mut free, mut named) = (0, 0);
    for case in 0..20_000 {
        let shape = shapes().new_tree(&mut runner).unwrap().current();
        let mut loads = loads(shape).new_tree(&mut runner).unwrap().current();
        for load in &mut loads {
            load.pinned_waiting.clear();
            // In half of the groups three of four, so that some ranks must keep too many.
            for (sequence, index) in load.sequences.iter_mut().flatten().zip(0..) {
                sequence.movable = case % 2 == 0 || (index + load.rank) % 4 == 0;
            }
        }
        let gears = gears().new_tree(&mut runner).unwrap().current();
        let found = planned(&loads, &gears);
        let pinned = |load: &RankLoad| load.sequences.iter().flatten().any(|s| !s.movable);
        if !loads.iter().any(pinned) {
            free += 1;
            assert!(!found.has(Reason::BlockedByPins), "{loads:#?} {found:#?}");
            continue;
        }
        if !found.has(Reason::BlockedByPins) {
            continue;
        }
        named += 1;
        for load in &mut loads {
            for sequence in load.sequences.iter_mut().flatten() {
                sequence.movable = true;
            }
            if found.has(Reason::BlockedByKv) {
                load.free_kv_blocks = None;
            }
        }
        let lifted = planned(&loads, &gears);
        let better = lifted.gear_after < found.gear_after || lifted.has(Reason::WaitingServed);
        assert!(better, "{loads:#?} {found:#?} {lifted:#?}");
    }
    println!("{free} groups without pins; pins named {named} times");
    assert!(free > 5000 && named > 1000);
}

/// Groups of all shapes. Where sequences differ in size, a second plan may reach a lower
/// gear with blocks that the first one has freed, which it may not use itself: counted
/// and shown.
#[test]
fn a_second_plan_is_empty() {
    let mut runner = TestRunner::deterministic();
    let (mut acted, mut exceptions) = (0, 0);
    for _ in 0..40_000 {
        let shape = shapes().new_tree(&mut runner).unwrap().current();
        let loads = loads(shape).new_tree(&mut runner).unwrap().current();
        let gears = gears().new_tree(&mut runner).unwrap().current();
        let found = planned(&loads, &gears);
        let again = planned(&applied(&loads, &found), &gears);
        acted += usize::from(!found.is_empty());
        if !again.is_empty() {
            assert!(shape.blocks > 0 && again.has(Reason::Lowered), "{again:#?}");
            exceptions += 1;
        }
    }
    println!("{acted} plans act; after {exceptions} of them a second one does");
    assert!(acted > 15_000 && exceptions * 10_000 <= acted);
}
