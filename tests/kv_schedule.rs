//! Contract of the cut into chunks and rounds: both ends of a pair derive the same chunks from the
//! numbers of blocks; each byte of each move travels exactly once; no round needs more staging
//! memory than there is; and ranks that go through their rounds in order never wait for each other
//! in a circle, whatever moves there are.

use proptest::prelude::*;
use seqshift::kv::schedule::{Chunk, Cut, Round, rounds};
use seqshift::kv::{DType, Format, KvLayout, Move, SubCache};

fn layout(lengths: &[Vec<u64>]) -> KvLayout {
    let cache = |length: &u64| SubCache {
        base: 0x1000,
        extent: 1 << 40,
        blocks: 1000,
        stride: *length,
        length: *length,
        dtype: DType::UInt8,
        format: Format::Nd,
    };
    let layers = lengths
        .iter()
        .map(|layer| layer.iter().map(cache).collect())
        .collect();
    KvLayout::new(layers).expect("the layout is possible")
}

/// (from, to, number of blocks); in the same order at both ends.
type Plan = Vec<(u32, u32, usize)>;

fn of_rank(layout: &KvLayout, cut: Cut, ranks: u32, rank: u32, plan: &Plan) -> Vec<Round> {
    let blocks: Vec<Vec<u32>> = plan.iter().map(|(_, _, count)| vec![7; *count]).collect();
    let side = |outbound: bool| -> Vec<Move<'_>> {
        plan.iter()
            .zip(&blocks)
            .filter(|((from, to, _), _)| if outbound { *from == rank } else { *to == rank })
            .map(|((from, to, _), blocks)| Move {
                peer: if outbound { *to } else { *from },
                blocks,
            })
            .collect()
    };
    rounds(layout, cut, ranks, rank, &side(true), &side(false))
}

fn chunks<'a>(
    rounds: &'a [Round],
    peer: u32,
    of: impl Fn(&'a Round) -> &'a [Chunk] + 'a,
) -> impl Iterator<Item = &'a Chunk> {
    rounds
        .iter()
        .flat_map(of)
        .filter(move |chunk| chunk.peer == peer)
}

fn plans() -> impl Strategy<Value = (u32, Plan)> {
    (2_u32..9).prop_flat_map(|ranks| {
        let one = (0..ranks, 0..ranks, 0_usize..40)
            .prop_filter("not to oneself", |(from, to, _)| from != to);
        (Just(ranks), proptest::collection::vec(one, 0..25))
    })
}

fn lengths() -> impl Strategy<Value = Vec<Vec<u64>>> {
    proptest::collection::vec(proptest::collection::vec(1_u64..2000, 0..4), 0..5)
}

proptest! {
    #[test]
    fn both_ends_agree_and_nothing_is_lost(
        (ranks, plan) in plans(), lengths in lengths(), staging in 8192_u64..100_000,
        largest in 512_u64..5000,
    ) {
        let layout = layout(&lengths);
        let cut = Cut::new(ranks, staging, largest).expect("there is room for a chunk");
        prop_assert!(cut.staging() <= staging && cut.chunk <= largest);
        let all: Vec<_> =
            (0..ranks).map(|rank| of_rank(&layout, cut, ranks, rank, &plan)).collect();
        for from in 0..ranks {
            for to in (0..ranks).filter(|to| *to != from) {
                let sent: Vec<_> = chunks(&all[from as usize], to, |round| &round.sends).collect();
                let got: Vec<_> =
                    chunks(&all[to as usize], from, |round| &round.receives).collect();
                prop_assert_eq!(sent.len(), got.len());
                for (sent, got) in sent.iter().zip(&got) {
                    prop_assert_eq!(sent.length, got.length);
                    prop_assert!(sent.length > 0);
                    let mut end = 0;
                    prop_assert_eq!(sent.pieces.len(), got.pieces.len());
                    for (ours, theirs) in sent.pieces.iter().zip(&got.pieces) {
                        prop_assert_eq!(ours.offset, end);
                        prop_assert_eq!(
                            (ours.sub_cache, &ours.blocks, &ours.range, ours.offset),
                            (theirs.sub_cache, &theirs.blocks, &theirs.range, theirs.offset)
                        );
                        end += ours.bytes();
                    }
                    prop_assert_eq!(end, sent.length);
                }
                let blocks: usize = plan
                    .iter()
                    .filter(|(a, b, _)| (*a, *b) == (from, to))
                    .map(|(_, _, count)| count)
                    .sum();
                let bytes: u64 = sent.iter().map(|chunk| chunk.length).sum();
                prop_assert_eq!(bytes, blocks as u64 * layout.block_bytes());
                // Full chunks but for the last.
                prop_assert!(sent.iter().rev().skip(1).all(|chunk| chunk.length == cut.chunk));
            }
        }
    }

    /// The pieces of one move are its bytes in canonical order: sub-cache, block, byte.
    #[test]
    fn pieces_are_in_canonical_order(
        blocks in 1_usize..40, lengths in lengths(), largest in 512_u64..5000,
    ) {
        let layout = layout(&lengths);
        let cut = Cut::new(2, 1 << 20, largest).expect("there is room for a chunk");
        let mut at = (0, 0, 0);
        for round in of_rank(&layout, cut, 2, 0, &vec![(0, 1, blocks)]) {
            for piece in &round.sends[0].pieces {
                let length = layout.sub_caches()[piece.sub_cache].length;
                prop_assert_eq!((piece.sub_cache, piece.blocks.start, piece.range.start), at);
                prop_assert!(piece.range.end <= length);
                at = match (piece.range.end == length, piece.blocks.end == blocks) {
                    (false, _) => (piece.sub_cache, piece.blocks.start, piece.range.end),
                    (true, false) => (piece.sub_cache, piece.blocks.end, 0),
                    (true, true) => (piece.sub_cache + 1, 0, 0),
                };
            }
        }
        prop_assert_eq!(at, (layout.sub_caches().len(), 0, 0));
    }

    #[test]
    fn no_round_exceeds_the_lanes(
        (ranks, plan) in plans(), lengths in lengths(),
    ) {
        let layout = layout(&lengths);
        let cut = Cut::new(ranks, 16_384, 4096).expect("there is room for a chunk");
        for rank in 0..ranks {
            for round in of_rank(&layout, cut, ranks, rank, &plan) {
                for side in [&round.sends, &round.receives] {
                    let mut lanes: Vec<_> = side.iter().map(|chunk| chunk.lane).collect();
                    lanes.sort_unstable();
                    lanes.dedup();
                    prop_assert_eq!(lanes.len(), side.len(), "a lane is used twice");
                    prop_assert!(lanes.iter().all(|lane| *lane < cut.lanes));
                }
                prop_assert!(!round.sends.is_empty() || !round.receives.is_empty());
            }
        }
    }

    /// A round ends when all its sends and receives have met the peer's current round. Run all
    /// ranks until nothing moves: all must have come to their end.
    #[test]
    fn ranks_never_wait_in_a_circle((ranks, plan) in plans(), lengths in lengths()) {
        let layout = layout(&lengths);
        let cut = Cut::new(ranks, 16_384, 1024).expect("there is room for a chunk");
        let all: Vec<_> =
            (0..ranks).map(|rank| of_rank(&layout, cut, ranks, rank, &plan)).collect();
        // Chunks that each rank's finished rounds and its current one have offered to a peer.
        let mut current = vec![0_usize; ranks as usize];
        let offered = |current: &[usize], rank: u32, peer: u32, sends: bool| {
            let rank = rank as usize;
            let upto = (current[rank] + 1).min(all[rank].len());
            chunks(&all[rank][..upto], peer, move |round| {
                if sends { &round.sends } else { &round.receives }
            })
            .count()
        };
        loop {
            let ready: Vec<u32> = (0..ranks)
                .filter(|rank| {
                    let Some(round) = all[*rank as usize].get(current[*rank as usize]) else {
                        return false;
                    };
                    let met = |chunk: &Chunk, sends: bool| {
                        offered(&current, chunk.peer, *rank, !sends)
                            >= offered(&current, *rank, chunk.peer, sends)
                    };
                    round.sends.iter().all(|chunk| met(chunk, true))
                        && round.receives.iter().all(|chunk| met(chunk, false))
                })
                .collect();
            if ready.is_empty() {
                break;
            }
            for rank in ready {
                current[rank as usize] += 1;
            }
        }
        for (rank, done) in current.iter().enumerate() {
            prop_assert_eq!(*done, all[rank].len(), "rank {} is stuck", rank);
        }
    }
}

#[test]
fn staging_that_holds_no_chunk_is_refused() {
    assert_eq!(Cut::new(2, 1023, 1 << 20), None);
    assert_eq!(
        Cut::new(2, 1024, 1 << 20),
        Some(Cut {
            lanes: 1,
            chunk: 512
        })
    );
    assert_eq!(
        Cut::new(128, 64 << 20, 1 << 30),
        Some(Cut {
            lanes: 4,
            chunk: 8 << 20
        })
    );
}
