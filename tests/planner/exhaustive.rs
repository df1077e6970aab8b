//! The best plan by trying everything.

use seqshift::plan::{Gears, Plan, RankLoad};

use super::cases::Case;
use super::outcome::{Score, waiting_size};

struct Rank {
    /// Waiting requests that cannot move are to others like sequences that cannot.
    running: u32,
    /// The most that run at once.
    most: u32,
    waiting: u32,
    movable: u32,
    slots: u32,
    free: u32,
}

fn ranks(case: &Case) -> Vec<Rank> {
    let slots = |load: &RankLoad| {
        let slots = load.max_num_seqs.or(case.options.max_num_seqs);
        slots.unwrap_or(1000)
    };
    let free = |load: &RankLoad| {
        let pinned: u32 = load.pinned_waiting.iter().sum();
        let free = load.free_kv_blocks.map_or(1_000_000, |free| free as u32);
        free.saturating_sub(pinned)
    };
    let rank = |load: &RankLoad| Rank {
        running: load.running + load.pinned_waiting.len() as u32,
        most: slots(load).max(load.running),
        waiting: load.waiting,
        movable: load
            .sequences
            .iter()
            .flatten()
            .filter(|s| s.movable)
            .count() as u32,
        slots: slots(load),
        free: free(load),
    };
    case.loads.iter().map(rank).collect()
}

/// Calls `with` for every vector between zero and `most`.
fn vectors(most: &[u32], with: &mut impl FnMut(&[u32])) {
    fn fill(most: &[u32], vector: &mut Vec<u32>, with: &mut impl FnMut(&[u32])) {
        let Some(&limit) = most.get(vector.len()) else {
            return with(vector);
        };
        for value in 0..=limit {
            vector.push(value);
            fill(most, vector, with);
            vector.pop();
        }
    }
    fill(most, &mut Vec::new(), with);
}

/// Waiting requests that run (`served`) and that stay (`unserved`) per rank.
struct Placing {
    served: Vec<u32>,
    moved: u32,
    first: (u32, u32, u32),
}

/// All placings that are best for the first objective.
fn placings(ranks: &[Rank], size: u32) -> Vec<Placing> {
    let room: Vec<u32> = ranks
        .iter()
        .map(|rank| {
            rank.slots
                .saturating_sub(rank.running)
                .min(rank.free / size)
                .min(20)
        })
        .collect();
    let waiting: Vec<u32> = ranks.iter().map(|rank| rank.waiting).collect();
    let total: u32 = waiting.iter().sum();
    let room: Vec<u32> = room.iter().map(|&room| room.min(total)).collect();
    let most = total.min(room.iter().sum());
    let mut best: Vec<Placing> = Vec::new();
    vectors(&room, &mut |served| {
        if served.iter().sum::<u32>() != most {
            return;
        }
        vectors(&waiting, &mut |unserved| {
            if unserved.iter().sum::<u32>() != total - most {
                return;
            }
            let level = |rank: usize| ranks[rank].running + served[rank] + unserved[rank];
            let levels = || (0..ranks.len()).map(level);
            let first = (
                total - most,
                levels().max().unwrap(),
                levels().map(|l| l * l).sum(),
            );
            let kept = |rank: usize| served[rank].min(waiting[rank] - unserved[rank]);
            // A rank's own requests are first in its queue: none arrive where one of them waits.
            let waits_behind = |rank: usize| unserved[rank] > 0 && served[rank] > kept(rank);
            if (0..ranks.len()).any(waits_behind) {
                return;
            }
            let moved = most - (0..ranks.len()).map(kept).sum::<u32>();
            if best.first().is_none_or(|best| first <= best.first) {
                if best.first().is_some_and(|best| first < best.first) {
                    best.clear();
                }
                best.push(Placing {
                    served: served.to_vec(),
                    moved,
                    first,
                });
            }
        });
    });
    best
}

/// The best score for running sequences of one size, or `None` when nothing
/// would be gained.
pub fn best_equal(case: &Case, gears: &Gears) -> Option<Score> {
    let ranks = ranks(case);
    let sequences = case
        .loads
        .iter()
        .flat_map(|load| load.sequences.iter().flatten());
    let size = sequences.map(|s| s.kv_blocks).next().unwrap_or(1);
    let waiting_size = waiting_size(case);
    let placings = placings(&ranks, waiting_size);
    let best = placings.iter().map(|placing| {
        // A rank that both gave and received would move a sequence more than
        // needed and use blocks for it, so net numbers say everything.
        let mut best: Option<Score> = None;
        let mut net = Vec::new();
        spread(
            &ranks,
            placing,
            size,
            waiting_size,
            &mut net,
            0,
            &mut |net| {
                let active = |rank: usize| {
                    (ranks[rank].running + placing.served[rank])
                        .checked_add_signed(net[rank])
                        .unwrap()
                        .min(ranks[rank].most)
                };
                let moved: u32 = net.iter().map(|&n| n.max(0) as u32).sum();
                let score = Score {
                    unserved: placing.first.0,
                    highest_level: placing.first.1,
                    squares: placing.first.2,
                    gear: gears.gear_of((0..net.len()).map(active).max().unwrap()),
                    moved: moved + placing.moved,
                    blocks: moved * size,
                    peak: net.iter().map(|&n| n.unsigned_abs() * size).max().unwrap(),
                };
                best = Some(best.map_or(score, |best| best.min(score)));
            },
        );
        best.unwrap()
    });
    let best = best.min().unwrap();
    let home = |rank: &Rank| {
        rank.waiting
            .min(rank.slots.saturating_sub(rank.running))
            .min(rank.free / waiting_size)
    };
    let before = ranks
        .iter()
        .map(|rank| (rank.running + home(rank)).min(rank.most))
        .max()
        .unwrap();
    let waiting: u32 = ranks.iter().map(|rank| rank.waiting).sum();
    let unserved = waiting - ranks.iter().map(home).sum::<u32>();
    (best.gear < gears.gear_of(before) || best.unserved < unserved).then_some(best)
}

/// How good a plan is that only makes room for waiting requests that cannot move; smaller
/// is better, field by field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Room {
    /// The most on one rank that has requests without a place or that receives sequences.
    pub highest: u32,
    pub moved: u32,
    pub peak: u32,
}

/// The best room that running sequences of one size can make, where no other request waits;
/// `None` where they can make none.
pub fn best_room(case: &Case) -> Option<Room> {
    let ranks = ranks(case);
    let blocked = |rank: &Rank| rank.running > rank.most;
    let ceiling = ranks.iter().filter(|rank| blocked(rank)).map(|r| r.most);
    let ceiling = ceiling.max()?;
    if ceiling == 0 || ranks.iter().any(|rank| rank.waiting > 0) {
        return None;
    }
    let mut sequences = case.loads.iter().flat_map(|l| l.sequences.iter().flatten());
    let size = sequences.next().map_or(1, |s| s.kv_blocks);
    let nothing = Placing {
        served: vec![0; ranks.len()],
        moved: 0,
        first: (0, 0, 0),
    };
    let mut best: Option<Room> = None;
    spread(&ranks, &nothing, size, 1, &mut Vec::new(), 0, &mut |net| {
        let room = room(&ranks, ceiling, net, size);
        best = Some(best.map_or(room, |best| best.min(room)));
    });
    best.filter(|best| best.moved > 0)
}

/// What net arrivals make of a group.
fn room(ranks: &[Rank], ceiling: u32, net: &[i32], size: u32) -> Room {
    let counted = ranks.iter().zip(net);
    let counted = counted.filter(|&(rank, &net)| rank.running > rank.most || net > 0);
    let active = counted.map(|(rank, &net)| rank.running.checked_add_signed(net).unwrap());
    Room {
        highest: active.map(|n| n.max(ceiling)).max().unwrap(),
        moved: net.iter().map(|&n| n.max(0) as u32).sum(),
        peak: net.iter().map(|n| n.unsigned_abs() * size).max().unwrap(),
    }
}

/// The room that a plan makes.
pub fn room_of(case: &Case, plan: &Plan) -> Room {
    let ranks = ranks(case);
    let blocked = ranks.iter().filter(|rank| rank.running > rank.most);
    let ceiling = blocked.map(|rank| rank.most).max().unwrap();
    let mut net = vec![0; ranks.len()];
    for m in &plan.moves {
        assert!(m.needs_kv, "{plan:?}");
        net[m.from as usize] -= m.count as i32;
        net[m.to as usize] += m.count as i32;
    }
    let mut sequences = case.loads.iter().flat_map(|l| l.sequences.iter().flatten());
    room(
        &ranks,
        ceiling,
        &net,
        sequences.next().map_or(1, |s| s.kv_blocks),
    )
}

/// Calls `with` for every feasible vector of net arrivals that sums to zero.
fn spread(
    ranks: &[Rank],
    placing: &Placing,
    size: u32,
    waiting_size: u32,
    net: &mut Vec<i32>,
    sum: i32,
    with: &mut impl FnMut(&[i32]),
) {
    let Some(rank) = ranks.get(net.len()) else {
        if sum == 0 {
            with(net);
        }
        return;
    };
    let served = placing.served[net.len()];
    let slots = rank.slots.saturating_sub(rank.running + served);
    let blocks = (rank.free - served * waiting_size) / size;
    let others: u32 = ranks.iter().map(|rank| rank.movable).sum::<u32>() - rank.movable;
    let room = slots.min(blocks).min(others) as i32;
    for arrivals in -(rank.movable as i32)..=room {
        net.push(arrivals);
        spread(
            ranks,
            placing,
            size,
            waiting_size,
            net,
            sum + arrivals,
            with,
        );
        net.pop();
    }
}

/// What sequences of any size allow; no waiting requests.
pub struct Lowest {
    pub gear: u32,
    /// Fewest moves that reach the gear asked for.
    pub moves_for_reached: Option<u32>,
}

/// The lowest gear by any assignment of the movable sequences, ranks that give
/// and receive at once included.
pub fn lowest_gear(case: &Case, gears: &Gears, reached: u32) -> Lowest {
    let ranks = ranks(case);
    let mut sequences: Vec<(usize, u32)> = Vec::new();
    for (rank, load) in case.loads.iter().enumerate() {
        let movable = load.sequences.iter().flatten().filter(|s| s.movable);
        sequences.extend(movable.map(|s| (rank, s.kv_blocks)));
    }
    sequences.sort_by_key(|&(_, size)| std::cmp::Reverse(size));
    let highest = ranks.iter().map(|rank| rank.running).max().unwrap();
    let fewest = |gear: u32| {
        let mut state = State {
            counts: ranks.iter().map(|rank| rank.running).collect(),
            free: ranks.iter().map(|rank| rank.free).collect(),
            room: ranks
                .iter()
                .map(|rank| rank.slots.saturating_sub(rank.running))
                .collect(),
            movable: ranks.iter().map(|rank| rank.movable).collect(),
            best: u32::MAX,
        };
        state.descend(&sequences, 0, gear);
        (state.best < u32::MAX).then_some(state.best)
    };
    let mut gear = gears.gear_of(highest);
    for count in 1..highest {
        let lower = gears.gear_of(count);
        if lower < gear
            && (count == 1 || gears.gear_of(count - 1) < lower)
            && fewest(lower).is_some()
        {
            gear = lower;
        }
    }
    Lowest {
        gear,
        moves_for_reached: fewest(reached),
    }
}

struct State {
    counts: Vec<u32>,
    free: Vec<u32>,
    /// Sequences that a rank may receive; it keeps its own until they are there.
    room: Vec<u32>,
    /// Sequences of the rank that are still undecided.
    movable: Vec<u32>,
    best: u32,
}

impl State {
    fn descend(&mut self, sequences: &[(usize, u32)], moved: u32, gear: u32) {
        // Each rank above the gear must still give at least its excess.
        let excess = |rank: usize| self.counts[rank].saturating_sub(gear);
        let needed: u32 = (0..self.counts.len()).map(excess).sum();
        if moved + needed >= self.best
            || (0..self.counts.len()).any(|rank| excess(rank) > self.movable[rank])
        {
            return;
        }
        if needed == 0 {
            self.best = moved;
            return;
        }
        let Some((&(source, size), rest)) = sequences.split_first() else {
            return;
        };
        self.movable[source] -= 1;
        for to in 0..self.counts.len() {
            if to != source && self.free[to] >= size && self.room[to] > 0 {
                self.room[to] -= 1;
                self.counts[source] -= 1;
                self.counts[to] += 1;
                self.free[to] -= size;
                self.descend(rest, moved + 1, gear);
                self.free[to] += size;
                self.room[to] += 1;
                self.counts[to] -= 1;
                self.counts[source] += 1;
            }
        }
        self.descend(rest, moved, gear);
        self.movable[source] += 1;
    }
}
