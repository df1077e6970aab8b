//! Plans that are known to be right, worked out by hand.

use super::*;

const KV: u32 = 10;

/// A rank whose running sequences have 10 blocks each.
fn rank(rank: u32, running: u32, waiting: u32, free: Option<u64>) -> RankLoad {
    let sequence = SequenceLoad {
        kv_blocks: KV,
        movable: true,
    };
    RankLoad {
        free_kv_blocks: free,
        sequences: Some(vec![sequence; running as usize]),
        ..RankLoad::counts(rank, running, waiting)
    }
}

fn planned(gears: &[u32], slots: Option<u32>, loads: &[RankLoad]) -> Plan {
    let options = Options {
        max_num_seqs: slots,
        minimum_gain: 0.0,
    };
    plan(loads, &Gears::new(gears).unwrap(), &options).unwrap()
}

#[test]
fn short_of_kv_blocks_the_plan() {
    let short = [rank(0, 12, 0, Some(100)), rank(1, 2, 0, Some(20))];
    let got = planned(&[16, 8, 4], None, &short);
    assert!(got.is_empty());
    assert_eq!(
        (got.gear_before, got.gear_after, got.lower_bound),
        (16, 16, 8)
    );
    assert_eq!(got.reasons, [Reason::BlockedByKv]);

    let enough = [rank(0, 12, 0, Some(100)), rank(1, 2, 0, Some(40))];
    let got = planned(&[16, 8, 4], None, &enough);
    assert_eq!((got.gear_before, got.gear_after, got.moved()), (16, 8, 4));
    assert_eq!(got.reasons, [Reason::Lowered]);
    assert_eq!(
        got.moves,
        [Move {
            from: 0,
            to: 1,
            count: 4,
            sequences: vec![1, 4, 7, 10],
            needs_kv: true
        }]
    );
}

#[test]
fn just_enough_kv_is_enough() {
    let got = planned(
        &[6, 3],
        None,
        &[rank(0, 5, 0, None), rank(1, 1, 0, Some(20))],
    );
    assert_eq!((got.gear_after, got.moved()), (3, 2));
    let got = planned(
        &[6, 3],
        None,
        &[rank(0, 5, 0, None), rank(1, 1, 0, Some(10))],
    );
    assert!(got.is_empty());
}

#[test]
fn a_full_rank_gives() {
    let got = planned(
        &[16, 8, 4],
        None,
        &[rank(0, 12, 0, Some(5)), rank(1, 2, 0, Some(100))],
    );
    assert_eq!((got.gear_after, got.moved()), (8, 4));
}

#[test]
fn small_slots() {
    let loads = [
        rank(0, 0, 0, None),
        rank(1, 1, 0, None),
        rank(2, 4, 0, None),
    ];
    let got = planned(&[16, 8, 4, 2, 1], Some(4), &loads);
    assert_eq!((got.gear_before, got.gear_after, got.moved()), (4, 2, 2));
    assert_eq!(
        got.moves.iter().map(|m| (m.from, m.to)).collect::<Vec<_>>(),
        [(2, 0), (2, 1)]
    );
}

#[test]
fn waiting_requests_move_without_kv() {
    let got = planned(
        &[16, 8, 4],
        None,
        &[rank(0, 1, 3, Some(0)), rank(1, 0, 0, None)],
    );
    assert_eq!(
        got.moves,
        [Move {
            from: 0,
            to: 1,
            count: 3,
            sequences: vec![0, 1, 2],
            needs_kv: false
        }]
    );
    assert_eq!(got.reasons, [Reason::WaitingServed]);
    assert_eq!(
        (got.gear_before, got.gear_after, got.lower_bound),
        (4, 4, 4)
    );
}

#[test]
fn receivers_share_the_work() {
    let loads: Vec<RankLoad> = (0..8)
        .map(|r| rank(r, if r == 0 { 16 } else { 0 }, 0, None))
        .collect();
    let got = planned(&[16, 8, 4], None, &loads);
    assert_eq!((got.gear_after, got.moved()), (4, 12));
    assert!(got.moves.iter().all(|m| m.count <= 2), "{:?}", got.moves);
    assert_eq!(got.moves.len(), 7);
}

#[test]
fn above_the_largest_gear() {
    let loads = [rank(0, 40, 0, None), rank(1, 10, 0, Some(150))];
    let got = planned(&[16, 8, 4], Some(64), &loads);
    assert_eq!((got.gear_before, got.gear_after, got.moved()), (40, 25, 15));
    let loads = [rank(0, 40, 0, None), rank(1, 10, 0, Some(60))];
    let got = planned(&[16, 8, 4], Some(64), &loads);
    assert_eq!((got.gear_after, got.moved(), got.lower_bound), (34, 6, 25));
    assert_eq!(got.reasons, [Reason::Lowered, Reason::BlockedByKv]);

    let loads = [200, 0, 0].map(|n| RankLoad::counts(if n > 0 { 7 } else { 0 }, n, 0));
    let loads: Vec<RankLoad> = loads
        .into_iter()
        .zip(0..)
        .map(|(load, rank)| RankLoad { rank, ..load })
        .collect();
    let got = planned(&[64, 32, 16, 8, 4], None, &loads);
    assert_eq!(
        (got.gear_before, got.gear_after, got.moved()),
        (200, 67, 133)
    );
    assert!(got.moves.iter().all(|m| m.sequences.is_empty()));
    let got = planned(&[], None, &loads);
    assert_eq!((got.gear_before, got.gear_after), (200, 67));
}

#[test]
fn sparse_gears_in_any_order() {
    let loads = [RankLoad::counts(0, 500, 0), RankLoad::counts(1, 300, 0)];
    let got = planned(&[192, 512, 1, 408, 88, 304], None, &loads);
    assert_eq!(
        (got.gear_before, got.gear_after, got.moved()),
        (512, 408, 92)
    );
}

#[test]
fn pins_block() {
    let mut loads = [rank(0, 12, 0, None), rank(1, 2, 0, None)];
    for sequence in &mut loads[0].sequences.as_mut().unwrap()[3..] {
        sequence.movable = false;
    }
    let got = planned(&[16, 8, 4], None, &loads);
    assert!(got.is_empty());
    assert_eq!(got.reasons, [Reason::BlockedByPins]);
    // Both limits: neither alone explains it.
    loads[1].free_kv_blocks = Some(0);
    let got = planned(&[16, 8, 4], None, &loads);
    assert_eq!(got.reasons, [Reason::BlockedByKv, Reason::BlockedByPins]);
}

#[test]
fn waiting_requests_are_no_pins() {
    // Blocks at home would have kept requests there, which then all go to one rank.
    let away = [rank(0, 1, 3, Some(0)), rank(1, 0, 0, None)];
    let got = planned(&[], None, &away);
    assert_eq!((got.gear_after, got.lower_bound), (3, 2));
    assert_eq!(got.reasons, [Reason::WaitingServed, Reason::BlockedByKv]);
    // Blocks elsewhere would have taken some of those that stay.
    let mut home = [rank(0, 0, 0, Some(0)), rank(1, 0, 3, None)];
    home[1].waiting_kv_blocks = Some(vec![2; 3]);
    let got = planned(&[8, 4, 2, 1], None, &home);
    assert_eq!((got.gear_after, got.lower_bound), (4, 2));
    assert_eq!(got.reasons, [Reason::BlockedByKv]);
    // A pinned sequence that is not in the way changes nothing.
    let mut beside = home.to_vec();
    beside.push(rank(2, 1, 0, Some(0)));
    beside[2].sequences.as_mut().unwrap()[0].movable = false;
    let got = planned(&[8, 4, 2, 1], None, &beside);
    assert_eq!(got.reasons, [Reason::BlockedByKv]);
}

#[test]
fn the_smallest_sequences_move() {
    let mut loads = [rank(0, 4, 0, None), rank(1, 0, 0, Some(5))];
    let sizes = [(9, true), (2, true), (1, false), (3, true)];
    loads[0].sequences = Some(
        sizes
            .iter()
            .map(|&(kv_blocks, movable)| SequenceLoad { kv_blocks, movable })
            .collect(),
    );
    let got = planned(&[4, 2], None, &loads);
    assert_eq!(got.moves[0].sequences, [1, 3]);
}

#[test]
fn nothing_to_gain() {
    let got = planned(
        &[16, 8, 4],
        None,
        &[rank(0, 8, 0, None), rank(1, 2, 0, None)],
    );
    assert_eq!(
        (got.is_empty(), got.reasons),
        (true, vec![Reason::AlreadyLowest])
    );
    let got = planned(&[16, 8, 4], None, &[rank(3, 12, 2, None)]);
    assert_eq!(
        (got.is_empty(), got.reasons),
        (true, vec![Reason::SingleRank])
    );
    let got = planned(&[4], None, &[rank(0, 0, 0, None), rank(1, 0, 0, None)]);
    assert_eq!((got.gear_before, got.gear_after), (4, 4));
    let got = planned(&[], None, &[rank(0, 0, 0, None), rank(1, 0, 0, None)]);
    assert_eq!((got.gear_before, got.lower_bound), (0, 0));
}

#[test]
fn slots_block() {
    // The other rank may run no more than it does.
    let got = planned(
        &[16, 8, 4],
        Some(4),
        &[rank(0, 12, 0, None), rank(1, 4, 0, None)],
    );
    assert_eq!((got.gear_after, got.lower_bound), (16, 16));
    assert_eq!(
        (got.is_empty(), got.reasons),
        (true, vec![Reason::BlockedByMaxNumSeqs])
    );
    // With as many on both ranks no limit would help.
    let got = planned(
        &[16, 8, 4],
        Some(4),
        &[rank(0, 12, 0, None), rank(1, 12, 0, None)],
    );
    assert_eq!(got.reasons, [Reason::AlreadyLowest]);
}

#[test]
fn the_minimum_gain_is_a_fraction_of_time_per_token() {
    let loads = [rank(0, 12, 0, None), rank(1, 2, 0, None)];
    let gears = Gears::new(&[16, 8, 4]).unwrap();
    let with = |minimum_gain| {
        plan(
            &loads,
            &gears,
            &Options {
                max_num_seqs: None,
                minimum_gain,
            },
        )
        .unwrap()
    };
    assert_eq!(with(0.5).moved(), 4);
    let got = with(0.51);
    assert_eq!(
        (got.is_empty(), got.reasons),
        (true, vec![Reason::BelowMinimumGain])
    );
}

#[test]
fn waiting_requests_of_different_sizes_fill_what_is_free() {
    let mut loads = [
        rank(0, 1, 3, Some(0)),
        rank(1, 0, 0, Some(5)),
        rank(2, 0, 0, Some(3)),
    ];
    loads[0].waiting_kv_blocks = Some(vec![5, 9, 3]);
    let got = planned(&[16, 8, 4], None, &loads);
    let pairs: Vec<_> = got
        .moves
        .iter()
        .map(|m| (m.to, m.sequences.clone()))
        .collect();
    assert_eq!(pairs, [(1, vec![0]), (2, vec![2])]);
    assert_eq!(got.reasons, [Reason::WaitingServed, Reason::BlockedByKv]);
}

/// A rank with requests of two blocks each, in counts alone.
fn queue(rank: u32, running: u32, waiting: u32, free: u64) -> RankLoad {
    RankLoad {
        free_kv_blocks: Some(free),
        waiting_kv_blocks: Some(vec![2; waiting as usize]),
        ..RankLoad::counts(rank, running, waiting)
    }
}

#[test]
fn a_destination_serves_its_own_queue_first() {
    // Blocks for eleven, of which ten are for its own.
    let mut loads = [queue(0, 0, 10, 22), queue(1, 64, 100, 0)];
    loads[1].max_num_seqs = Some(64);
    let got = planned(&[16, 8, 4], None, &loads);
    assert_eq!((got.moved(), got.moves[0].to), (1, 0));
    // Blocks for four: one is left, and with one request more at home none is.
    let got = planned(&[16, 8, 4], None, &[queue(0, 0, 3, 8), queue(1, 10, 10, 0)]);
    assert_eq!(got.moved(), 1);
    let got = planned(&[16, 8, 4], None, &[queue(0, 0, 4, 8), queue(1, 10, 10, 0)]);
    assert!(got.is_empty());
    // Slots likewise.
    let slots = [queue(0, 0, 3, 99), queue(1, 4, 9, 0)];
    assert_eq!(planned(&[16, 8, 4], Some(4), &slots).moved(), 1);
    // Larger requests of its own are not overtaken by smaller ones either.
    let mut sizes = [queue(0, 0, 2, 8), queue(1, 10, 10, 0)];
    sizes[0].waiting_kv_blocks = Some(vec![3, 4]);
    sizes[1].waiting_kv_blocks = Some(vec![1; 10]);
    let got = planned(&[16, 8, 4], None, &sizes);
    assert_eq!(got.moved(), 1);
}

/// A rank with running sequences of 10 blocks and waiting requests that cannot move.
fn pinned(rank_: u32, running: u32, pinned: &[u32], free: u64, slots: u32) -> RankLoad {
    RankLoad {
        pinned_waiting: pinned.to_vec(),
        max_num_seqs: Some(slots),
        ..rank(rank_, running, 0, Some(free))
    }
}

#[test]
fn waiting_requests_that_cannot_move_have_their_room() {
    let gears = [16, 8, 4];
    // Slots for two and blocks for one more: each for its own.
    let mut full = queue(1, 8, 3, 0);
    full.max_num_seqs = Some(8);
    let slots = [pinned(0, 2, &[1, 1], 99, 4), full.clone()];
    assert!(planned(&gears, None, &slots).is_empty());
    let slots = [pinned(0, 2, &[1], 99, 4), full.clone()];
    assert_eq!(planned(&gears, None, &slots).moved(), 1);
    let blocks = [pinned(0, 2, &[3, 3], 7, 9), full.clone()];
    assert!(planned(&gears, None, &blocks).is_empty());
    let blocks = [pinned(0, 2, &[3, 3], 8, 9), full];
    assert_eq!(planned(&gears, None, &blocks).moved(), 1);
    // Running sequences find no room there either, and would raise the gear later on.
    let running = [pinned(0, 2, &[1; 6], 99, 16), rank(1, 12, 0, None)];
    assert!(planned(&gears, None, &running).is_empty());
    let running = [pinned(0, 2, &[1; 2], 99, 16), rank(1, 12, 0, None)];
    assert_eq!(planned(&gears, None, &running).moved(), 4);
    let running = [pinned(0, 2, &[30, 30], 99, 16), rank(1, 12, 0, None)];
    assert!(planned(&gears, None, &running).is_empty());
}

#[test]
fn what_leaves_is_replaced_by_what_waits() {
    let gears = [16, 8, 4];
    // One less of nine would lower the gear until one of those that wait comes.
    let refilled = [pinned(0, 9, &[1; 3], 0, 9), rank(1, 5, 0, Some(0))];
    let got = planned(&gears, None, &refilled);
    assert_eq!((got.moved(), got.gear_before, got.gear_after), (0, 16, 16));
    // With room for all twelve in two gears of eight, the four are moved.
    let room = [pinned(0, 9, &[1; 3], 0, 9), rank(1, 1, 0, None)];
    let got = planned(&gears, None, &room);
    assert_eq!((got.moved(), got.gear_before, got.gear_after), (4, 16, 8));
    // A rank that may never run more than four keeps no other from a gear of eight.
    let small = [
        pinned(0, 4, &[1; 10], 0, 4),
        rank(1, 12, 0, None),
        rank(2, 1, 0, None),
    ];
    let got = planned(&gears, None, &small);
    assert_eq!((got.moved(), got.gear_after), (4, 8));
    assert!(got.moves.iter().all(|m| (m.from, m.to) == (1, 2)));
}

#[test]
fn running_sequences_make_room_for_requests_that_cannot_move() {
    let gears = [16, 8, 4];
    // As many as the other may run, which takes a second step.
    let loads = [pinned(0, 4, &[1; 12], 0, 4), pinned(1, 1, &[], 99, 4)];
    let got = planned(&gears, None, &loads);
    assert_eq!((got.moved(), got.gear_before, got.gear_after), (3, 4, 4));
    assert_eq!(got.reasons, [Reason::WaitingServed]);
    assert!(got.moves[0].needs_kv);
    // No more than those that wait.
    let loads = [pinned(0, 4, &[1; 2], 0, 4), pinned(1, 0, &[], 99, 4)];
    assert_eq!(planned(&gears, None, &loads).moved(), 2);
    // Not where they find no room.
    let loads = [pinned(0, 4, &[1; 2], 0, 4), pinned(1, 0, &[], 9, 4)];
    assert!(planned(&gears, None, &loads).is_empty());
    let loads = [pinned(0, 4, &[1; 2], 0, 4), pinned(1, 2, &[1; 2], 99, 4)];
    assert!(planned(&gears, None, &loads).is_empty());
    // A rank that has all its own running gives nothing.
    let loads = [
        pinned(0, 8, &[], 0, 8),
        pinned(1, 4, &[1; 2], 0, 4),
        pinned(2, 1, &[], 99, 8),
    ];
    let got = planned(&gears, None, &loads);
    assert_eq!(got.moved(), 2);
    assert!(got.moves.iter().all(|m| (m.from, m.to) == (1, 2)));
}

#[test]
fn contradictory_input_is_refused() {
    let gears = Gears::new(&[4]).unwrap();
    let error = |loads: &[RankLoad], options: &Options| plan(loads, &gears, options).unwrap_err();
    let none = Options::default();
    assert_eq!(error(&[], &none), PlanError::NoRanks);
    let twice = [RankLoad::counts(3, 1, 0), RankLoad::counts(3, 0, 0)];
    assert_eq!(error(&twice, &none), PlanError::DuplicateRank { rank: 3 });
    let long = RankLoad {
        running: 1,
        ..rank(0, 2, 0, None)
    };
    let long_error = PlanError::TooManySequences {
        rank: 0,
        listed: 2,
        running: 1,
    };
    assert_eq!(error(&[long], &none), long_error);
    let blocks = RankLoad {
        waiting_kv_blocks: Some(vec![1]),
        ..rank(0, 0, 2, None)
    };
    let blocks_error = PlanError::WaitingBlocks {
        rank: 0,
        listed: 1,
        waiting: 2,
    };
    assert_eq!(error(&[blocks], &none), blocks_error);
    let gain = Options {
        minimum_gain: f64::NAN,
        ..Options::default()
    };
    assert!(matches!(
        error(&twice, &gain),
        PlanError::MinimumGain { .. }
    ));
}
