//! Contract of a forced strategy in an exchange: it is really used at both ends wherever blocks
//! allow it, the report says so, and the bytes arrive as they were.

mod support;

use seqshift::device::Stream;
use seqshift::kv::{ExchangeReport, Move, Strategy, Transfer, TransferOptions};
use support::cache::Cache;
use support::fault::Faults;
use support::{Rank, deadline, group};

const BLOCK: u64 = 256 << 10;
/// Blocks of one sub-cache that are moved.
const RUN: [u32; 8] = [2, 3, 4, 5, 6, 7, 8, 9];
const SPACED: [u32; 8] = [11, 13, 15, 17, 19, 21, 23, 25];
const SCATTERED: [u32; 8] = [40, 38, 37, 35, 32, 31, 29, 27];

/// Rank 0 sends a run, evenly spaced blocks and scattered ones to the same blocks of rank 1.
fn exchange(rank: &Rank, strategy: Strategy) -> ExchangeReport {
    let stream = Stream::new(&rank.runtime).expect("a stream");
    let cache = Cache::new(&stream, rank.rank, 48, &[BLOCK], 0);
    let options = TransferOptions {
        staging_bytes: 8 << 20,
        chunk_bytes: 2 << 20,
        verify: true,
    };
    // SAFETY: the cache outlives the transfer.
    let mut transfer = unsafe { Transfer::new(&rank.runtime, cache.layout.clone(), 2, options) }
        .expect("there is room");
    transfer.set_strategy(Some(strategy));
    let all: [&[u32]; 3] = [&RUN, &SPACED, &SCATTERED];
    let peer = 1 - rank.rank;
    let moves = all.map(|blocks| Move { peer, blocks });
    let (out, into): (&[_], &[_]) = match rank.rank {
        0 => (&moves, &[]),
        _ => (&[], &moves),
    };
    let report = transfer.exchange(&rank.communicator, out, into, deadline());
    let outcomes = report.outbound.iter().chain(&report.inbound);
    let errors: Vec<_> = outcomes.filter_map(|one| one.error.as_deref()).collect();
    assert_eq!((report.broken.as_deref(), errors), (None, Vec::new()));
    let source = Cache::new(&stream, 0, 48, &[BLOCK], 0);
    let (sent, here) = (source.read(&stream), cache.read(&stream));
    for blocks in all {
        let same = source.blocks(&sent, blocks) == cache.blocks(&here, blocks);
        assert!(same, "{strategy}: {blocks:?}");
    }
    report
}

#[test]
fn each_strategy_is_used_where_it_is_forced() {
    let _faults = Faults::begin();
    let moved = 3 * 8 * BLOCK;
    for strategy in [
        Strategy::Copies,
        Strategy::Strided,
        Strategy::Kernels,
        Strategy::Direct,
    ] {
        for report in group(2, |rank| exchange(&rank, strategy)) {
            let (counts, direct) = (report.copies, report.direct);
            // Copies of runs, of rows, kernels, and bytes that were not staged.
            let seen = (counts.copies, counts.copies_2d, counts.kernels, direct);
            let expected = match strategy {
                // One for the run, one for each block that adjoins no other.
                Strategy::Copies => (1 + 8 + 8, 0, 0, 0),
                Strategy::Strided => (1 + 8, 1, 0, 0),
                Strategy::Kernels => (0, 0, 3, 0),
                // All but the run is staged, as the cost model says.
                Strategy::Direct => (0, 1, 1, 8 * BLOCK),
            };
            assert_eq!(seen, expected, "{strategy}: {report:?}");
            assert_eq!(counts.bytes + direct, moved, "{strategy}");
        }
    }
}
