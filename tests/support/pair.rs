//! Two ranks and the same exchange between them, again and again.

use std::time::Instant;

use seqshift::device::Stream;
use seqshift::kv::{ExchangeReport, Move, Strategy, Transfer, TransferOptions};

use super::cache::Cache;
use super::{Rank, deadline};

/// Rank 0 sends two moves to rank 1: its blocks 0 to 3 to 8 to 11, and 4 to 7 to 12 to 15. Both
/// together are one gather and one scatter.
pub struct Pair {
    pub length: u64,
    pub cache: Cache,
    pub stream: Stream,
    pub transfer: Transfer,
}

impl Pair {
    pub fn new(rank: &Rank, verify: bool) -> Self {
        let options = TransferOptions::new(&rank.runtime, 1 << 20, verify);
        Self::with(rank, options, 1024)
    }

    /// Each move is one run of 1 MiB, which is sent from the cache and received into it.
    pub fn direct(rank: &Rank) -> Self {
        let options = TransferOptions::new(&rank.runtime, 4 << 20, true);
        let mut pair = Self::with(rank, options, 256 << 10);
        pair.transfer.set_strategy(Some(Strategy::Direct));
        pair
    }

    /// Each move is a round of its own.
    pub fn in_rounds(rank: &Rank, verify: bool) -> Self {
        let options = TransferOptions {
            chunk_bytes: 4 * 1024,
            ..TransferOptions::new(&rank.runtime, 1 << 20, verify)
        };
        Self::with(rank, options, 1024)
    }

    pub fn with(rank: &Rank, options: TransferOptions, length: u64) -> Self {
        let stream = Stream::new(&rank.runtime).expect("a stream");
        let cache = Cache::new(&stream, rank.rank, 16, &[length], 0);
        let layout = cache.layout.clone();
        // SAFETY: the cache is dropped after the transfer, with `self`, when no exchange runs.
        let transfer = unsafe { Transfer::new(&rank.runtime, layout, rank.ranks, options) }
            .expect("there is room");
        Self {
            length,
            cache,
            stream,
            transfer,
        }
    }

    pub fn exchange(&mut self, rank: &Rank, until: Instant) -> ExchangeReport {
        let both: [&[u32]; 2] = match rank.rank {
            0 => [&[0, 1, 2, 3], &[4, 5, 6, 7]],
            _ => [&[8, 9, 10, 11], &[12, 13, 14, 15]],
        };
        let moves = both.map(|blocks| Move {
            peer: 1 - rank.rank,
            blocks,
        });
        let (outbound, inbound): (&[_], &[_]) = if rank.rank == 0 {
            (&moves, &[])
        } else {
            (&[], &moves)
        };
        self.transfer
            .exchange(&rank.communicator, outbound, inbound, until)
    }

    /// Which of the two moves' blocks are here as they were at rank 0.
    pub fn arrived(&self) -> [bool; 2] {
        let source = Cache::new(&self.stream, 0, 16, &[self.length], 0);
        let (sent, got) = (source.read(&self.stream), self.cache.read(&self.stream));
        [0, 1].map(|index| {
            let ids = |first: u32| (first..first + 4).collect::<Vec<_>>();
            source.blocks(&sent, &ids(4 * index)) == self.cache.blocks(&got, &ids(8 + 4 * index))
        })
    }
}

pub fn errors(report: &ExchangeReport) -> Vec<Option<&str>> {
    let all = report.outbound.iter().chain(&report.inbound);
    all.map(|outcome| outcome.error.as_deref()).collect()
}

/// After any local failure: the communicator and the transfer serve for the next exchange.
pub fn all_is_well(rank: &Rank, pair: &mut Pair) {
    // Rules count the calls of both ranks: none begins while the other's last exchange runs.
    rank.barrier.wait();
    let report = pair.exchange(rank, deadline());
    assert_eq!(
        (report.broken.as_deref(), errors(&report)),
        (None, vec![None, None])
    );
    if rank.rank == 1 {
        assert_eq!(pair.arrived(), [true, true]);
    }
}
