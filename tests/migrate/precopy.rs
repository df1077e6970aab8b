//! A copy in the background changes when blocks travel and nothing else: whatever ends or fails
//! meanwhile, no sequence is lost, doubled or held up, and what was held is given back.

use seqshift::migrate::{Precopied, Report};

use super::*;

const NAMES: [&str; 3] = ["0a", "0c", "1a"];
const DEADLINE: Duration = Duration::from_secs(8);

/// Sequences of several full blocks; the lists of moves come in this order, each copied in the
/// background first.
fn grown(shape: Shape, lists: &[&[Flight]], fault: Option<&str>) -> Cluster {
    let mut cluster = Cluster::new(shape, script(lists), fault);
    cluster.precopy();
    for (rank, name, prompt) in [(0, "0a", 15), (0, "0b", 9), (0, "0c", 12), (1, "1a", 14)] {
        cluster.add(rank, name, prompt, 40);
    }
    for _ in 0..3 {
        cluster.step();
    }
    cluster
}

/// Steps and checks until nothing is copied any more; the last report, and all that was aborted.
/// However slow a copy is, it has ended before the check that it announced.
fn stop(cluster: &mut Cluster) -> (Report, Vec<String>) {
    let mut aborted = Vec::new();
    loop {
        cluster.step_to_resume();
        cluster.await_copies();
        let report = cluster.check();
        for one in &cluster.precopied {
            aborted.extend(one.aborted.clone());
        }
        if cluster.resume.is_none() {
            return (report, aborted);
        }
        assert!(report.moves.is_empty());
    }
}

fn begin(cluster: &mut Cluster) {
    let report = cluster.check();
    assert!(report.moves.is_empty() && report.resume_at.is_some());
}

/// Just before the check that may stop for the moves of [`CROSSING`].
fn copying(shape: Shape) -> Cluster {
    let mut cluster = grown(shape, &[&CROSSING], None);
    begin(&mut cluster);
    cluster.step_to_resume();
    cluster
}

#[test]
fn the_stop_sends_only_the_rest() {
    for shards in 1..=2 {
        let shape = Shape { shards, ..SHAPE };
        let mut plain = Cluster::new(SHAPE, script(&[&CROSSING]), None);
        plain.add(0, "0a", 15, 40);
        plain.add(0, "0b", 9, 40);
        plain.add(0, "0c", 12, 40);
        plain.add(1, "1a", 14, 40);
        let mut cluster = grown(shape, &[&CROSSING], None);
        begin(&mut cluster);
        let mut copied = 0;
        let report = loop {
            cluster.step_to_resume();
            cluster.await_copies();
            let report = cluster.check();
            copied += cluster.precopied[0].bytes;
            if cluster.resume.is_none() {
                break report;
            }
        };
        assert_eq!(report.committed(), 3);
        assert!(cluster.precopied.iter().all(|p| p.aborted.is_empty()));
        for (name, at) in NAMES.iter().zip([1, 1, 0]) {
            assert_eq!(cluster.place(name), Some(at));
        }
        // The seven blocks that were full at first went in the background.
        assert!(copied >= 7 * 32, "{copied}");
        let rest = report.kv_bytes - cluster.precopied[0].bytes;
        assert!(rest > 0);
        // Together as much as a stop would have sent.
        while plain.now() < cluster.now() {
            plain.step();
        }
        assert_eq!(copied + rest, plain.check().kv_bytes);
        cluster.finish(3, |_| {});
    }
}

#[test]
fn what_ends_meanwhile_does_not_move() {
    type Act = fn(&mut Cluster);
    let abort: Act = |c| c.abort(0, "0a");
    // Computed anew before the check, in other blocks or in the same ones.
    let preempt: Act = |c| c.preempt(0, "0a");
    let end: Act = |_| {};
    for (act, length, why) in [
        (end, 5, "ended"),
        (abort, 40, "ended"),
        (preempt, 40, "preempted"),
    ] {
        for shards in 1..=2 {
            let shape = Shape { shards, ..SHAPE };
            let mut cluster = Cluster::new(shape, script(&[&CROSSING]), None);
            cluster.precopy();
            let rows = [
                (0, "0a", length),
                (0, "0b", 40),
                (0, "0c", 40),
                (1, "1a", 40),
            ];
            for (rank, name, length) in rows {
                cluster.add(rank, name, 15, length);
            }
            for _ in 0..3 {
                cluster.step();
            }
            begin(&mut cluster);
            act(&mut cluster);
            let (report, aborted) = stop(&mut cluster);
            assert_eq!(aborted, vec![why; shards as usize]);
            assert_eq!((report.committed(), report.faults()), (2, 0));
            assert_eq!(cluster.place("0c"), Some(1));
            assert_eq!(cluster.place("1a"), Some(0));
            cluster.finish(3, |_| {});
        }
    }
}

#[test]
fn an_abort_at_home_reaches_a_copy_of_a_sequence_away() {
    let lists: [&[Flight]; 2] = [&[run(0, 1, 0)], &[run(1, 2, 1)]];
    let shape = Shape {
        ranks: 3,
        shards: 2,
        ..SHAPE
    };
    let mut cluster = grown(shape, &lists, None);
    begin(&mut cluster);
    assert_eq!(stop(&mut cluster).0.committed(), 1);
    cluster.step();
    begin(&mut cluster);
    cluster.abort(0, "0a");
    let (report, aborted) = stop(&mut cluster);
    assert_eq!((report.committed(), aborted), (0, vec!["ended".into(); 2]));
    cluster.finish(3, |_| {});
}

#[test]
fn a_destination_without_room_in_the_end_rejects() {
    let shape = Shape { slots: 3, ..SHAPE };
    let mut cluster = grown(shape, &[&CROSSING[..2]], None);
    begin(&mut cluster);
    cluster.add(1, "late", 6, 30);
    let (report, aborted) = stop(&mut cluster);
    let errors: Vec<_> = report.moves.iter().map(|m| m.error.as_deref()).collect();
    assert_eq!((errors, aborted.len()), (vec![None, Some("no slot")], 0));
    assert_eq!(report.faults(), 0);
    assert_eq!(cluster.place("0c"), Some(0));
    cluster.finish(3, |_| {});

    // The held blocks are given back, whichever shard had no room.
    for shard in 0..2 {
        let shape = Shape { shards: 2, ..SHAPE };
        let mut cluster = copying(shape);
        cluster.cell(1, shard).faults.arm(Point::Reserve);
        let (report, _) = stop(&mut cluster);
        assert_eq!((report.committed(), report.faults()), (2, 0));
        cluster.finish(3, |_| {});
    }
}

/// A copy that meets a fault on one shard of a rank; the other shard does not. The cluster at its
/// end, the last report, and all that was aborted, first at the beginning.
fn hit(rank: u32, shard: u32, point: Point) -> (Cluster, Report, [Vec<String>; 2]) {
    let shape = Shape { shards: 2, ..SHAPE };
    let mut cluster = grown(shape, &[&CROSSING], None);
    cluster.cell(rank, shard).faults.arm(point);
    begin(&mut cluster);
    let aborted = |p: &Precopied| p.aborted.clone();
    let first = cluster.precopied.iter().flat_map(aborted).collect();
    let (report, last) = stop(&mut cluster);
    assert!(cluster.cell(rank, shard).faults.is_empty(), "{point:?}");
    (cluster, report, [first, last])
}

#[test]
fn without_a_copy_the_stop_sends_everything_and_what_is_not_watched_stays() {
    for shard in 0..2 {
        for (point, rank, moved) in [(Point::Prepare, 1, 3), (Point::Watch, 0, 2)] {
            let (mut cluster, report, aborted) = hit(rank, shard, point);
            // One per shard.
            assert_eq!(aborted.concat().len(), 2, "{aborted:?}");
            let counts = (report.committed(), report.faults());
            assert_eq!(counts, (moved, 0), "{point:?}");
            cluster.finish(3, |_| {});
        }
    }
}

#[test]
fn a_copy_that_failed_for_one_move_is_made_again_at_the_stop() {
    for shard in 0..2 {
        for (point, rank) in [(Point::Gather, 0), (Point::Scatter, 1)] {
            let (mut cluster, report, [_, aborted]) = hit(rank, shard, point);
            let counts = (report.committed(), report.faults());
            assert_eq!(counts, (3, 0), "{point:?}");
            let anew = |a: &String| a.starts_with("copied anew: ");
            assert!(aborted.iter().any(anew), "{aborted:?}");
            cluster.finish(3, |_| {});
        }
    }
}

#[test]
fn without_a_thread_the_copy_is_made_in_the_check() {
    for shard in 0..2 {
        for rank in 0..2 {
            let (mut cluster, report, aborted) = hit(rank, shard, Point::Thread);
            assert_eq!((report.committed(), report.faults()), (3, 0));
            assert_eq!(aborted[0], ["not in the background: no thread"]);
            assert_eq!(aborted[1], [""; 0]);
            cluster.finish(3, |_| {});
        }
    }
}

#[test]
fn damage_on_the_way_is_found_at_the_commit() {
    for shard in 0..2 {
        let (mut cluster, report, _) = hit(0, shard, Point::Damage);
        assert_eq!((report.committed(), report.faults()), (2, 1));
        let error = report.moves.iter().find_map(|m| m.error.clone()).unwrap();
        assert!(error.contains("digests differ"), "{error}");
        cluster.finish(3, |_| {});
    }
}

#[test]
fn a_link_that_breaks_or_stalls_costs_the_plan_and_further_copies() {
    for (point, shards) in [(Point::Break, 1), (Point::Stall, 1), (Point::Break, 2)] {
        let shape = Shape {
            shards,
            deadline: DEADLINE,
            ..SHAPE
        };
        let mut cluster = grown(shape, &[&CROSSING, &CROSSING], None);
        cluster.cell(0, shards - 1).faults.arm(point);
        let began = Instant::now();
        begin(&mut cluster);
        let (report, aborted) = stop(&mut cluster);
        assert!(began.elapsed() < DEADLINE, "{point:?}");
        assert!(report.moves.is_empty() && report.kv_failed);
        assert_eq!(report.faults(), 1);
        let broke = aborted.iter().filter(|a| a.contains("communicator broke"));
        assert_eq!(broke.count(), 3 * shards as usize, "{aborted:?}");
        cluster.step();
        // Made anew, and used at a stop only.
        let report = cluster.check();
        assert_eq!((report.committed(), report.resume_at), (3, None));
        cluster.finish(3, |_| {});
    }
}

#[test]
fn a_copy_that_takes_longer_is_looked_at_a_few_times_and_then_waited_for() {
    let shape = Shape { shards: 2, ..SHAPE };
    let mut cluster = grown(shape, &[&CROSSING], None);
    // Ends only when the check waits for it.
    cluster.cell(1, 1).faults.arm(Point::Linger);
    begin(&mut cluster);
    let began = cluster.now();
    for _ in 0..4 {
        cluster.step_to_resume();
        let report = cluster.check();
        assert!(report.moves.is_empty() && cluster.resume.is_some());
        assert!(cluster.precopied.iter().all(|p| p.rounds == 0));
    }
    cluster.step_to_resume();
    cluster.check();
    assert_eq!(cluster.now(), began + 5 * 3);
    assert!(cluster.precopied.iter().all(|p| p.rounds == 1));
    // What the sequences have grown by meanwhile is copied, too.
    let (report, aborted) = stop(&mut cluster);
    assert_eq!((report.committed(), aborted.len()), (3, 0));
    cluster.finish(3, |_| {});
}

#[test]
fn an_unreadable_engine_gives_the_plan_up_on_all() {
    for shards in 1..=2 {
        for point in [Point::Counts, Point::Detail] {
            let shape = Shape { shards, ..SHAPE };
            let mut cluster = copying(shape);
            cluster.cell(1, shards - 1).faults.arm(point);
            let (report, aborted) = stop(&mut cluster);
            assert!(report.moves.is_empty() && report.faults() == 1);
            assert_eq!(aborted.len(), 3 * shards as usize);
            cluster.finish(3, |_| {});
        }
    }
    // Which one of two shards cannot say what became of its sequence is no matter.
    for shard in 0..2 {
        let shape = Shape { shards: 2, ..SHAPE };
        let mut cluster = copying(shape);
        cluster.cell(1, shard).faults.arm(Point::Watched);
        let (report, aborted) = stop(&mut cluster);
        assert!(report.moves.is_empty());
        assert!(
            aborted.contains(&"the TP shards disagree".to_string()),
            "{aborted:?}"
        );
        cluster.finish(3, |_| {});
    }
}

#[test]
fn a_rollout_that_ends_meanwhile_gives_everything_back() {
    type End = fn(&mut Cluster) -> Vec<Precopied>;
    let (drains, leaves): (End, End) = (Cluster::cancel, Cluster::abandon);
    let ends = [
        (drains, "the rollout has ended"),
        (leaves, "the engine has left its group"),
    ];
    // The copy may have failed before; that is no second reason.
    let faults = [None, Some((Point::Gather, 0)), Some((Point::Scatter, 1))];
    let all = [1, 2].into_iter().flat_map(|s| ends.map(|end| (s, end)));
    for ((shards, (end, why)), fault) in all.flat_map(|one| faults.map(|fault| (one, fault))) {
        let shape = Shape { shards, ..SHAPE };
        let mut cluster = grown(shape, &[&CROSSING], None);
        if let Some((point, rank)) = fault {
            cluster.cell(rank, 0).faults.arm(point);
        }
        begin(&mut cluster);
        let held = |c: &Cluster| {
            c.cells
                .iter()
                .map(|c| c.engine.prepared.len())
                .sum::<usize>()
        };
        assert_eq!(held(&cluster), 3 * shards as usize);
        let ended = end(&mut cluster);
        assert_eq!(held(&cluster), 0);
        let aborted: Vec<_> = ended.into_iter().flat_map(|p| p.aborted).collect();
        assert_eq!(aborted, vec![why; 3 * shards as usize]);
        cluster.finish(3, |_| {});
    }
}

#[test]
fn damaged_messages_cost_the_copy_at_most() {
    for (kind, rank) in [("Prepare", 0), ("Prepared", 1)] {
        for action in ["corrupt", "truncate", "duplicate"] {
            let fault = format!("rank={rank},kind={kind},action={action}");
            let mut cluster = grown(SHAPE, &[&CROSSING], Some(&fault));
            begin(&mut cluster);
            assert_eq!(stop(&mut cluster).0.committed(), 3, "{fault}");
            cluster.finish(3, |_| {});
        }
    }
    let fault = "rank=0,kind=Prepare,action=corrupt,times=4";
    let mut cluster = grown(SHAPE, &[&CROSSING], Some(fault));
    begin(&mut cluster);
    assert_eq!(stop(&mut cluster).0.committed(), 3);
    cluster.finish(3, |_| {});
}

#[test]
fn a_failed_exchange_stops_all_and_nobody_guesses() {
    for kind in ["Prepare", "Prepared"] {
        let fault = format!("rank=1,kind={kind},action=header");
        let mut cluster = grown(Shape { ranks: 3, ..SHAPE }, &[&CROSSING], Some(&fault));
        for result in cluster.try_check() {
            let error = result.unwrap_err().to_string();
            assert!(error.starts_with("rank 1"), "{fault}: {error}");
        }
    }
    // The outcomes of the moves that a copy preceded.
    let fault = "rank=1,kind=Outcome,action=header";
    let mut cluster = grown(Shape { ranks: 3, ..SHAPE }, &[&CROSSING], Some(fault));
    begin(&mut cluster);
    let results = loop {
        cluster.step_to_resume();
        let results = cluster.try_check();
        match &results[0] {
            Ok(report) => cluster.resume = report.resume_at,
            Err(_) => break results,
        }
    };
    for (result, cell) in results.iter().zip(&cluster.cells) {
        assert!(result.is_err());
        assert_eq!(cell.engine.commits, 0);
    }
}

#[test]
fn a_plan_that_no_longer_lowers_the_gear_is_dropped() {
    let planned = || -> Box<dyn Policy> {
        let gears = Gears::new(&[8, 4, 2, 1]).unwrap();
        Box::new(PlannedPolicy::new(gears, Options::default()))
    };
    // Of eight, how many end during the copy; what becomes of the four moves.
    for (ending, moved, unneeded) in [(0, 4, 0), (2, 2, 2), (4, 0, 4)] {
        let mut cluster = Cluster::new(SHAPE, planned, None);
        cluster.precopy();
        for number in 0..8 {
            cluster.add(0, &format!("{number}"), 9, 22);
        }
        cluster.step();
        begin(&mut cluster);
        let planned = |c: &Cluster| c.cells[0].engine.watched_names();
        let stay: Vec<String> = (0..8)
            .map(|n| n.to_string())
            .filter(|n| !planned(&cluster).contains(n))
            .collect();
        for name in stay.iter().take(ending) {
            cluster.abort(0, name);
        }
        let (report, aborted) = stop(&mut cluster);
        assert_eq!(report.committed(), moved, "{ending} end");
        assert_eq!(aborted, vec!["it is no longer needed"; unneeded]);
        cluster.finish(50, |_| {});
    }
}
