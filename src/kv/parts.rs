//! What is copied at once: neighbouring pieces of a chunk whose blocks lie in one memory, be they
//! of several moves, or keys and values. The fewer copies and kernels, the less the host enqueues.

use super::schedule::{Move, Piece};
use super::{BlockPart, KvLayout, SubCache};

/// Some pieces as blocks of one stack of sub-caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    cache: &'a SubCache,
    ids: Vec<u32>,
    /// The pieces; they follow each other in the chunk.
    pub(super) pieces: &'a [&'a Piece],
}

impl<'a> Part<'a> {
    fn new(layout: &'a KvLayout, pieces: &'a [&'a Piece], moves: &[Move<'_>]) -> Self {
        let (mut stack, mut ids) = (0, Vec::new());
        for piece in pieces {
            let (at, first) = layout.place(piece.sub_cache);
            stack = at;
            let blocks = &moves[piece.index].blocks[piece.blocks.clone()];
            ids.extend(blocks.iter().map(|id| first + id));
        }
        Self {
            cache: &layout.stacks()[stack],
            ids,
            pieces,
        }
    }

    pub(super) fn blocks(&self) -> BlockPart<'_> {
        BlockPart {
            cache: self.cache,
            ids: &self.ids,
            range: self.pieces[0].range.clone(),
        }
    }

    /// First byte, in the chunk.
    pub(super) fn offset(&self) -> u64 {
        self.pieces[0].offset
    }

    /// Each piece by itself.
    pub(super) fn apart(
        &self,
        layout: &'a KvLayout,
        moves: &[Move<'_>],
    ) -> impl Iterator<Item = Part<'a>> {
        let pieces = self.pieces;
        pieces
            .chunks(1)
            .map(move |one| Part::new(layout, one, moves))
    }
}

/// The parts that these pieces of a chunk make, in their order.
pub(super) fn parts<'a>(
    layout: &'a KvLayout,
    pieces: &'a [&'a Piece],
    moves: &[Move<'_>],
) -> impl Iterator<Item = Part<'a>> {
    let together = |a: &&Piece, b: &&Piece| {
        let stack = |piece: &Piece| layout.place(piece.sub_cache).0;
        stack(a) == stack(b) && a.range == b.range && a.offset + a.bytes() == b.offset
    };
    pieces
        .chunk_by(together)
        .map(move |some| Part::new(layout, some, moves))
}
