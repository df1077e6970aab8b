//! Contract of an exchange: after it, every moved block has at the destination the bytes it had at
//! the source, every other byte of the cache is as before, both ends computed the same digest, and
//! staging memory never exceeded its bound, however small that is; the strategy of a rank is its own
//! affair.

mod support;

use std::time::Instant;

use proptest::prelude::*;
use seqshift::device::Stream;
use seqshift::kv::{Move, MoveOutcome, Strategy as Way, Transfer, TransferError, TransferOptions};
use support::cache::Cache;
use support::fault::Faults;
use support::{LONG, Rank, deadline, group, runner, runtime};

/// One move of a test's plan: block ids at both ends.
#[derive(Clone, Debug)]
struct Planned {
    from: u32,
    to: u32,
    source: Vec<u32>,
    target: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Case {
    ranks: u32,
    lengths: Vec<u64>,
    staging: u64,
    /// How each rank moves its blocks.
    ways: Vec<Option<Way>>,
    /// Whether a rank has neighbours of one length in one buffer.
    stacked: Vec<bool>,
    plan: Vec<Planned>,
}

const BLOCKS: u64 = 64;

/// Plans in which no block is written twice, nor read at a rank that writes it.
fn cases() -> impl Strategy<Value = Case> {
    (2_u32..4).prop_flat_map(|ranks| {
        let one = (0..ranks, 1..ranks, 0_usize..8);
        let layer = (1_u64..3000, 1_usize..4).prop_map(|(length, count)| vec![length; count]);
        let lengths = proptest::collection::vec(layer, 1..4).prop_map(|layers| layers.concat());
        let shuffle = Just((0..BLOCKS as u32).collect::<Vec<u32>>()).prop_shuffle();
        let ids = proptest::collection::vec(shuffle, ranks as usize);
        let plan = proptest::collection::vec(one, 0..7);
        let way = prop_oneof![
            Just(None),
            proptest::sample::select(Way::ALL.to_vec()).prop_map(Some)
        ];
        let ways = proptest::collection::vec(way, ranks as usize);
        let ways = (
            ways,
            proptest::collection::vec(any::<bool>(), ranks as usize),
        );
        (Just(ranks), lengths, 4096_u64..40_000, plan, ids, ways).prop_map(
            |(ranks, lengths, staging, moves, mut free, (ways, stacked))| {
                let mut take = |rank: u32, count| {
                    let free = &mut free[rank as usize];
                    free.split_off(free.len() - count)
                };
                let plan = moves.into_iter().map(|(from, distance, count)| {
                    let to = (from + distance) % ranks;
                    let (source, target) = (take(from, count), take(to, count));
                    Planned {
                        from,
                        to,
                        source,
                        target,
                    }
                });
                let plan = plan.collect();
                Case {
                    ranks,
                    lengths,
                    staging,
                    ways,
                    stacked,
                    plan,
                }
            },
        )
    })
}

fn moves(rank: u32, plan: &[Planned], outbound: bool) -> Vec<Move<'_>> {
    let seen = |one: &'_ &Planned| {
        if outbound {
            one.from == rank
        } else {
            one.to == rank
        }
    };
    let ours = plan.iter().filter(seen);
    ours.map(|one| match outbound {
        true => Move {
            peer: one.to,
            blocks: &one.source,
        },
        false => Move {
            peer: one.from,
            blocks: &one.target,
        },
    })
    .collect()
}

/// Runs the plan as one rank and returns its cache before and after, and the digests.
type Seen = (
    Vec<Vec<u8>>,
    Vec<Vec<u8>>,
    Vec<MoveOutcome>,
    Vec<MoveOutcome>,
    Cache,
);

fn run(rank: &Rank, case: &Case, verify: bool) -> Seen {
    let stream = Stream::new(&rank.runtime).expect("a stream");
    let padding = u64::from(rank.rank) * 96;
    let make = match case.stacked[rank.rank as usize] {
        true => Cache::stacked,
        false => Cache::new,
    };
    let cache = make(&stream, rank.rank, BLOCKS, &case.lengths, padding);
    let before = cache.read(&stream);
    let free = rank.runtime.memory().expect("it can be asked").free;
    let options = TransferOptions {
        chunk_bytes: 4096,
        ..TransferOptions::new(&rank.runtime, case.staging, verify)
    };
    // SAFETY: the cache outlives the transfer.
    let mut transfer =
        unsafe { Transfer::new(&rank.runtime, cache.layout.clone(), case.ranks, options) }
            .expect("there is room");
    transfer.set_strategy(case.ways[rank.rank as usize]);
    assert!(transfer.staging_bytes() <= 2 * case.staging);
    let taken = free - rank.runtime.memory().expect("it can be asked").free;
    // The mock allocates in steps of 2 MiB.
    assert!(taken as u64 <= 2 * case.staging.next_multiple_of(2 << 20) + 128);
    let (outbound, inbound) = (
        moves(rank.rank, &case.plan, true),
        moves(rank.rank, &case.plan, false),
    );
    let report = transfer.exchange(&rank.communicator, &outbound, &inbound, deadline());
    assert_eq!(report.broken, None);
    let bytes = |moves: &[Move<'_>]| {
        let blocks: usize = moves.iter().map(|one| one.blocks.len()).sum();
        blocks as u64 * cache.layout.block_bytes()
    };
    assert_eq!(
        (report.sent, report.received),
        (bytes(&outbound), bytes(&inbound))
    );
    (
        before,
        cache.read(&stream),
        report.outbound,
        report.inbound,
        cache,
    )
}

fn check(case: &Case, verify: bool) {
    let seen = group(case.ranks, |rank| run(&rank, case, verify));
    let mut next = vec![[0, 0]; case.ranks as usize];
    let mut expected: Vec<_> = seen.iter().map(|seen| seen.0.clone()).collect();
    for one in &case.plan {
        let (from, to) = (one.from as usize, one.to as usize);
        let out = &seen[from].2[next[from][0]];
        let into = &seen[to].3[next[to][1]];
        next[from][0] += 1;
        next[to][1] += 1;
        let bytes = seen[from].4.blocks(&seen[from].0, &one.source);
        let digest = verify.then(|| xxhash_rust::xxh3::xxh3_64(&bytes));
        for outcome in [out, into] {
            assert_eq!(
                *outcome,
                MoveOutcome {
                    digest,
                    error: None
                }
            );
        }
        let caches = seen[to].4.layout.sub_caches();
        let mut rest = bytes.as_slice();
        for (cache, contents) in caches.iter().zip(&mut expected[to]) {
            for id in &one.target {
                let start = (u64::from(*id) * cache.stride) as usize;
                let (block, more) = rest.split_at(cache.length as usize);
                contents[start..start + cache.length as usize].copy_from_slice(block);
                rest = more;
            }
        }
    }
    for (rank, expected) in expected.iter().enumerate() {
        assert!(
            seen[rank].1 == *expected,
            "the cache of rank {rank} is not as planned"
        );
    }
}

#[test]
fn random_plans_arrive_byte_for_byte() {
    let _faults = Faults::begin();
    let run = |case| {
        check(&case, true);
        Ok(())
    };
    runner(20)
        .run(&cases(), run)
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Blocks of 40 kB through chunks of 4 kB, both ways at once.
fn large_blocks() -> Case {
    let planned = |from, first: u32| Planned {
        from,
        to: 1 - from,
        source: (first..first + 5).collect(),
        target: (first + 20..first + 25).rev().collect(),
    };
    Case {
        ranks: 2,
        lengths: vec![40_000, 8, 4096],
        staging: 8192,
        ways: vec![None; 2],
        stacked: vec![false; 2],
        plan: vec![planned(0, 0), planned(1, 10), planned(0, 5)],
    }
}

#[test]
fn blocks_larger_than_staging_memory_are_split() {
    let _faults = Faults::begin();
    check(&large_blocks(), true);
}

#[test]
fn without_verification_there_are_no_digests() {
    let _faults = Faults::begin();
    check(&large_blocks(), false);
}

#[test]
fn one_transfer_serves_many_exchanges_and_a_new_cache() {
    let _faults = Faults::begin();
    group(2, |rank| {
        let stream = Stream::new(&rank.runtime).expect("a stream");
        let caches = [
            Cache::new(&stream, rank.rank, 16, &[100, 200], 0),
            Cache::new(&stream, rank.rank + 10, 16, &[3000], 32),
        ];
        let options = TransferOptions::new(&rank.runtime, 1 << 16, true);
        let layout = caches[0].layout.clone();
        // SAFETY: the caches outlive the transfer.
        let mut transfer =
            unsafe { Transfer::new(&rank.runtime, layout, 2, options) }.expect("there is room");
        let peer = 1 - rank.rank;
        for cache in &caches {
            // SAFETY: as above.
            unsafe { transfer.set_layout(cache.layout.clone()) };
            for block in 0..4 {
                let out = [Move {
                    peer,
                    blocks: &[block],
                }];
                let into = [Move {
                    peer,
                    blocks: &[block + 8],
                }];
                let report = transfer.exchange(&rank.communicator, &out, &into, deadline());
                assert_eq!((report.broken, &report.inbound[0].error), (None, &None));
            }
        }
        let theirs = [
            Cache::new(&stream, peer, 16, &[100, 200], 0),
            Cache::new(&stream, peer + 10, 16, &[3000], 32),
        ];
        for (ours, theirs) in caches.iter().zip(&theirs) {
            let (got, sent) = (ours.read(&stream), theirs.read(&stream));
            let got = ours.blocks(&got, &[8, 9, 10, 11]);
            assert!(got == theirs.blocks(&sent, &[0, 1, 2, 3]));
        }
        // Nothing to move needs no peer.
        let report = transfer.exchange(&rank.communicator, &[], &[], Instant::now());
        assert_eq!((report.broken, report.rounds), (None, 0));
    });
}

#[test]
fn the_self_test_needs_no_peer_and_leaves_the_cache_as_it_is() {
    let _faults = Faults::begin();
    let runtime = runtime(0);
    let stream = Stream::new(&runtime).expect("a stream");
    let cache = Cache::new(&stream, 0, 32, &[1000, 3000], 24);
    let before = cache.read(&stream);
    let options = TransferOptions::new(&runtime, 8192, false);
    // SAFETY: the cache outlives the transfer.
    let mut transfer = unsafe { Transfer::new(&runtime, cache.layout.clone(), 2, options) }
        .expect("there is room");
    let ids = [31, 0, 1, 2, 3, 17];
    let result = transfer.self_test(&ids, LONG).expect("the cache is well");
    assert_eq!(result.bytes, 6 * 4000);
    assert_eq!(
        result.digest,
        xxhash_rust::xxh3::xxh3_64(&cache.blocks(&before, &ids))
    );
    assert!(cache.read(&stream) == before);
    let error = transfer
        .self_test(&[32], LONG)
        .expect_err("there is no such block");
    assert!(
        matches!(
            error,
            TransferError::Block {
                block: 32,
                blocks: 32
            }
        ),
        "{error}"
    );
}

/// Long runs are sent from the cache and received into it, at either end without regard to the
/// other, and what is not a run is staged beside them.
#[test]
fn long_runs_are_not_staged() {
    let _faults = Faults::begin();
    let block = 256 << 10;
    for (ways, runs) in [
        ([Some(Way::Direct); 2], [true, true]),
        ([Some(Way::Direct); 2], [true, false]),
        ([Some(Way::Direct), None], [true, true]),
        ([Some(Way::Kernels), Some(Way::Direct)], [false, true]),
    ] {
        let ids = |run: bool| -> Vec<u32> {
            let step = if run { 1 } else { 5 };
            (0..11).map(|index| 3 + index * step).collect()
        };
        let planned = Planned {
            from: 0,
            to: 1,
            source: ids(runs[0]),
            target: ids(runs[1]),
        };
        let seen = group(2, |rank| {
            let stream = Stream::new(&rank.runtime).expect("a stream");
            // Runs of 11 blocks are cut into pieces of 2 MiB and less; the small sub-cache goes
            // with the rest of the first.
            let cache = Cache::new(&stream, rank.rank, BLOCKS, &[block, 4096, block], 0);
            let options = TransferOptions {
                staging_bytes: 4 << 20,
                chunk_bytes: 2 << 20,
                verify: true,
            };
            // SAFETY: the cache outlives the transfer.
            let mut transfer =
                unsafe { Transfer::new(&rank.runtime, cache.layout.clone(), 2, options) }
                    .expect("there is room");
            transfer.set_strategy(ways[rank.rank as usize]);
            let before = cache.read(&stream);
            let plan = std::slice::from_ref(&planned);
            let moves = [moves(rank.rank, plan, true), moves(rank.rank, plan, false)];
            let report = transfer.exchange(&rank.communicator, &moves[0], &moves[1], deadline());
            assert_eq!(report.broken, None);
            let outcomes = [report.outbound, report.inbound].concat();
            (before, cache.read(&stream), outcomes, report.direct, cache)
        });
        let [source, target] = &seen[..] else {
            panic!("two ranks")
        };
        assert!(source.1 == source.0, "the source has changed");
        let arrived = target.4.blocks(&target.1, &planned.target);
        assert!(
            arrived == source.4.blocks(&source.0, &planned.source),
            "{ways:?}"
        );
        let kept: Vec<u32> = (0..BLOCKS as u32)
            .filter(|id| !planned.target.contains(id))
            .collect();
        let others = |contents| target.4.blocks(contents, &kept);
        assert!(
            others(&target.1) == others(&target.0),
            "other blocks have changed"
        );
        assert!(source.2[0].digest.is_some());
        assert_eq!(source.2, target.2, "both ends saw the same bytes");
        for (rank, seen) in seen.iter().enumerate() {
            let direct = ways[rank] == Some(Way::Direct) && runs[rank];
            assert_eq!(
                seen.3 > 4 << 20,
                direct,
                "{ways:?} {runs:?}: rank {rank} left {}",
                seen.3
            );
            assert!(seen.3 < 22 * block, "what is short is staged");
        }
    }
}
