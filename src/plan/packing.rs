//! Which arriving sequence goes to which rank: packing under slots and blocks.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeSet, BinaryHeap};

use super::fill::water_fill;
use super::group::UNLIMITED;

/// A sequence that leaves its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Item {
    /// KV blocks.
    pub(super) size: u32,
    /// Position of its rank in the group.
    pub(super) source: u32,
    /// Its index on that rank.
    pub(super) index: u32,
}

/// Room for arrivals on one rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bin {
    /// Position of the rank in the group.
    pub(super) rank: u32,
    /// Sequences that it runs already.
    pub(super) active: u32,
    /// Sequences that it may still take.
    pub(super) slots: u32,
    /// KV blocks that it may still take.
    pub(super) free: u64,
}

impl Bin {
    /// Whether there is room for an item of `size` blocks.
    pub(super) fn takes(&self, size: u32) -> bool {
        self.slots > 0 && self.free >= u64::from(size)
    }

    /// Gives it that room.
    pub(super) fn take(&mut self, size: u32) {
        self.active += 1;
        self.slots -= 1;
        if self.free != UNLIMITED {
            self.free -= u64::from(size);
        }
    }
}

/// Most items and bins for which a packing is searched exhaustively, after the
/// quick ways have failed.
const SEARCHED: usize = 32;

/// A bin (index into `bins`) for every item, never its own rank, or `None` when no
/// way was found. `budget` bounds the exhaustive search and is used up by it.
///
/// `items` come in source order. The most blocks that one bin receives are kept
/// low; below `ceiling` (the most that one rank sends) lower does not help, so a
/// packing with few source-destination pairs is preferred there. Exact for items
/// of one size.
pub(super) fn pack(
    items: &[Item],
    bins: &[Bin],
    ceiling: u64,
    budget: &mut u32,
) -> Option<Vec<u32>> {
    let slots: u64 = bins.iter().map(|bin| u64::from(bin.slots)).sum();
    if slots < items.len() as u64 {
        return None;
    }
    let smallest = items.iter().map(|item| item.size).min().unwrap_or(0);
    let largest = items.iter().map(|item| item.size).max().unwrap_or(0);
    let equal = smallest == largest;
    let by_count = even(items, bins, if equal { smallest } else { 0 });
    if equal && by_count.is_none() {
        return None;
    }
    let by_count = by_count.filter(|to| {
        items
            .iter()
            .zip(to)
            .all(|(item, &bin)| item.source != bins[bin as usize].rank)
    });
    if equal && by_count.is_some() {
        return by_count;
    }
    let by_count = by_count.map(|to| (received(items, bins, &to), to));
    let by_count = by_count.filter(|(blocks, _)| fits(blocks, bins));
    if let Some((blocks, to)) = &by_count
        && blocks.iter().max() <= Some(&ceiling)
    {
        return Some(to.clone());
    }
    let order = descending(items);
    let by_blocks = least_loaded(items, &order, bins);
    match (by_count, by_blocks) {
        (Some((blocks, to)), Some(other)) => {
            let others = received(items, bins, &other);
            Some(if others.iter().max() < blocks.iter().max() {
                other
            } else {
                to
            })
        }
        (Some((_, to)), None) => Some(to),
        (None, Some(to)) => Some(to),
        (None, None) => {
            best_fit(items, &order, bins).or_else(|| searched(items, &order, bins, budget))
        }
    }
}

/// Positions of the items, the largest first, then by source and index.
fn descending(items: &[Item]) -> Vec<u32> {
    // All in one number, position last: sorting takes much of a plan's time.
    let key = |(i, item): (u32, &Item)| {
        let [size, source, index, i] = [!item.size, item.source, item.index, i].map(u128::from);
        size << 96 | source << 64 | index << 32 | i
    };
    let mut keys: Vec<u128> = (0..).zip(items).map(key).collect();
    keys.sort_unstable();
    keys.into_iter().map(|key| key as u32).collect()
}

/// Blocks that each bin receives.
fn received(items: &[Item], bins: &[Bin], to: &[u32]) -> Vec<u64> {
    let mut blocks = vec![0; bins.len()];
    for (item, &bin) in items.iter().zip(to) {
        blocks[bin as usize] += u64::from(item.size);
    }
    blocks
}

fn fits(blocks: &[u64], bins: &[Bin]) -> bool {
    blocks
        .iter()
        .zip(bins)
        .all(|(&blocks, bin)| blocks <= bin.free)
}

/// The same number of items for every bin as far as there is room for items of
/// `size`; what is left over goes where fewest run. Neighbours in source order
/// stay together, so that few pairs of ranks talk to each other.
fn even(items: &[Item], bins: &[Bin], size: u32) -> Option<Vec<u32>> {
    let room: Vec<u32> = bins
        .iter()
        .map(|bin| match bin.free.checked_div(size.into()) {
            Some(blocks) => u64::from(bin.slots).min(blocks) as u32,
            None => bin.slots,
        })
        .collect();
    let amount = items.len() as u64;
    if room.iter().map(|&room| u64::from(room)).sum::<u64>() < amount {
        return None;
    }
    let mut filled = water_fill(&vec![0; bins.len()], &room, amount);
    filled
        .tied
        .sort_by_key(|&bin| bins[bin].active + filled.added[bin]);
    for &bin in &filled.tied[..filled.extra as usize] {
        filled.added[bin] += 1;
    }
    let mut to = Vec::with_capacity(items.len());
    for (bin, &count) in filled.added.iter().enumerate() {
        to.extend(std::iter::repeat_n(bin as u32, count as usize));
    }
    Some(to)
}

/// Largest first, each to the bin that has received the fewest blocks.
///
/// Time: O(n log n). A bin that is too small for an item waits beside the heap until
/// items of its size come.
fn least_loaded(items: &[Item], order: &[u32], bins: &[Bin]) -> Option<Vec<u32>> {
    let mut left: Vec<(u32, u64)> = bins.iter().map(|bin| (bin.slots, bin.free)).collect();
    let mut heap: BinaryHeap<Reverse<(u64, u32, u32)>> = bins
        .iter()
        .enumerate()
        .filter(|(_, bin)| bin.slots > 0)
        .map(|(i, bin)| Reverse((0, bin.active, i as u32)))
        .collect();
    // By free blocks, with their entries of the heap.
    let mut too_small: BinaryHeap<(u64, (u64, u32, u32))> = BinaryHeap::new();
    let mut own = Vec::new();
    let mut to = vec![0; items.len()];
    for &i in order {
        let Item { size, source, .. } = items[i as usize];
        let size = u64::from(size);
        while let Some(entry) = too_small.peek().filter(|(free, _)| *free >= size) {
            heap.push(Reverse(entry.1));
            too_small.pop();
        }
        to[i as usize] = loop {
            let mut top = heap.peek_mut()?;
            let Reverse((blocks, active, bin)) = *top;
            let (slots, free) = &mut left[bin as usize];
            if *free < size {
                let Reverse(entry) = PeekMut::pop(top);
                too_small.push((*free, entry));
            } else if bins[bin as usize].rank == source {
                own.push(PeekMut::pop(top));
            } else {
                *slots -= 1;
                *free -= size;
                if *slots > 0 {
                    *top = Reverse((blocks + size, active + 1, bin));
                } else {
                    PeekMut::pop(top);
                }
                break bin;
            }
        };
        heap.extend(own.drain(..));
    }
    Some(to)
}

/// In `order`, each item to the bin with the fewest free blocks that takes it.
/// With `order` from large to small this is best-fit decreasing.
pub(super) fn best_fit(items: &[Item], order: &[u32], bins: &[Bin]) -> Option<Vec<u32>> {
    let mut slots: Vec<u32> = bins.iter().map(|bin| bin.slots).collect();
    let mut open: BTreeSet<(u64, u32)> = bins
        .iter()
        .enumerate()
        .filter(|(_, bin)| bin.slots > 0)
        .map(|(i, bin)| (bin.free, i as u32))
        .collect();
    let mut to = vec![0; items.len()];
    for &i in order {
        let Item { size, source, .. } = items[i as usize];
        let size = u64::from(size);
        let mut fitting = open.range((size, 0)..);
        let &(free, bin) = fitting.find(|&&(_, bin)| bins[bin as usize].rank != source)?;
        open.remove(&(free, bin));
        to[i as usize] = bin;
        slots[bin as usize] -= 1;
        if slots[bin as usize] > 0 {
            open.insert((free - size, bin));
        }
    }
    Some(to)
}

/// Depth-first search over a few items.
fn searched(items: &[Item], order: &[u32], bins: &[Bin], budget: &mut u32) -> Option<Vec<u32>> {
    if items.len() > SEARCHED || bins.len() > SEARCHED {
        return None;
    }
    let gives = |bin: &Bin| items.iter().any(|item| item.source == bin.rank);
    let mut search = Search {
        items: order.iter().map(|&i| items[i as usize]).collect(),
        left: bins.iter().map(|bin| (bin.free, bin.slots)).collect(),
        ranks: bins.iter().map(|bin| (bin.rank, gives(bin))).collect(),
        path: Vec::with_capacity(items.len()),
        budget,
    };
    if !search.descend() {
        return None;
    }
    let mut to = vec![0; items.len()];
    for (&i, &bin) in order.iter().zip(&search.path) {
        to[i as usize] = bin;
    }
    Some(to)
}

struct Search<'a> {
    items: Vec<Item>,
    /// Free blocks and slots of each bin.
    left: Vec<(u64, u32)>,
    /// Rank of each bin, and whether one of the items comes from it.
    ranks: Vec<(u32, bool)>,
    /// Bins of the items so far.
    path: Vec<u32>,
    budget: &'a mut u32,
}

impl Search<'_> {
    fn descend(&mut self) -> bool {
        let Some(&Item { size, source, .. }) = self.items.get(self.path.len()) else {
            return true;
        };
        let size = u64::from(size);
        for bin in 0..self.left.len() {
            let state = self.left[bin];
            let (rank, gives) = self.ranks[bin];
            if state.1 == 0 || state.0 < size || rank == source {
                continue;
            }
            // Bins in the same state are interchangeable unless they give.
            let same = |other: usize| self.left[other] == state && !self.ranks[other].1;
            if !gives && (0..bin).any(same) {
                continue;
            }
            if *self.budget == 0 {
                return false;
            }
            *self.budget -= 1;
            self.left[bin] = (state.0 - size, state.1 - 1);
            self.path.push(bin as u32);
            if self.descend() {
                return true;
            }
            self.path.pop();
            self.left[bin] = state;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(sizes: &[u32]) -> Vec<Item> {
        let item = |(index, &size): (usize, &u32)| Item {
            size,
            source: 9,
            index: index as u32,
        };
        sizes.iter().enumerate().map(item).collect()
    }

    fn bins(rooms: &[(u32, u64)]) -> Vec<Bin> {
        let bin = |(rank, &(slots, free)): (usize, &(u32, u64))| Bin {
            rank: rank as u32,
            active: 0,
            slots,
            free,
        };
        rooms.iter().enumerate().map(bin).collect()
    }

    #[test]
    fn a_tight_packing_is_found_by_search() {
        // Best fit puts 6 with 4 into the bin of 10 and leaves 5 5 3 for 7 and 6.
        let to = pack(
            &items(&[7, 6, 5, 5, 4, 3]),
            &bins(&[(3, 15), (3, 15)]),
            0,
            &mut 1000,
        )
        .unwrap();
        let blocks = received(&items(&[7, 6, 5, 5, 4, 3]), &bins(&[(3, 15), (3, 15)]), &to);
        assert_eq!(blocks, [15, 15]);
    }

    #[test]
    fn slots_and_blocks_are_limits() {
        assert!(pack(&items(&[1, 2]), &bins(&[(1, 9)]), 0, &mut 1000).is_none());
        assert!(pack(&items(&[4, 5]), &bins(&[(2, 8)]), 0, &mut 1000).is_none());
    }

    #[test]
    fn large_items_do_not_meet() {
        let to = pack(
            &items(&[9, 9, 1, 1]),
            &bins(&[(2, 99), (2, 99)]),
            10,
            &mut 1000,
        )
        .unwrap();
        assert_eq!(
            received(&items(&[9, 9, 1, 1]), &bins(&[(2, 99), (2, 99)]), &to),
            [10, 10]
        );
    }
}
