//! Which bytes travel in which round. Both ends of a move derive the same from what they both know:
//! the layout, the number of ranks, the staging memory and the number of blocks of each move.
//!
//! The moves from one rank to another form one stream of bytes: sub-cache after sub-cache in
//! canonical order, in each move after move, in each block after block; so blocks that lie near each
//! other in a cache are neighbours, whichever move they belong to. The stream is cut into chunks of
//! one fixed size. Peers are taken in groups by their distance, `(to - from) mod ranks`; within a
//! group, round `k` carries the `k`-th chunk of every pair that has one. All ranks go through
//! groups and rounds in the same order, so a rank that waits for a peer waits for one that is
//! behind, and the rank furthest behind waits for nobody: no deadlock, whatever moves each rank
//! knows of.

use std::ops::Range;

use super::cost::DIRECT_BYTES;
use super::{Direction, KvLayout};

/// Copies start at multiples of this where the layout allows it.
const ALIGNMENT: u64 = 512;
/// At most so many peers at once per direction; more would make chunks small.
const MAX_LANES: u32 = 4;

/// The KV of one move, seen from this rank. The moves between two ranks are in the same order, and
/// have the same numbers of blocks, at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move<'a> {
    /// The other end.
    pub peer: u32,
    /// Blocks here, in token order.
    pub blocks: &'a [u32],
}

/// The cut that all ranks use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Peers at once, per direction.
    pub lanes: u32,
    /// Bytes of a chunk.
    pub chunk: u64,
}

impl Cut {
    /// Two chunks per lane and direction fit into `staging` bytes; none is larger than `largest`.
    /// `None` if staging memory is too small for any.
    pub fn new(ranks: u32, staging: u64, largest: u64) -> Option<Self> {
        let lanes = ranks.saturating_sub(1).clamp(1, MAX_LANES);
        let chunk = (staging / 2 / u64::from(lanes)).min(largest) / ALIGNMENT * ALIGNMENT;
        (chunk > 0).then_some(Self { lanes, chunk })
    }

    /// The same for one peer at a time.
    pub fn one_lane(self) -> Self {
        Self { lanes: 1, ..self }
    }

    /// Bytes of staging memory per direction.
    pub fn staging(&self) -> u64 {
        2 * u64::from(self.lanes) * self.chunk
    }

    /// Bytes of one of its two halves.
    pub fn half(&self) -> u64 {
        u64::from(self.lanes) * self.chunk
    }
}

/// One chunk of the bytes between this rank and a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The other end.
    pub peer: u32,
    /// Which lane of the staging memory it uses.
    pub lane: u32,
    /// Bytes.
    pub length: u64,
    /// What it consists of, without gaps.
    pub pieces: Vec<Piece>,
}

impl Chunk {
    /// What is sent at once: the pieces, large ones by themselves. Both ends derive the same, since
    /// they have the same pieces; only so may each of them leave a large piece where it lies.
    pub fn items(&self) -> impl Iterator<Item = &[Piece]> {
        self.pieces
            .chunk_by(|a, b| a.bytes() < DIRECT_BYTES && b.bytes() < DIRECT_BYTES)
    }
}

/// A part of a chunk that is one part of some blocks of one sub-cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of the move, among those of its direction.
    pub index: usize,
    /// Index of the sub-cache, in canonical order.
    pub sub_cache: usize,
    /// Which of the move's blocks, by position.
    pub blocks: Range<usize>,
    /// Which bytes of each block.
    pub range: Range<u64>,
    /// First byte, in the chunk.
    pub offset: u64,
}

impl Piece {
    /// Bytes.
    pub fn bytes(&self) -> u64 {
        (self.range.end - self.range.start) * self.blocks.len() as u64
    }
}

/// All chunks that this rank sends and receives at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// To peers.
    pub sends: Vec<Chunk>,
    /// From peers.
    pub receives: Vec<Chunk>,
}

impl Round {
    /// Those of one direction.
    pub(super) fn chunks(&self, direction: Direction) -> &[Chunk] {
        match direction {
            Direction::Gather => &self.sends,
            Direction::Scatter => &self.receives,
        }
    }
}

/// The rounds of one rank, in the order that all ranks follow.
pub fn rounds(
    layout: &KvLayout,
    cut: Cut,
    ranks: u32,
    rank: u32,
    outbound: &[Move<'_>],
    inbound: &[Move<'_>],
) -> Vec<Round> {
    let lanes = cut.lanes as usize;
    let distances: Vec<u32> = (1..ranks).collect();
    let mut all = Vec::new();
    for group in distances.chunks(lanes) {
        let mut rounds: Vec<Round> = Vec::new();
        for (lane, distance) in (0_u32..).zip(group) {
            let to = (u64::from(rank) + u64::from(*distance)) % u64::from(ranks);
            let from = (u64::from(rank) + u64::from(ranks - distance)) % u64::from(ranks);
            let sends = chunks(layout, cut.chunk, to as u32, lane, outbound);
            let receives = chunks(layout, cut.chunk, from as u32, lane, inbound);
            let longest = sends.len().max(receives.len()).max(rounds.len());
            rounds.resize_with(longest, Round::default);
            for (round, chunk) in rounds.iter_mut().zip(sends) {
                round.sends.push(chunk);
            }
            for (round, chunk) in rounds.iter_mut().zip(receives) {
                round.receives.push(chunk);
            }
        }
        all.append(&mut rounds);
    }
    all
}

/// The chunks of one pair and direction.
fn chunks(layout: &KvLayout, size: u64, peer: u32, lane: u32, moves: &[Move<'_>]) -> Vec<Chunk> {
    let mut cutter = Cutter {
        size,
        peer,
        lane,
        chunks: Vec::new(),
    };
    for (sub_cache, cache) in layout.sub_caches().iter().enumerate() {
        for (index, one) in moves.iter().enumerate().filter(|(_, one)| one.peer == peer) {
            cutter.add(index, sub_cache, one.blocks.len(), cache.length);
        }
    }
    cutter.chunks
}

struct Cutter {
    size: u64,
    peer: u32,
    lane: u32,
    chunks: Vec<Chunk>,
}

impl Cutter {
    /// Adds all blocks of one move in one sub-cache.
    fn add(&mut self, index: usize, sub_cache: usize, blocks: usize, length: u64) {
        let mut block = 0;
        let mut begin = 0;
        while block < blocks {
            let space = self.space();
            let whole = usize::try_from(space / length)
                .unwrap_or(usize::MAX)
                .min(blocks - block);
            let (taken, range) = if begin == 0 && whole > 0 {
                (whole, 0..length)
            } else {
                (1, begin..length.min(begin + space))
            };
            let end = range.end;
            self.push(Piece {
                index,
                sub_cache,
                blocks: block..block + taken,
                range,
                offset: self.size - space,
            });
            if end == length {
                block += taken;
                begin = 0;
            } else {
                begin = end;
            }
        }
    }

    /// Bytes left in the last chunk, after making a new one if there are none.
    fn space(&mut self) -> u64 {
        match self.chunks.last() {
            Some(chunk) if chunk.length < self.size => self.size - chunk.length,
            _ => {
                let (peer, lane) = (self.peer, self.lane);
                self.chunks.push(Chunk {
                    peer,
                    lane,
                    length: 0,
                    pieces: Vec::new(),
                });
                self.size
            }
        }
    }

    fn push(&mut self, piece: Piece) {
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.length += piece.bytes();
            chunk.pieces.push(piece);
        }
    }
}
