//! First objective: waiting requests go to ranks with room.
//!
//! A waiting request has no KV yet; it needs a slot and the blocks of its prompt.
//! As many as possible get a place (at home or elsewhere), and the levels, that
//! is running + waiting per rank, get the lowest maximum and sum of squares.
//!
//! A rank serves its own requests first: they are before all arrivals in its queue. So
//! the room for arrivals, in slots and blocks, is what all that wait there leave, and a
//! rank that cannot serve its own queue receives nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::fill::water_fill;
use super::group::{Group, UNLIMITED};
use super::packing::{Bin, Item, best_fit};

/// In place of a rank: none has room.
const NOWHERE: u32 = u32::MAX;

/// Most tries to find the ranks that cannot serve their own queue, a bound on the time.
const CLOSINGS: usize = 3;

/// Where the waiting requests run.
pub(super) struct Placement {
    /// Waiting requests that run on each rank, wherever they come from.
    pub(super) served: Vec<u32>,
    /// Waiting requests that stay waiting at home.
    pub(super) unserved: Vec<u32>,
    /// KV blocks of each rank that are left for moved sequences.
    pub(super) free: Vec<u64>,
    /// Ranks of which `extra` serve one more request; which ones is open.
    pub(super) tied: Vec<usize>,
    /// See `tied`.
    pub(super) extra: u32,
    /// Blocks of a request that is open in this sense.
    pub(super) size: u64,
    /// Who goes where, when the requests differ in size.
    flows: Option<Vec<Flow>>,
}

/// Waiting requests that change their rank.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flow {
    /// Positions of the two ranks in the group.
    pub(super) from: usize,
    pub(super) to: usize,
    /// Positions in the source's queue.
    pub(super) queue: Vec<u32>,
}

/// Requests that each rank can serve by itself, the smallest first.
pub(super) fn at_home(group: &Group) -> Vec<u32> {
    let served = |rank: usize| {
        let room = group.waiting[rank].min(slots(group, rank));
        match (&group.requests[rank], group.free[rank]) {
            (_, UNLIMITED) => room,
            (None, free) => u64::from(room).min(free) as u32,
            (Some(blocks), free) if sum(blocks) <= free => room,
            (Some(blocks), mut free) => {
                let mut blocks = blocks.to_vec();
                blocks.sort_unstable();
                let fit = blocks[..room as usize].iter().take_while(|&&blocks| {
                    let fits = free >= u64::from(blocks);
                    free = free.saturating_sub(blocks.into());
                    fits
                });
                fit.count() as u32
            }
        }
    };
    (0..group.len()).map(served).collect()
}

pub(super) fn sum(counts: &[u32]) -> u64 {
    counts.iter().map(|&count| u64::from(count)).sum()
}

/// The best placement of the waiting requests; the running sequences stay.
pub(super) fn place(group: &Group) -> Placement {
    match common_size(group) {
        Some(size) => place_equal(group, size),
        None => place_unequal(group),
    }
}

fn slots(group: &Group, rank: usize) -> u32 {
    group.slots[rank].saturating_sub(group.running[rank])
}

/// The size of all waiting requests, if they have one.
fn common_size(group: &Group) -> Option<u64> {
    let mut common = None;
    for rank in (0..group.len()).filter(|&rank| group.waiting[rank] > 0) {
        let blocks = group.requests[rank].as_deref().unwrap_or(&[1]);
        let first = *common.get_or_insert(blocks[0]);
        if blocks.iter().any(|&size| size != first) {
            return None;
        }
    }
    Some(common.unwrap_or(1).into())
}

fn place_equal(group: &Group, size: u64) -> Placement {
    let total = sum(&group.waiting);
    let most = u32::try_from(total).unwrap_or(u32::MAX);
    let room: Vec<u32> = (0..group.len())
        .map(|rank| {
            let slots = slots(group, rank).min(most);
            let blocks = group.free[rank].checked_div(size).unwrap_or(UNLIMITED);
            u64::from(slots).min(blocks) as u32
        })
        .collect();
    let rooms = sum(&room);
    let mut placement = if total <= rooms {
        let filled = water_fill(&group.running, &room, total);
        Placement {
            served: filled.added,
            unserved: vec![0; group.len()],
            free: Vec::new(),
            tied: filled.tied,
            extra: filled.extra,
            size,
            flows: None,
        }
    } else {
        // Every place is taken. Those for whom there is no room at home stay waiting where
        // levels are low, and none elsewhere: others would have arrived before them.
        let beyond: Vec<u32> = group
            .waiting
            .iter()
            .zip(&room)
            .map(|(&waiting, &room)| waiting.saturating_sub(room))
            .collect();
        let base: Vec<u32> = group
            .running
            .iter()
            .zip(&room)
            .map(|(&a, &b)| a + b)
            .collect();
        let mut filled = water_fill(&base, &beyond, total - rooms);
        for &rank in &filled.tied[..filled.extra as usize] {
            filled.added[rank] += 1;
        }
        Placement {
            served: room,
            unserved: filled.added,
            free: Vec::new(),
            tied: Vec::new(),
            extra: 0,
            size,
            flows: None,
        }
    };
    placement.free = (0..group.len())
        .map(|rank| match group.free[rank] {
            UNLIMITED => UNLIMITED,
            free => free - u64::from(placement.served[rank]) * size,
        })
        .collect();
    placement
}

/// Requests of different sizes: the smallest first, each to the lowest level
/// with room; when that leaves some without a place, a tighter packing is tried, and
/// then what lets no request overtake one of the rank that it goes to.
fn place_unequal(group: &Group) -> Placement {
    let mut items: Vec<Item> = Vec::new();
    for (source, &waiting) in group.waiting.iter().enumerate() {
        let sizes = group.requests[source].as_deref();
        items.extend((0..waiting).map(|index| Item {
            size: sizes.map_or(1, |sizes| sizes[index as usize]),
            source: source as u32,
            index,
        }));
    }
    items.sort_unstable_by_key(|item| (item.size, item.source, item.index));
    let bins: Vec<Bin> = (0..group.len())
        .map(|rank| Bin {
            rank: rank as u32,
            active: group.running[rank],
            slots: slots(group, rank),
            free: group.free[rank],
        })
        .collect();
    let to = smallest(&items, &bins);
    let placed = &items[..to.len()];
    let to = prefer_home(placed, &bins, &to).unwrap_or(to);
    let home = at_home(group);
    let closed = overtaken(group, placed, &to);
    if to.len() as u64 >= sum(&home) && !closed.contains(&true) {
        return summarise(group, placed, &to);
    }
    let (placed, to) = behind_own(group, &items, &bins, &home, closed);
    summarise(group, &placed, &to)
}

/// Places for as many of the smallest items, which come in ascending order, as are found.
fn smallest(items: &[Item], bins: &[Bin]) -> Vec<u32> {
    let mut to = by_level(items, bins, &vec![false; bins.len()]);
    to.truncate(to.partition_point(|&bin| bin != NOWHERE));
    if to.len() < items.len()
        && let Some(more) = by_fit(items, to.len(), bins)
    {
        return more;
    }
    to
}

/// Ranks to which others' requests go although one of their own has no place.
fn overtaken(group: &Group, items: &[Item], to: &[u32]) -> Vec<bool> {
    let mut unserved = group.waiting.clone();
    let mut receives = vec![false; group.len()];
    for (item, &bin) in items.iter().zip(to) {
        unserved[item.source as usize] -= 1;
        receives[bin as usize] |= item.source != bin;
    }
    let both = receives.iter().zip(&unserved);
    both.map(|(&receives, &unserved)| receives && unserved > 0)
        .collect()
}

/// The items that find a place, and it, where no rank receives any that cannot serve all
/// of its own. The ranks `closed` receive none, nor do those that turn out to be so too.
/// That keeps the levels even; if more requests find a place when all that have one at
/// home stay there, they do.
fn behind_own(
    group: &Group,
    items: &[Item],
    bins: &[Bin],
    home: &[u32],
    mut closed: Vec<bool>,
) -> (Vec<Item>, Vec<u32>) {
    let stay = own_first(group, items, bins, home);
    for _ in 0..CLOSINGS {
        let (placed, to): (Vec<Item>, Vec<u32>) = items
            .iter()
            .copied()
            .zip(by_level(items, bins, &closed))
            .filter(|&(_, bin)| bin != NOWHERE)
            .unzip();
        let more = overtaken(group, &placed, &to);
        if !more.contains(&true) {
            if placed.len() < stay.0.len() {
                break;
            }
            let to = prefer_home(&placed, bins, &to).unwrap_or(to);
            return (placed, to);
        }
        for (closed, more) in closed.iter_mut().zip(more) {
            *closed |= more;
        }
    }
    stay
}

/// [`behind_own`] with all requests at home that have room there.
fn own_first(group: &Group, items: &[Item], bins: &[Bin], home: &[u32]) -> (Vec<Item>, Vec<u32>) {
    let mut stays = home.to_vec();
    let mut bins = bins.to_vec();
    let (mut placed, rest): (Vec<Item>, Vec<Item>) = items.iter().copied().partition(|item| {
        let left = &mut stays[item.source as usize];
        let stay = *left > 0;
        if stay {
            *left -= 1;
            bins[item.source as usize].take(item.size);
        }
        stay
    });
    let mut to: Vec<u32> = placed.iter().map(|item| item.source).collect();
    for (rank, bin) in bins.iter_mut().enumerate() {
        if home[rank] < group.waiting[rank] {
            bin.slots = 0;
        }
    }
    to.extend(smallest(&rest, &bins));
    placed.extend(&rest[..to.len() - placed.len()]);
    (placed, to)
}

/// Ascending items, each to the lowest level with room; [`NOWHERE`] for those without. The
/// ranks that are `closed` take only items of their own.
fn by_level(items: &[Item], bins: &[Bin], closed: &[bool]) -> Vec<u32> {
    let mut bins = bins.to_vec();
    let mut heap: BinaryHeap<Reverse<(u32, u32)>> = bins
        .iter()
        .filter(|bin| !closed[bin.rank as usize])
        .map(|bin| Reverse((bin.active, bin.rank)))
        .collect();
    let mut to = vec![NOWHERE; items.len()];
    for (item, to) in items.iter().zip(&mut to) {
        let home = &bins[item.source as usize];
        let home = (closed[item.source as usize] && home.takes(item.size))
            .then_some((home.active, home.rank));
        let found = loop {
            let Some(mut top) = heap.peek_mut() else {
                break home;
            };
            let Reverse(lowest) = *top;
            // Items only get larger: a bin that is too small now stays so.
            if !bins[lowest.1 as usize].takes(item.size) {
                PeekMut::pop(top);
            } else if home.is_some_and(|home| home < lowest) {
                break home;
            } else {
                *top = Reverse((lowest.0 + 1, lowest.1));
                break Some(lowest);
            }
        };
        if let Some((_, bin)) = found {
            bins[bin as usize].take(item.size);
            *to = bin;
        }
    }
    to
}

/// A packing of more than `count` of the smallest items, as many as best fit
/// decreasing finds by bisection.
fn by_fit(items: &[Item], count: usize, bins: &[Bin]) -> Option<Vec<u32>> {
    // A request may stay at home, which best fit does not allow to what moves.
    let anywhere = |item: &Item| Item {
        source: u32::MAX,
        ..*item
    };
    let items: Vec<Item> = items.iter().map(anywhere).collect();
    let (mut low, mut high) = (count, items.len());
    let mut best = None;
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        let order: Vec<u32> = (0..middle as u32).rev().collect();
        match best_fit(&items[..middle], &order, bins) {
            Some(to) => {
                best = Some(to);
                low = middle;
            }
            None => high = middle - 1,
        }
    }
    best
}

/// The same number of requests per rank, with as many as possible at home;
/// `None` when the blocks do not allow it that way.
fn prefer_home(items: &[Item], bins: &[Bin], to: &[u32]) -> Option<Vec<u32>> {
    let mut open = bins.to_vec();
    for bin in &mut open {
        bin.slots = 0;
    }
    for &bin in to {
        open[bin as usize].slots += 1;
    }
    let mut home = vec![None; items.len()];
    for (item, home) in items.iter().zip(&mut home) {
        let bin = &mut open[item.source as usize];
        if bin.takes(item.size) {
            bin.take(item.size);
            *home = Some(item.source);
        }
    }
    let away: Vec<usize> = (0..items.len()).filter(|&i| home[i].is_none()).collect();
    let moved: Vec<Item> = away.iter().map(|&i| items[i]).collect();
    let order: Vec<u32> = (0..moved.len() as u32).rev().collect();
    let found = best_fit(&moved, &order, &open)?;
    for (&i, bin) in away.iter().zip(found) {
        home[i] = Some(bin);
    }
    home.into_iter().collect()
}

/// The placement in which the first items go `to` these ranks.
fn summarise(group: &Group, items: &[Item], to: &[u32]) -> Placement {
    let mut served = vec![0; group.len()];
    let mut unserved = group.waiting.clone();
    let mut free = group.free.clone();
    let mut moved = Vec::new();
    for (item, &bin) in items.iter().zip(to) {
        let rank = bin as usize;
        served[rank] += 1;
        unserved[item.source as usize] -= 1;
        free[rank] -= if free[rank] == UNLIMITED {
            0
        } else {
            u64::from(item.size)
        };
        if item.source != bin {
            moved.push((item.source as usize, rank, item.index));
        }
    }
    moved.sort_unstable();
    let flows = moved
        .chunk_by(|a, b| (a.0, a.1) == (b.0, b.1))
        .map(|chunk| Flow {
            from: chunk[0].0,
            to: chunk[0].1,
            queue: chunk.iter().map(|entry| entry.2).collect(),
        })
        .collect();
    Placement {
        served,
        unserved,
        free,
        tied: Vec::new(),
        extra: 0,
        size: 0,
        flows: Some(flows),
    }
}

impl Placement {
    /// The requests that change their rank when `served` run on each rank. Those
    /// at the head of a queue stay, those after them move, the rest waits.
    pub(super) fn flows(self, group: &Group, served: &[u32]) -> Vec<Flow> {
        if let Some(flows) = self.flows {
            return flows;
        }
        let mut flows = Vec::new();
        let mut to = 0;
        let kept = |rank: usize| served[rank].min(group.waiting[rank] - self.unserved[rank]);
        let mut room = served[0] - kept(0);
        for from in 0..group.len() {
            let mut next = kept(from);
            let end = group.waiting[from] - self.unserved[from];
            while next < end {
                if room == 0 {
                    to += 1;
                    room = served[to] - kept(to);
                    continue;
                }
                let count = room.min(end - next);
                flows.push(Flow {
                    from,
                    to,
                    queue: (next..next + count).collect(),
                });
                next += count;
                room -= count;
            }
        }
        flows
    }
}
