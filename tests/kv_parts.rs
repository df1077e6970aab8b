//! Contract of what is copied at once: blocks that lie in one memory are gathered and scattered by
//! one call where one can take them, whichever move they belong to, keys and values alike; caches
//! that are memory of their own are not mixed, even where they touch.

mod support;

use seqshift::device::Stream;
use seqshift::kv::{CopyCounts, KvLayout, Move, SubCache, Transfer, TransferOptions};
use support::cache::Cache;
use support::fault::Faults;
use support::{Rank, deadline, group};

const LENGTH: u64 = 512;
/// Keys and values of two layers.
const LENGTHS: [u64; 4] = [LENGTH, LENGTH, 2 * LENGTH, 2 * LENGTH];

/// What it takes rank 0 to send the blocks of each move to the same blocks of rank 1.
fn counts(
    moves: &[&[u32]],
    cache: impl Fn(&Stream, u32) -> Cache + Sync,
    layout: impl Fn(&KvLayout) -> KvLayout + Sync,
) -> CopyCounts {
    let all = group(2, |rank: Rank| {
        let stream = Stream::new(&rank.runtime).expect("a stream");
        let cache = cache(&stream, rank.rank);
        let options = TransferOptions::new(&rank.runtime, 1 << 20, true);
        // SAFETY: the cache outlives the transfer.
        let mut transfer =
            unsafe { Transfer::new(&rank.runtime, layout(&cache.layout), 2, options) }
                .expect("there is room");
        let peer = 1 - rank.rank;
        let moves: Vec<_> = moves.iter().map(|blocks| Move { peer, blocks }).collect();
        let (out, into): (&[_], &[_]) = match rank.rank {
            0 => (&moves, &[]),
            _ => (&[], &moves),
        };
        let report = transfer.exchange(&rank.communicator, out, into, deadline());
        let outcomes = report.outbound.iter().chain(&report.inbound);
        let digests: Vec<_> = outcomes.map(|one| one.digest).collect();
        assert!(digests.iter().all(Option::is_some), "{report:?}");
        (report.copies, digests)
    });
    assert_eq!(all[0], all[1], "gathers and scatters are alike");
    all[0].0
}

fn seen(counts: CopyCounts) -> (u64, u64, u64) {
    (counts.copies, counts.copies_2d, counts.kernels)
}

fn stacked(stream: &Stream, rank: u32) -> Cache {
    Cache::stacked(stream, rank, 64, &LENGTHS, 0)
}

#[test]
fn adjacent_blocks_of_several_moves_and_sub_caches_are_one_copy() {
    let _faults = Faults::begin();
    let moves: [&[u32]; 2] = [&[3, 4], &[5]];
    assert_eq!(seen(counts(&moves, stacked, KvLayout::clone)), (0, 2, 0));
    // Two runs of different lengths.
    let moves: [&[u32]; 2] = [&[3, 4], &[9]];
    assert_eq!(seen(counts(&moves, stacked, KvLayout::clone)), (8, 0, 0));
}

#[test]
fn a_kernel_takes_all_moves() {
    let _faults = Faults::begin();
    let moves: Vec<Vec<u32>> = (0..8)
        .map(|first| (0..4).map(|index| 63 - 8 * index - first).collect())
        .collect();
    let moves: Vec<&[u32]> = moves.iter().map(Vec::as_slice).collect();
    assert_eq!(seen(counts(&moves, stacked, KvLayout::clone)), (0, 0, 2));
    let apart = |stream: &Stream, rank| Cache::new(stream, rank, 64, &LENGTHS, 0);
    assert_eq!(seen(counts(&moves, apart, KvLayout::clone)), (0, 0, 4));
}

#[test]
fn caches_that_only_touch_are_not_one_memory() {
    let _faults = Faults::begin();
    let ending = |layout: &KvLayout| {
        let own = |cache: &SubCache| SubCache {
            extent: cache.blocks * cache.stride,
            ..cache.clone()
        };
        KvLayout::new(vec![layout.sub_caches().iter().map(own).collect()]).expect("as before")
    };
    assert_eq!(seen(counts(&[&[3, 4]], stacked, ending)), (4, 0, 0));
    assert_eq!(
        seen(counts(&[&[3, 4]], stacked, KvLayout::clone)),
        (0, 2, 0)
    );
}
