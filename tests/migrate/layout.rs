//! Caches that have become different between the ranks since the group was joined refuse every
//! round, on all ranks, until they are alike again; nothing is moved into a wrong place.

use super::*;

#[test]
fn caches_that_differ_refuse_the_round_and_alike_ones_do_not() {
    for (shards, shard) in [(1, 0), (2, 0), (2, 1)] {
        let shape = Shape {
            ranks: 3,
            shards,
            ..SHAPE
        };
        let mut cluster = started(shape, script(&[&CROSSING]), None);
        // A rank that takes no part in the moves; it will not stay so.
        cluster.set_layout(2, shard, 7);
        for _ in 0..2 {
            let report = cluster.check();
            assert!(report.moves.is_empty() && report.kv_failed);
            assert_eq!(report.faults(), 1);
            let why = report.kv_error.as_deref();
            assert_eq!(why, (shard == 0).then_some("the layout is 1 here"));
            cluster.step();
        }
        for rank in 0..2 {
            cluster.set_layout(rank, shard, 7);
        }
        let report = cluster.check();
        assert_eq!((report.committed(), report.kv_error), (3, None));
        cluster.finish(4, |_| {});
    }
}

#[test]
fn caches_that_change_while_kv_is_copied_end_the_plan() {
    for shards in 1..=2 {
        let shape = Shape { shards, ..SHAPE };
        let mut cluster = started(shape, script(&[&CROSSING]), None);
        cluster.precopy();
        for _ in 0..2 {
            cluster.step();
        }
        assert!(cluster.check().resume_at.is_some());
        cluster.set_layout(1, shards - 1, 7);
        cluster.step_to_resume();
        cluster.await_copies();
        let report = cluster.check();
        assert!(report.moves.is_empty() && report.kv_failed && report.resume_at.is_none());
        let aborted: Vec<_> = (cluster.precopied.iter())
            .flat_map(|p| &p.aborted)
            .collect();
        assert_eq!(aborted.len(), 3 * shards as usize, "{aborted:?}");
        assert!(
            aborted
                .iter()
                .any(|why| why.contains("the layout is 7 here"))
        );
        cluster.set_layout(0, shards - 1, 7);
        cluster.finish(4, |_| {});
    }
}
