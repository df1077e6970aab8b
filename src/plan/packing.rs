//! Which arriving sequence goes to which rank: packing under slots and blocks.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::fill::water_fill;

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

/// Most items for which a packing is searched exhaustively, and the most
/// positions that this search looks at: it only runs after the quick ways have
/// failed, so the limits bound the time of a hopeless case.
const SEARCHED_ITEMS: usize = 32;
const SEARCHED_NODES: u32 = 20_000;

/// A bin (index into `bins`) for every item, or `None` when no way was found.
///
/// `items` come in source order. The most blocks that one bin receives are kept
/// low; below `ceiling` (the most that one rank sends) lower does not help, so a
/// packing with few source-destination pairs is preferred there. Exact for items
/// of one size.
pub(super) fn pack(items: &[Item], bins: &[Bin], ceiling: u64) -> Option<Vec<u32>> {
    let slots: u64 = bins.iter().map(|bin| u64::from(bin.slots)).sum();
    if slots < items.len() as u64 {
        return None;
    }
    let smallest = items.iter().map(|item| item.size).min().unwrap_or(0);
    let largest = items.iter().map(|item| item.size).max().unwrap_or(0);
    if smallest == largest {
        return even(items, bins, smallest);
    }
    let by_count = even(items, bins, 0).map(|to| (received(items, bins, &to), to));
    let by_count = by_count.filter(|(blocks, _)| fits(blocks, bins));
    if let Some((blocks, to)) = &by_count
        && blocks.iter().max() <= Some(&ceiling)
    {
        return Some(to.clone());
    }
    let mut order: Vec<u32> = (0..items.len() as u32).collect();
    order.sort_unstable_by_key(|&i| {
        let item = &items[i as usize];
        (Reverse(item.size), item.source, item.index)
    });
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
        (None, None) => best_fit(items, &order, bins).or_else(|| searched(items, &order, bins)),
    }
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
fn least_loaded(items: &[Item], order: &[u32], bins: &[Bin]) -> Option<Vec<u32>> {
    let mut left: Vec<(u32, u64)> = bins.iter().map(|bin| (bin.slots, bin.free)).collect();
    let mut heap: BinaryHeap<Reverse<(u64, u32, u32)>> = bins
        .iter()
        .enumerate()
        .filter(|(_, bin)| bin.slots > 0)
        .map(|(i, bin)| Reverse((0, bin.active, i as u32)))
        .collect();
    let mut to = vec![0; items.len()];
    let mut passed = Vec::new();
    for &i in order {
        let size = u64::from(items[i as usize].size);
        let (blocks, active, bin) = loop {
            let Reverse(entry) = heap.pop()?;
            if left[entry.2 as usize].1 >= size {
                break entry;
            }
            passed.push(Reverse(entry));
        };
        heap.extend(passed.drain(..));
        to[i as usize] = bin;
        let (slots, free) = &mut left[bin as usize];
        *slots -= 1;
        *free -= size;
        if *slots > 0 {
            heap.push(Reverse((blocks + size, active + 1, bin)));
        }
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
        let size = u64::from(items[i as usize].size);
        let &(free, bin) = open.range((size, 0)..).next()?;
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
fn searched(items: &[Item], order: &[u32], bins: &[Bin]) -> Option<Vec<u32>> {
    if items.len() > SEARCHED_ITEMS {
        return None;
    }
    let sizes: Vec<u64> = order
        .iter()
        .map(|&i| items[i as usize].size.into())
        .collect();
    let mut left: Vec<(u64, u32)> = bins.iter().map(|bin| (bin.free, bin.slots)).collect();
    let mut path = Vec::with_capacity(items.len());
    let mut nodes = SEARCHED_NODES;
    if !descend(&sizes, &mut left, &mut path, &mut nodes) {
        return None;
    }
    let mut to = vec![0; items.len()];
    for (&i, &bin) in order.iter().zip(&path) {
        to[i as usize] = bin;
    }
    Some(to)
}

fn descend(sizes: &[u64], left: &mut [(u64, u32)], path: &mut Vec<u32>, nodes: &mut u32) -> bool {
    let Some(&size) = sizes.get(path.len()) else {
        return true;
    };
    for bin in 0..left.len() {
        let state = left[bin];
        // Bins in the same state are interchangeable.
        if state.1 == 0 || state.0 < size || left[..bin].contains(&state) {
            continue;
        }
        if *nodes == 0 {
            return false;
        }
        *nodes -= 1;
        left[bin] = (state.0 - size, state.1 - 1);
        path.push(bin as u32);
        if descend(sizes, left, path, nodes) {
            return true;
        }
        path.pop();
        left[bin] = state;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(sizes: &[u32]) -> Vec<Item> {
        let item = |(index, &size): (usize, &u32)| Item {
            size,
            source: 0,
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
        let to = pack(&items(&[7, 6, 5, 5, 4, 3]), &bins(&[(3, 15), (3, 15)]), 0).unwrap();
        let blocks = received(&items(&[7, 6, 5, 5, 4, 3]), &bins(&[(3, 15), (3, 15)]), &to);
        assert_eq!(blocks, [15, 15]);
    }

    #[test]
    fn slots_and_blocks_are_limits() {
        assert!(pack(&items(&[1, 2]), &bins(&[(1, 9)]), 0).is_none());
        assert!(pack(&items(&[4, 5]), &bins(&[(2, 8)]), 0).is_none());
    }

    #[test]
    fn large_items_do_not_meet() {
        let to = pack(&items(&[9, 9, 1, 1]), &bins(&[(2, 99), (2, 99)]), 10).unwrap();
        assert_eq!(
            received(&items(&[9, 9, 1, 1]), &bins(&[(2, 99), (2, 99)]), &to),
            [10, 10]
        );
    }
}
