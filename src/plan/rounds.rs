//! Further rounds for sequences of different sizes.
//!
//! A large sequence may fit only after others have moved. So where free blocks
//! were in the way, the planner looks at the group as the first moves leave it
//! and plans again; all rounds become one plan in which every sequence moves at
//! most once. Blocks that a source gets back are not counted: it keeps everything
//! until the moves have been committed.

use super::gears::Gears;
use super::load::RankLoad;
use super::outcome::{Move, Plan, Reason};
use super::planner::{Options, plan_once};

/// Most rounds; each one lowers the gear or is the last.
const ROUNDS: usize = 8;

/// `first`, followed by what further rounds find.
pub(super) fn continued(loads: &[RankLoad], gears: &Gears, options: &Options, first: Plan) -> Plan {
    let blocked = first.has(Reason::Lowered) && first.has(Reason::BlockedByKv);
    if !blocked || first.moves.iter().any(|m| !m.needs_kv) || !different_sizes(loads) {
        return first;
    }
    let mut state = State::new(loads, options);
    state.apply(&first.moves);
    let mut best = first;
    for _ in 1..ROUNDS {
        let Ok(next) = plan_once(&state.loads(), gears, options) else {
            break;
        };
        if !next.has(Reason::Lowered) || next.moves.iter().any(|m| !m.needs_kv) {
            break;
        }
        state.apply(&next.moves);
        if !state.slots_suffice() {
            break;
        }
        best = Plan {
            gear_before: best.gear_before,
            moves: state.moves(),
            ..next
        };
    }
    best
}

/// Whether all ranks list their sequences and these differ in size.
fn different_sizes(loads: &[RankLoad]) -> bool {
    if loads.iter().any(|load| load.sequences.is_none()) {
        return false;
    }
    let mut sizes = loads
        .iter()
        .flat_map(|load| load.sequences.iter().flatten());
    let Some(first) = sizes.next() else {
        return false;
    };
    sizes.any(|sequence| sequence.kv_blocks != first.kv_blocks)
}

struct State<'a> {
    /// In rank order.
    before: Vec<&'a RankLoad>,
    limit: u32,
    /// Sequences on each rank, as (origin, index there).
    held: Vec<Vec<(usize, u32)>>,
}

impl<'a> State<'a> {
    fn new(loads: &'a [RankLoad], options: &Options) -> Self {
        let mut before: Vec<&RankLoad> = loads.iter().collect();
        before.sort_by_key(|load| load.rank);
        let listed = |(rank, load): (usize, &&RankLoad)| {
            let count = load.sequences.as_ref().map_or(0, Vec::len) as u32;
            (0..count).map(|index| (rank, index)).collect()
        };
        let held = before.iter().enumerate().map(listed).collect();
        Self {
            before,
            limit: options.max_num_seqs.unwrap_or(u32::MAX),
            held,
        }
    }

    fn position(&self, rank: u32) -> usize {
        self.before.partition_point(|load| load.rank < rank)
    }

    fn apply(&mut self, moves: &[Move]) {
        let old = self.held.clone();
        for m in moves {
            let (from, to) = (self.position(m.from), self.position(m.to));
            let moved = m.sequences.iter().map(|&index| old[from][index as usize]);
            self.held[from].retain(|entry| !moved.clone().any(|moved| moved == *entry));
            self.held[to].extend(moved);
        }
    }

    fn arrivals(&self, rank: usize) -> impl Iterator<Item = (usize, u32)> {
        self.held[rank]
            .iter()
            .copied()
            .filter(move |&(origin, _)| origin != rank)
    }

    /// Every sequence arrives while its destination still has all of its own.
    fn slots_suffice(&self) -> bool {
        self.before.iter().enumerate().all(|(rank, load)| {
            let arrivals = self.arrivals(rank).count() as u32;
            let slots = load.max_num_seqs.unwrap_or(self.limit);
            arrivals == 0 || load.running + arrivals <= slots
        })
    }

    fn loads(&self) -> Vec<RankLoad> {
        let sequence = |&(origin, index): &(usize, u32)| {
            self.before[origin]
                .sequences
                .as_ref()
                .map(|listed| listed[index as usize])
        };
        let now = |(rank, load): (usize, &&RankLoad)| {
            let listed = load.sequences.as_ref().map_or(0, Vec::len) as u32;
            let arrived = self.arrivals(rank).filter_map(|entry| sequence(&entry));
            let blocks: u64 = arrived.map(|sequence| u64::from(sequence.kv_blocks)).sum();
            RankLoad {
                running: load.running - listed + self.held[rank].len() as u32,
                free_kv_blocks: load.free_kv_blocks.map(|free| free.saturating_sub(blocks)),
                sequences: self.held[rank].iter().map(sequence).collect(),
                ..(*load).clone()
            }
        };
        self.before.iter().enumerate().map(now).collect()
    }

    /// The moves from the first state to this one.
    fn moves(&self) -> Vec<Move> {
        let mut entries: Vec<(usize, usize, u32)> = (0..self.held.len())
            .flat_map(|rank| {
                self.arrivals(rank)
                    .map(move |(from, index)| (from, rank, index))
            })
            .collect();
        entries.sort_unstable();
        let chunks = entries.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1));
        chunks
            .map(|chunk| Move {
                from: self.before[chunk[0].0].rank,
                to: self.before[chunk[0].1].rank,
                count: chunk.len() as u32,
                sequences: chunk.iter().map(|entry| entry.2).collect(),
                needs_kv: true,
            })
            .collect()
    }
}
