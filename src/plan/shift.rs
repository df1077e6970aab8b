//! Second to fifth objective: which running sequences go where so that no rank
//! runs more than a gear.
//!
//! A rank above the gear gives exactly its excess, its smallest movable
//! sequences: fewer are not enough, and any feasible choice stays feasible when a
//! sequence is exchanged for a smaller one. What is left is where they go
//! ([`super::packing`]) and which of the tied ranks serve one waiting request
//! more.

use std::cell::Cell;
use std::cmp::Reverse;

use super::group::{Group, UNLIMITED};
use super::load::SequenceLoad;
use super::packing::{Bin, Item, pack};
use super::waiting::Placement;

/// Which limits a search respects; `max_num_seqs` always is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) kv: bool,
    pub(super) pins: bool,
}

impl Limits {
    pub(super) const ALL: Self = Self {
        kv: true,
        pins: true,
    };
    pub(super) const COUNTS: Self = Self {
        kv: false,
        pins: false,
    };
}

/// A way to reach a gear.
pub(super) struct Shift {
    /// Waiting requests that run on each rank.
    pub(super) served: Vec<u32>,
    /// Sequences that move, in source order.
    pub(super) items: Vec<Item>,
    /// Position of the destination of each.
    pub(super) to: Vec<u32>,
}

/// Which of the tied ranks serve one more waiting request.
struct Choice {
    ranks: Vec<usize>,
    /// How many of them make a request move for it.
    moved: usize,
}

/// The group with its waiting requests placed.
pub(super) struct Seats<'a> {
    pub(super) group: &'a Group<'a>,
    pub(super) placed: &'a Placement,
    /// Sequences that run on each rank before any moves, without the open ones.
    pub(super) active: Vec<u32>,
    /// Positions that exhaustive packing may still look at for this plan. It
    /// bounds the time of a hopeless case.
    budget: Cell<u32>,
}

/// See [`Seats::budget`]; some milliseconds.
const BUDGET: u32 = 100_000;

/// Most ranks that are tried as givers of more than their excess, most sequences
/// given so, and most sequences moved over all tries for one gear.
const EXCHANGE_RANKS: usize = 16;
const EXCHANGES: usize = 3;
const EXCHANGE_WORK: usize = 4_000;

impl<'a> Seats<'a> {
    pub(super) fn new(group: &'a Group<'a>, placed: &'a Placement) -> Self {
        let active = group
            .running
            .iter()
            .zip(&placed.served)
            .map(|(&a, &b)| a + b)
            .collect();
        Self {
            group,
            placed,
            active,
            budget: Cell::new(BUDGET),
        }
    }

    /// The most sequences that any rank runs at once.
    pub(super) fn highest(&self) -> u32 {
        let tied = self
            .placed
            .tied
            .iter()
            .map(|&rank| self.active[rank] + 1)
            .max();
        self.group.at_once(&self.active).max(tied.unwrap_or(0))
    }

    /// Sequences of `active` on a rank that must leave it for `gear`.
    fn above(&self, rank: usize, active: u32, gear: u32) -> u32 {
        match self.group.most[rank] <= gear {
            true => 0,
            false => active.saturating_sub(gear),
        }
    }

    /// Sequences above `gear` on all ranks, without the open ones.
    fn excess(&self, gear: u32) -> usize {
        let active = self.active.iter().enumerate();
        let above = active.map(|(rank, &active)| self.above(rank, active, gear) as usize);
        above.sum()
    }

    /// Sequences of `size` blocks that a rank can take, at most `most`.
    fn room(&self, rank: usize, extra: u32, gear: u32, size: u64, kv: bool, most: u32) -> u32 {
        let slots = self.group.slots[rank]
            .min(gear)
            .saturating_sub(self.active[rank] + extra);
        let slots = slots.min(most);
        let free = self.placed.free[rank];
        if !kv || free == UNLIMITED {
            return slots;
        }
        let free = free.saturating_sub(u64::from(extra) * self.placed.size);
        free.checked_div(size)
            .map_or(slots, |blocks| u64::from(slots).min(blocks) as u32)
    }

    /// How to serve the open requests so that `gear` is reachable when every
    /// moved sequence has `size` blocks and no rank receives more than `most`,
    /// moving as few of them as possible. `None` when it is not reachable.
    fn choose(&self, gear: u32, size: u64, limits: Limits, most: u32) -> Option<Choice> {
        let mut slack: i64 = 0;
        for (rank, &active) in self.active.iter().enumerate() {
            let excess = self.above(rank, active, gear);
            if limits.pins && excess > self.group.movable[rank] {
                return None;
            }
            let room = self.room(rank, 0, gear, size, limits.kv, most);
            slack += i64::from(room) - i64::from(excess);
        }
        let extra = self.placed.extra as usize;
        if extra == 0 {
            return (slack >= 0).then(|| Choice {
                ranks: Vec::new(),
                moved: 0,
            });
        }
        // By what one request more on a rank lessens the slack; first the ranks
        // that keep a request of their own, then those to which one moves.
        let mut costs: [Vec<(i64, usize)>; 2] = Default::default();
        for &rank in &self.placed.tied {
            let active = self.active[rank];
            let cost = if active >= gear {
                if limits.pins && active + 1 - gear > self.group.movable[rank] {
                    continue;
                }
                1
            } else {
                let before = self.room(rank, 0, gear, size, limits.kv, most);
                let after = self.room(rank, 1, gear, size, limits.kv, most);
                i64::from(before) - i64::from(after)
            };
            let moves = self.placed.served[rank] >= self.group.waiting[rank];
            costs[usize::from(moves)].push((cost, rank));
        }
        let sums = costs.each_mut().map(|costs| {
            costs.sort_unstable();
            let mut sum = 0;
            let sums = costs.iter().map(move |&(cost, _)| {
                sum += cost;
                sum
            });
            std::iter::once(0).chain(sums).collect::<Vec<i64>>()
        });
        let least = extra.saturating_sub(costs[0].len());
        let moved = (least..=extra.min(costs[1].len()))
            .find(|&moved| sums[0][extra - moved] + sums[1][moved] <= slack)?;
        let mut ranks: Vec<usize> = costs[0][..extra - moved]
            .iter()
            .chain(&costs[1][..moved])
            .map(|&(_, rank)| rank)
            .collect();
        ranks.sort_unstable();
        Some(Choice { ranks, moved })
    }

    /// Waiting requests per rank when no running sequence moves.
    pub(super) fn settled(&self, gear: u32) -> Vec<u32> {
        let mut served = self.placed.served.clone();
        if let Some(choice) = self.choose(
            gear,
            0,
            Limits {
                kv: false,
                pins: true,
            },
            0,
        ) {
            for rank in choice.ranks {
                served[rank] += 1;
            }
        }
        served
    }

    /// Whether `gear` is reachable when all moved sequences have `size` blocks.
    pub(super) fn reachable(&self, gear: u32, size: u64, limits: Limits) -> bool {
        self.choose(gear, size, limits, u32::MAX).is_some()
    }

    /// The best way to reach `gear` when all movable sequences have `size`
    /// blocks; `gear` must be reachable.
    pub(super) fn shift_equal(&self, gear: u32, size: u64) -> Option<Shift> {
        let moved = self.choose(gear, size, Limits::ALL, u32::MAX)?.moved;
        let at = |most| {
            self.choose(gear, size, Limits::ALL, most)
                .filter(|c| c.moved == moved)
        };
        let (mut low, mut high) = (0, gear);
        if !self.placed.tied.is_empty() {
            // The fewest sequences that the busiest receiver must take.
            while low < high {
                let middle = low + (high - low) / 2;
                if at(middle).is_some() {
                    high = middle
                } else {
                    low = middle + 1
                }
            }
        }
        self.assign(gear, &at(high)?.ranks, &[], Limits::ALL)
    }

    /// A way to reach `gear` with sequences of any sizes, if one is found.
    pub(super) fn shift(&self, gear: u32, limits: Limits) -> Option<Shift> {
        let (low, high) = self.group.sizes.unwrap_or((1, 1));
        // With tied ranks the typical size decides first, then the smallest.
        let typical = (u64::from(low) + u64::from(high)).div_ceil(2);
        let sizes = [typical, low.into()];
        let tries = if self.placed.tied.is_empty() {
            &sizes[1..]
        } else {
            &sizes[..]
        };
        let choices = || {
            tries
                .iter()
                .filter_map(|&s| self.choose(gear, s, limits, u32::MAX))
        };
        choices()
            .find_map(|choice| self.assign(gear, &choice.ranks, &[], limits))
            .or_else(|| self.exchange(gear, &choices().next()?.ranks, limits))
    }

    /// Like [`Seats::assign`], with ranks that give more than their excess: as
    /// few of them as possible, tried in the order of their free blocks.
    fn exchange(&self, gear: u32, extra: &[usize], limits: Limits) -> Option<Shift> {
        let free = &self.placed.free;
        let mut ranks: Vec<u32> = (0..free.len() as u32).collect();
        ranks.retain(|&rank| self.group.movable[rank as usize] > 0 && free[rank as usize] > 0);
        ranks.sort_by_key(|&rank| Reverse(free[rank as usize]));
        ranks.truncate(EXCHANGE_RANKS);
        let mut tries = EXCHANGE_WORK / self.excess(gear).max(1);
        (1..=EXCHANGES).find_map(|count| {
            self.exchange_of(
                gear,
                extra,
                limits,
                &ranks,
                count,
                &mut Vec::new(),
                &mut tries,
            )
        })
    }

    /// [`Seats::exchange`] with `count` more ranks of `ranks`, repeats allowed.
    #[expect(clippy::too_many_arguments, reason = "one recursion")]
    fn exchange_of(
        &self,
        gear: u32,
        extra: &[usize],
        limits: Limits,
        ranks: &[u32],
        count: usize,
        givers: &mut Vec<u32>,
        tries: &mut usize,
    ) -> Option<Shift> {
        if count == 0 {
            *tries = tries.checked_sub(1)?;
            return self.assign(gear, extra, givers, limits);
        }
        (0..ranks.len()).find_map(|first| {
            givers.push(ranks[first]);
            let found = self.exchange_of(
                gear,
                extra,
                limits,
                &ranks[first..],
                count - 1,
                givers,
                tries,
            );
            givers.pop();
            found
        })
    }

    /// Takes each rank's excess over `gear`, and one more for each time that it is
    /// among `givers`, and packs them, with the open requests on the ranks `extra`.
    fn assign(&self, gear: u32, extra: &[usize], givers: &[u32], limits: Limits) -> Option<Shift> {
        let mut served = self.placed.served.clone();
        for &rank in extra {
            served[rank] += 1;
        }
        let equal = self.group.sizes.is_none_or(|(low, high)| low == high);
        let mut smallest = Smallest {
            equal,
            pins: limits.pins,
            keys: Vec::new(),
            ties: Vec::new(),
        };
        let mut items = Vec::with_capacity(self.excess(gear) + extra.len() + givers.len());
        let mut bins = Vec::with_capacity(self.group.len());
        let mut ceiling = 0;
        for (rank, &active) in self.active.iter().enumerate() {
            let more = served[rank] - self.placed.served[rank];
            let active = active + more;
            let given = givers
                .iter()
                .filter(|&&giver| giver as usize == rank)
                .count() as u32;
            let leaving = self.above(rank, active, gear) + given;
            if leaving > 0 {
                let start = items.len();
                smallest.take(self.group, rank, leaving, &mut items)?;
                let blocks = items[start..].iter().map(|item| u64::from(item.size)).sum();
                ceiling = u64::max(ceiling, blocks);
            }
            // A source keeps its sequences until its moves are committed.
            let slots = self.group.slots[rank].saturating_sub(active);
            let slots = slots.min((gear + leaving).saturating_sub(active));
            if slots > 0 {
                let free = match self.placed.free[rank] {
                    free if limits.kv && free != UNLIMITED => {
                        free.saturating_sub(u64::from(more) * self.placed.size)
                    }
                    _ => UNLIMITED,
                };
                bins.push(Bin {
                    rank: rank as u32,
                    active,
                    slots,
                    free,
                });
            }
        }
        let mut budget = self.budget.get();
        let to = pack(&items, &bins, ceiling, &mut budget);
        self.budget.set(budget);
        let to = to?.into_iter().map(|bin| bins[bin as usize].rank).collect();
        Some(Shift { served, items, to })
    }
}

/// `count` of `total` positions, ascending and evenly spaced. Neighbours in a running
/// list are samples of one prompt or of one age, which end at similar times: with every
/// other one gone, what stays and what goes thin out alike, and lower gears come without
/// further moves.
fn evenly(total: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |i| (2 * i + 1) * total / (2 * count))
}

/// Takes the smallest sequences of a rank; keeps its buffer between ranks.
struct Smallest {
    /// All movable sequences of the group have one size.
    equal: bool,
    /// Pinned sequences may move; unlisted ones count as one block.
    pins: bool,
    keys: Vec<u64>,
    /// Of them, those of the largest size that is taken.
    ties: Vec<u64>,
}

impl Smallest {
    /// Appends the `count` smallest sequences, of equal ones evenly spaced indices, in
    /// no particular order; `None` when the rank has too few.
    fn take(
        &mut self,
        group: &Group,
        rank: usize,
        count: u32,
        items: &mut Vec<Item>,
    ) -> Option<()> {
        let (running, source) = (group.running[rank], rank as u32);
        let Some(sequences) = group.sequences(rank) else {
            items.extend((0..count).map(|index| Item {
                size: 1,
                source,
                index,
            }));
            let most = if self.pins {
                group.movable[rank]
            } else {
                running
            };
            return (count <= most).then_some(());
        };
        let count = count as usize;
        let listed = (0u32..).zip(&*sequences);
        let item = |(index, s): (u32, &SequenceLoad)| Item {
            size: s.kv_blocks,
            source,
            index,
        };
        if self.equal && self.pins {
            let movable = || listed.clone().filter(|(_, s)| s.movable);
            let total = movable().count();
            if total < count {
                return None;
            }
            let mut chosen = evenly(total, count).peekable();
            for (position, entry) in movable().enumerate() {
                if chosen.next_if_eq(&position).is_some() {
                    items.push(item(entry));
                }
            }
            return Some(());
        }
        // Size above index: the order of the keys is the order of choice.
        let key = |index: u32, size: u32| u64::from(size) << 32 | u64::from(index);
        self.keys.clear();
        if self.pins {
            let movable = listed.filter(|(_, s)| s.movable);
            self.keys
                .extend(movable.map(|(index, s)| key(index, s.kv_blocks)));
        } else {
            let unlisted = sequences.len() as u32..running;
            self.keys
                .extend(listed.map(|(index, s)| key(index, s.kv_blocks)));
            self.keys.extend(unlisted.map(|index| key(index, 1)));
        }
        if self.keys.len() < count {
            return None;
        }
        if 0 < count && count < self.keys.len() {
            let (_, &mut last, _) = self.keys.select_nth_unstable(count - 1);
            let size = last >> 32;
            self.ties.clear();
            self.ties
                .extend(self.keys.iter().filter(|&key| key >> 32 == size));
            self.ties.sort_unstable();
            self.keys.retain(|key| key >> 32 < size);
            let left = count - self.keys.len();
            self.keys
                .extend(evenly(self.ties.len(), left).map(|position| self.ties[position]));
        }
        items.extend(self.keys[..count].iter().map(|&key| Item {
            size: (key >> 32) as u32,
            source,
            index: key as u32,
        }));
        Some(())
    }
}
