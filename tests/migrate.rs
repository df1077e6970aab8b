//! The protocol keeps its promises, whatever fails: no sequence is lost, doubled or left frozen,
//! KV arrives as it was, blocks are conserved, a move that fails leaves its source as it was, and
//! all ranks and TP shards report the same. What cannot be survived is an error on every rank.

#[path = "migrate/layout.rs"]
mod layout;
mod migrate_support;
#[path = "migrate/precopy.rs"]
mod precopy;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use migrate_support::cluster::{Cluster, SHAPE, Shape};
use migrate_support::faults::Point;
use migrate_support::policy::{Anything, Script};
use proptest::prelude::*;
use seqshift::migrate::engine::Source;
use seqshift::migrate::planned::PlannedPolicy;
use seqshift::migrate::policy::{Flight, Forced, ForcedPolicy, Policy};
use seqshift::plan::{Gears, Options};

fn run(from: u32, to: u32, index: u32) -> Flight {
    let source = Source::Running(index);
    Flight { from, to, source }
}

fn script(lists: &[&[Flight]]) -> impl Fn() -> Box<dyn Policy> {
    let lists: VecDeque<Vec<Flight>> = lists.iter().map(|l| l.to_vec()).collect();
    move || Box::new(Script(lists.clone()))
}

/// Three sequences on rank 0 and one on rank 1 after one step; the names say where they are from.
fn started(shape: Shape, policy: impl Fn() -> Box<dyn Policy>, fault: Option<&str>) -> Cluster {
    let mut cluster = Cluster::new(shape, policy, fault);
    for (rank, name, prompt, length) in [
        (0, "0a", 5, 20),
        (0, "0b", 9, 30),
        (0, "0c", 2, 12),
        (1, "1a", 4, 25),
    ] {
        cluster.add(rank, name, prompt, length);
    }
    cluster.step();
    cluster.verify();
    cluster
}

/// Two moves from rank 0 to 1 and one back.
const CROSSING: [Flight; 3] = [
    Flight {
        from: 0,
        to: 1,
        source: Source::Running(0),
    },
    Flight {
        from: 0,
        to: 1,
        source: Source::Running(2),
    },
    Flight {
        from: 1,
        to: 0,
        source: Source::Running(0),
    },
];

const ONE_MOVE: [(Point, u32); 9] = [
    (Point::Capture, 0),
    (Point::Manifest, 0),
    (Point::Reserve, 1),
    (Point::Blocks, 1),
    (Point::Gather, 0),
    (Point::Damage, 0),
    (Point::Scatter, 1),
    (Point::Install, 1),
    (Point::Capture, 1),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn anything_may_move_and_fail(
        (ranks, shards, slots, blocks) in (2..=4u32, 1..=2u32, 3..8usize, 24..60u32),
        requests in prop::collection::vec((0..4u32, 1..14usize, 1..30u32), 1..20),
        faults in prop::collection::vec((0..ONE_MOVE.len(), 0..8u32, 1..8u64), 0..12),
        (interval, seed, abort, precopy) in
            (1..5u64, any::<u64>(), any::<prop::sample::Index>(), any::<bool>()),
    ) {
        let shape = Shape { ranks, shards, slots, blocks, ..SHAPE };
        let mut cluster = Cluster::new(shape, || Box::new(Anything::new(seed)), None);
        for (number, (rank, prompt, length)) in requests.iter().enumerate() {
            cluster.add(rank % ranks, &format!("{number}"), *prompt, *length);
        }
        if precopy {
            cluster.precopy();
        }
        let unwanted = abort.index(requests.len());
        let mut checks = 0;
        cluster.finish(interval, |cluster| {
            checks += 1;
            for (point, cell, when) in &faults {
                if *when == checks {
                    let cell = *cell as usize % cluster.cells.len();
                    cluster.cells[cell].faults.arm(ONE_MOVE[*point].0);
                }
            }
            if checks == 3 {
                cluster.abort(requests[unwanted].0 % ranks, &format!("{unwanted}"));
            }
        });
    }
}

#[test]
fn one_failed_move_concerns_nobody_else() {
    for shards in 1..=2 {
        for shard in 0..shards {
            for (point, rank) in ONE_MOVE {
                let shape = Shape { shards, ..SHAPE };
                let again = [run(0, 1, 0), run(1, 0, 0)];
                let mut cluster = started(shape, script(&[&CROSSING, &again]), None);
                cluster.cell(rank, shard).faults.arm(point);
                let report = cluster.check();
                assert!(
                    cluster.cell(rank, shard).faults.is_empty(),
                    "{point:?} was not met"
                );
                let failed: Vec<_> = report.moves.iter().filter(|m| m.error.is_some()).collect();
                assert_eq!((failed.len(), report.committed()), (1, 2), "{point:?}");
                let flight = failed[0].flight;
                let at_source = matches!(
                    point,
                    Point::Capture | Point::Manifest | Point::Gather | Point::Damage
                );
                assert_eq!(if at_source { flight.from } else { flight.to }, rank);
                let before = !matches!(
                    point,
                    Point::Gather | Point::Damage | Point::Scatter | Point::Install
                );
                assert_eq!((failed[0].rejected, report.faults() == 0), (before, before));
                let names = ["0a", "0c", "1a"];
                for (name, one) in names.iter().zip(&report.moves) {
                    let stays = one.error.is_some();
                    let at = if stays {
                        one.flight.from
                    } else {
                        one.flight.to
                    };
                    assert_eq!(cluster.place(name), Some(at), "{point:?}: {name}");
                }
                assert_eq!(cluster.place("0b"), Some(0));
                cluster.step();
                assert_eq!(cluster.check().committed(), 2, "{point:?}");
                cluster.finish(3, |_| {});
            }
        }
    }
}

#[test]
fn no_room_is_a_reject() {
    // Either no slot or no blocks at the destination.
    for (slots, blocks, why) in [(3, 64, "no slot"), (16, 26, "no blocks")] {
        let shape = Shape {
            slots,
            blocks,
            ..SHAPE
        };
        let moves = [run(0, 1, 0), run(0, 1, 1), run(0, 1, 2)];
        let mut cluster = started(shape, script(&[&moves]), None);
        let report = cluster.check();
        let of = |m: &seqshift::migrate::MoveResult| m.error.clone();
        let errors: Vec<String> = report.moves.iter().filter_map(of).collect();
        assert_eq!(errors, [why], "{slots} slots, {blocks} blocks");
        assert_eq!((report.committed(), report.faults()), (2, 0));
        cluster.finish(4, |_| {});
    }
}

#[test]
fn unreadable_engine_ends_the_check_on_all() {
    for shards in 1..=2 {
        for point in [Point::Counts, Point::Detail] {
            let shape = Shape {
                ranks: 3,
                shards,
                ..SHAPE
            };
            let mut cluster = started(shape, script(&[&CROSSING]), None);
            cluster.cell(1, shards - 1).faults.arm(point);
            let report = cluster.check();
            assert!(report.moves.is_empty() && report.decision.flights.is_empty());
            assert!(report.unreadable && report.faults() == 1);
            cluster.step();
            assert_eq!(cluster.check().committed(), 3);
            cluster.finish(4, |_| {});
        }
    }
}

#[test]
fn broken_communicator_undoes_its_moves_and_is_made_anew() {
    for shards in 1..=2 {
        let deadline = Duration::from_secs(8);
        let shape = Shape {
            shards,
            deadline,
            ..SHAPE
        };
        let lists: [&[Flight]; 2] = [&CROSSING, &CROSSING];
        let mut cluster = started(shape, script(&lists), None);
        cluster.cell(1, shards - 1).faults.arm(Point::Break);
        let report = cluster.check();
        assert_eq!((report.committed(), report.faults()), (0, 3));
        // It cannot be made at first: a fault, and nothing moves.
        cluster.cell(0, shards - 1).faults.arm(Point::Restore);
        cluster.step();
        let report = cluster.check();
        assert!(report.kv_failed && report.moves.is_empty());
        assert_eq!(report.faults(), 1);
        cluster.step();
        assert_eq!(cluster.check().committed(), 3);
        cluster.finish(4, |_| {});
    }
}

#[test]
fn damaged_messages_are_repaired() {
    for kind in ["Load", "Sync", "Detail", "Offer", "Reply", "Outcome"] {
        for action in [
            "corrupt",
            "truncate",
            "version",
            "duplicate",
            "stale",
            "reorder",
        ] {
            let fault = format!("rank=0,kind={kind},action={action}");
            let lists: [&[Flight]; 2] = [&CROSSING, &[run(1, 0, 0)]];
            let mut cluster = started(SHAPE, script(&lists), Some(&fault));
            assert_eq!(cluster.check().committed(), 3, "{fault}");
            cluster.step();
            let report = cluster.check();
            assert!(report.synced);
            assert_eq!(report.committed(), 1, "{fault}");
            cluster.finish(5, |_| {});
        }
    }
}

#[test]
fn lasting_damage_of_one_message_costs_its_moves() {
    for (kind, rank) in [("Offer", 0), ("Reply", 1)] {
        let deadline = Duration::from_secs(8);
        let shape = Shape {
            ranks: 3,
            deadline,
            ..SHAPE
        };
        let fault = format!(
            "rank={rank},kind={kind},action=corrupt,times=4,peer={}",
            1 - rank
        );
        let moves = [run(0, 1, 0), run(0, 2, 0), run(1, 2, 0)];
        let lists: [&[Flight]; 2] = [&[run(0, 1, 0), run(0, 2, 1), run(1, 2, 0)], &moves[..1]];
        let mut cluster = started(shape, script(&lists), Some(&fault));
        let began = Instant::now();
        let report = cluster.check();
        // Both ends know that nothing will be sent: nobody waits for it.
        assert!(began.elapsed() < deadline / 4);
        assert!(report.moves[0].error.is_some() && report.moves[0].rejected);
        assert!(report.moves[1].error.is_none());
        cluster.step();
        assert_eq!(cluster.check().committed(), 1, "{kind}");
        cluster.finish(4, |_| {});
    }
}

#[test]
fn failed_exchange_stops_all_and_nobody_guesses() {
    for kind in ["Load", "Detail", "Offer", "Reply", "Outcome"] {
        for action in ["header", "corrupt,times=4"] {
            if action != "header" && matches!(kind, "Offer" | "Reply") {
                continue;
            }
            let fault = format!("rank=1,kind={kind},action={action}");
            let shape = Shape { ranks: 3, ..SHAPE };
            let mut cluster = started(shape, script(&[&CROSSING]), Some(&fault));
            let began = Instant::now();
            let results = cluster.try_check();
            assert!(began.elapsed() < Duration::from_secs(20));
            for (rank, result) in results.iter().enumerate() {
                let error = result.as_ref().unwrap_err().to_string();
                assert!(error.starts_with("rank 1"), "{fault}: {error}");
                assert_eq!(cluster.cells[rank].engine.commits, 0);
            }
            // Whoever had what it needed learns it at the next check.
            for result in cluster.try_check() {
                assert!(result.is_err(), "{fault}");
            }
        }
    }
}

#[test]
fn rank_that_falls_silent_is_named_by_the_others() {
    for (shards, kind) in (1..=2).flat_map(|n| ["Offer", "Reply", "Outcome"].map(|k| (n, k))) {
        let deadline = Duration::from_secs(3);
        let shape = Shape {
            ranks: 3,
            shards,
            deadline,
            ..SHAPE
        };
        // No connection closes: only the deadline tells.
        let fault = format!("rank=1,kind={kind},action=drop");
        let mut cluster = started(shape, script(&[&CROSSING]), Some(&fault));
        let began = Instant::now();
        let results = cluster.try_check();
        assert!(began.elapsed() < deadline + Duration::from_secs(1));
        for (cell, result) in results.into_iter().enumerate() {
            let error = result.unwrap_err().to_string();
            // Other shards miss no rank, but the shard of theirs that does, and wait for its word.
            if cell != shards as usize {
                assert!(error.contains("rank 1"), "{shards}, {cell}: {error}");
                assert!(error.contains(kind), "{shards}, {cell}: {error}");
            }
            assert_eq!(cluster.cells[cell].engine.commits, 0);
        }
    }
}

#[test]
fn lost_lockstep_is_an_error_on_all() {
    let shape = Shape { ranks: 3, ..SHAPE };
    let mut cluster = started(shape, script(&[&CROSSING]), None);
    for result in cluster.try_check_astray(2) {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("lost lockstep"), "{error}");
    }
}

#[test]
fn failure_after_the_commit_stops_the_rollout() {
    for (point, rank) in [
        (Point::Forget, 0),
        (Point::Activate, 1),
        (Point::Thaw, 0),
        (Point::Release, 1),
    ] {
        let mut cluster = started(SHAPE, script(&[&CROSSING]), None);
        cluster.cell(rank, 0).faults.arm(point);
        if matches!(point, Point::Thaw | Point::Release) {
            cluster.cell(1, 0).faults.arm(Point::Install);
        }
        let results = cluster.try_check();
        let error = results[rank as usize].as_ref().unwrap_err().to_string();
        assert!(error.starts_with("after the commit, "), "{error}");
        // The other rank stops at its next check, and knows why.
        let results = cluster.try_check();
        let error = results[1 - rank as usize].as_ref().unwrap_err().to_string();
        assert!(error.contains(&format!("rank {rank} is gone")), "{error}");
        assert!(error.contains("after the commit, "), "{error}");
    }
}

#[test]
fn results_come_home_after_two_hops_and_when_the_sequence_does() {
    let shape = Shape {
        ranks: 3,
        shards: 2,
        ..SHAPE
    };
    let lists: [&[Flight]; 3] = [&[run(0, 1, 0)], &[run(1, 2, 1)], &[run(2, 0, 0)]];
    let mut cluster = started(shape, script(&lists), None);
    for (at, away) in [(1, true), (2, true), (0, false)] {
        assert_eq!(cluster.check().committed(), 1);
        assert_eq!(cluster.place("0a"), Some(at));
        assert_eq!(cluster.cell(0, 1).engine.away.len(), usize::from(away));
        cluster.step();
        cluster.step();
    }
    cluster.finish(3, |_| {});
}

#[test]
fn drain_brings_what_the_last_check_could_not() {
    let mut cluster = started(SHAPE, script(&[&[run(0, 1, 0)]]), None);
    assert_eq!(cluster.check().committed(), 1);
    // No check any more.
    for _ in 0..40 {
        cluster.step();
        cluster.verify();
    }
    assert_eq!(cluster.cell(0, 0).engine.results["0a"].len(), 1);
    assert!(cluster.drained());
    // Nothing is left to return.
    assert!(!cluster.drained());
}

#[test]
fn results_lost_on_one_shard_stop_all_shards() {
    let shape = Shape { shards: 2, ..SHAPE };
    let fault = "rank=1,kind=Drain,action=corrupt,times=4";
    let mut cluster = started(shape, script(&[&[run(0, 1, 0)]]), Some(fault));
    assert_eq!(cluster.check().committed(), 1);
    for _ in 0..40 {
        cluster.step();
    }
    // The fault is shard 0's alone.
    for result in cluster.try_drain() {
        assert!(result.is_err());
    }
}

#[test]
fn abort_reaches_whoever_runs_the_sequence() {
    let shape = Shape {
        ranks: 3,
        shards: 2,
        ..SHAPE
    };
    let lists: [&[Flight]; 2] = [&[run(0, 1, 0)], &[run(1, 2, 1)]];
    let mut cluster = started(shape, script(&lists), None);
    for _ in 0..2 {
        assert_eq!(cluster.check().committed(), 1);
        cluster.step();
    }
    assert_eq!(cluster.place("0a"), Some(2));
    cluster.abort(0, "0a");
    assert!(cluster.check().synced);
    assert_eq!(cluster.place("0a"), None);
    cluster.finish(3, |_| {});
}

#[test]
fn waiting_request_moves_without_kv() {
    let source = Source::Waiting(0);
    let moves = [Flight {
        from: 0,
        to: 1,
        source,
    }];
    let shape = Shape { slots: 2, ..SHAPE };
    let mut cluster = started(shape, script(&[&moves]), None);
    let report = cluster.check();
    assert_eq!((report.committed(), report.kv_bytes), (1, 0));
    assert_eq!(cluster.place("0c"), Some(1));
    cluster.finish(3, |_| {});
}

#[test]
fn planner_and_forced_plans_move_what_they_say() {
    let gears = || Gears::new(&[8, 4, 2, 1]).unwrap();
    let planned =
        || -> Box<dyn Policy> { Box::new(PlannedPolicy::new(gears(), Options::default())) };
    let mut cluster = Cluster::new(SHAPE, planned, None);
    for number in 0..8 {
        cluster.add(0, &format!("{number}"), 6, 40);
    }
    cluster.step();
    assert_eq!(cluster.check().committed(), 4);
    cluster.step();
    assert!(cluster.check().decision.flights.is_empty());
    cluster.finish(5, |_| {});

    for plan in [Forced::Shuffle, Forced::Pingpong] {
        let shape = Shape {
            ranks: 3,
            shards: 2,
            ..SHAPE
        };
        let forced = || -> Box<dyn Policy> { Box::new(ForcedPolicy::new(plan)) };
        let mut cluster = started(shape, forced, None);
        let mut moved = 0;
        for _ in 0..6 {
            moved += cluster.check().committed();
            cluster.step();
        }
        assert!(moved >= 12, "{plan:?}: {moved}");
        cluster.finish(2, |_| {});
    }
}
