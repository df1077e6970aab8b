//! What is sent at once, and where it lies: in staging memory, or still in the cache.

use super::schedule::{Move, Piece};
use super::{BlockPart, Transfer};
use crate::device::Stream;

/// First byte, in the chunk, and length of an item.
pub(super) fn span(item: &[Piece]) -> (u64, u64) {
    let offset = item.first().map_or(0, |piece| piece.offset);
    (offset, item.iter().map(Piece::bytes).sum())
}

impl Transfer {
    /// Where an item lies in the cache, if it is sent from there or received there. Never for a
    /// move that has failed: its blocks may be none.
    pub(super) fn place(
        &self,
        item: &[Piece],
        moves: &[Move<'_>],
        failed: impl Fn(usize) -> bool,
        stream: &Stream,
    ) -> Option<*mut u8> {
        let [piece] = item else { return None };
        let part = BlockPart {
            cache: &self.layout.sub_caches()[piece.sub_cache],
            ids: &moves[piece.index].blocks[piece.blocks.clone()],
            range: piece.range.clone(),
        };
        let direct = !failed(piece.index) && self.copier.leaves_in_place(&part, stream);
        direct.then(|| {
            let block = u64::from(part.ids[0]) * part.cache.stride;
            let at = part.cache.base + block + part.range.start;
            std::ptr::with_exposed_provenance_mut(at as usize)
        })
    }
}
