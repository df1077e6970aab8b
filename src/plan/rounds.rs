//! Further rounds: what the first moves make possible.
//!
//! A large sequence may fit only after others have moved; a waiting request may fit
//! where running sequences have left; and once running sequences have moved, other
//! places are best for those that wait. So the planner looks at the group as its
//! moves leave it and plans again until it finds nothing more. All rounds become one
//! plan, in which every sequence moves at most once, and right after which a second
//! plan is empty.
//!
//! Every round serves more waiting requests, or as many in a lower gear, so the rounds
//! end. Running sequences are never sent into slots or blocks that a source of the same
//! plan frees: it keeps everything until the moves have been committed. Waiting
//! requests may be, since they take their blocks in the step that follows.

use super::gears::Gears;
use super::load::{RankLoad, SequenceLoad};
use super::outcome::{Move, Plan, Reason};
use super::planner::{Options, Round, plan_once};

/// Most rounds, a bound on the time of odd cases; more than four are rare.
const ROUNDS: usize = 64;

/// `first`, followed by what further rounds find.
pub(super) fn continued(
    loads: &[RankLoad],
    gears: &Gears,
    options: &Options,
    first: Round,
) -> Plan {
    if !may_continue(loads, &first.plan) {
        return first.plan;
    }
    let Round { plan, at_home } = first;
    // (Requests that do not wait, gear): what a round must improve.
    let (mut served, mut gear) = (at_home, plan.gear_before);
    let mut state = State::new(loads, options);
    let mut best = Plan {
        gear_after: plan.gear_before,
        ..plan.clone()
    };
    let mut next = state.after(&plan.moves);
    for _ in 0..ROUNDS {
        let Some(reached) = next else { break };
        // With the blocks that sources get back, then, where these would be needed
        // too early, without them.
        let Ok(Round {
            plan: found,
            at_home: now,
        }) = plan_once(&reached.loads(true), gears, options)
        else {
            break;
        };
        if now < served || now == served && found.gear_before >= gear {
            break;
        }
        (served, gear) = (now, found.gear_before);
        next = None;
        if !found.is_empty() {
            next = reached.after(&found.moves).or_else(|| {
                let without = plan_once(&reached.loads(false), gears, options).ok()?.plan;
                reached
                    .after(&without.moves)
                    .filter(|_| !without.is_empty())
            });
        }
        best = Plan {
            gear_after: gear,
            lower_bound: found.lower_bound,
            reasons: reasons(gear < best.gear_before, served > at_home, &found),
            ..best
        };
        state = reached;
    }
    best.moves = state.moves();
    best
}

/// Why a plan is as it is that ends in a state in which `last` is found.
fn reasons(lowered: bool, served: bool, last: &Plan) -> Vec<Reason> {
    let blocked = [Reason::BlockedByKv, Reason::BlockedByPins];
    let mut reasons = Vec::new();
    reasons.extend(lowered.then_some(Reason::Lowered));
    reasons.extend(served.then_some(Reason::WaitingServed));
    reasons.extend(blocked.into_iter().filter(|&reason| last.has(reason)));
    reasons
}

/// Whether a second round could find anything after `first`. Equal sequences without
/// waiting requests reach their lowest gear at once.
fn may_continue(loads: &[RankLoad], first: &Plan) -> bool {
    if first.is_empty() {
        return false;
    }
    loads.iter().any(|load| load.waiting > 0)
        || first.has(Reason::BlockedByKv) && different_sizes(loads)
}

/// Whether running sequences differ in size.
fn different_sizes(loads: &[RankLoad]) -> bool {
    let counted = loads
        .iter()
        .any(|load| load.sequences.is_none() && load.running > 0);
    let mut sizes = loads
        .iter()
        .flat_map(|load| load.sequences.iter().flatten())
        .map(|sequence| sequence.kv_blocks);
    let Some(first) = counted.then_some(1).or_else(|| sizes.next()) else {
        return false;
    };
    sizes.any(|size| size != first)
}

/// A sequence or request: position of the rank that had it at first, and index there.
type Entry = (usize, u32);

/// The group after some moves.
#[derive(Clone)]
struct State<'a> {
    /// Before all moves, in rank order.
    before: Vec<&'a RankLoad>,
    limit: u32,
    /// Listed sequences on each rank (all of a rank that gave only counts).
    running: Vec<Vec<Entry>>,
    waiting: Vec<Vec<Entry>>,
}

impl<'a> State<'a> {
    fn new(loads: &'a [RankLoad], options: &Options) -> Self {
        let mut before: Vec<&RankLoad> = loads.iter().collect();
        before.sort_by_key(|load| load.rank);
        let entries = |count: fn(&RankLoad) -> u32| -> Vec<Vec<Entry>> {
            let of = |(rank, load): (usize, &&RankLoad)| {
                (0..count(load)).map(|index| (rank, index)).collect()
            };
            before.iter().enumerate().map(of).collect()
        };
        Self {
            running: entries(listed),
            waiting: entries(|load| load.waiting),
            limit: options.max_num_seqs.unwrap_or(u32::MAX),
            before,
        }
    }

    fn position(&self, rank: u32) -> usize {
        self.before.partition_point(|load| load.rank < rank)
    }

    fn apply(&mut self, moves: &[Move]) {
        let old = (self.running.clone(), self.waiting.clone());
        for m in moves {
            let (from, to) = (self.position(m.from), self.position(m.to));
            let (old, new) = match m.needs_kv {
                true => (&old.0, &mut self.running),
                false => (&old.1, &mut self.waiting),
            };
            // A rank that gave only counts gives its last ones.
            let mut moved: Vec<Entry> = match m.sequences.is_empty() {
                true => new[from][new[from].len() - m.count as usize..].to_vec(),
                false => m.sequences.iter().map(|&i| old[from][i as usize]).collect(),
            };
            moved.sort_unstable();
            new[from].retain(|entry| moved.binary_search(entry).is_err());
            new[to].extend(moved);
        }
    }

    /// This state after further moves, if all moves together are possible at once.
    fn after(&self, moves: &[Move]) -> Option<Self> {
        let mut next = self.clone();
        next.apply(moves);
        next.send_home();
        next.possible().then_some(next)
    }

    /// Leaves waiting requests at home that later arrivals kept from a place.
    fn send_home(&mut self) {
        for rank in 0..self.before.len() {
            let mut moved: Vec<Entry> = arrivals(&self.waiting, rank).collect();
            if moved.is_empty() {
                continue;
            }
            moved.sort_unstable_by_key(|entry| (self.request(entry), *entry));
            let slots = self.slots(rank).saturating_sub(self.running_on(rank));
            let mut free = self.free(rank, true).unwrap_or(u64::MAX);
            let mut placed = 0;
            while let Some(entry) = moved.get(placed).filter(|_| placed < slots as usize) {
                let Some(left) = free.checked_sub(self.request(entry).into()) else {
                    break;
                };
                (free, placed) = (left, placed + 1);
            }
            for entry in moved.drain(placed..) {
                self.waiting[rank].retain(|other| *other != entry);
                self.waiting[entry.0].push(entry);
            }
        }
    }

    /// Whether every running sequence finds a slot and blocks while its destination
    /// still has all of its own.
    fn possible(&self) -> bool {
        self.before.iter().enumerate().all(|(rank, load)| {
            let count = arrivals(&self.running, rank).count() as u32;
            let fits = |free| self.received(rank) <= free;
            count == 0
                || load.running.saturating_add(count) <= self.slots(rank)
                    && load.free_kv_blocks.is_none_or(fits)
        })
    }

    fn sequence(&self, &(origin, index): &Entry) -> SequenceLoad {
        match &self.before[origin].sequences {
            Some(listed) => listed[index as usize],
            None => SequenceLoad {
                kv_blocks: 1,
                movable: true,
            },
        }
    }

    fn blocks(&self, entries: impl Iterator<Item = Entry>) -> u64 {
        entries
            .map(|entry| u64::from(self.sequence(&entry).kv_blocks))
            .sum()
    }

    fn received(&self, rank: usize) -> u64 {
        self.blocks(arrivals(&self.running, rank))
    }

    fn slots(&self, rank: usize) -> u32 {
        self.before[rank].max_num_seqs.unwrap_or(self.limit)
    }

    fn running_on(&self, rank: usize) -> u32 {
        let load = self.before[rank];
        load.running - listed(load) + self.running[rank].len() as u32
    }

    /// Blocks of a waiting request.
    fn request(&self, &(origin, index): &Entry) -> u32 {
        let listed = self.before[origin].waiting_kv_blocks.as_ref();
        listed.map_or(1, |blocks| blocks[index as usize])
    }

    /// Free blocks of a rank, with those that it gets back as a source if they are
    /// `credited`.
    fn free(&self, rank: usize, credited: bool) -> Option<u64> {
        let load = self.before[rank];
        let mut free = load.free_kv_blocks?;
        if credited {
            let own = |&(origin, _): &Entry| origin == rank;
            let before = (0..listed(load)).map(|index| (rank, index));
            let stayed = self.running[rank].iter().copied().filter(own);
            free += self.blocks(before) - self.blocks(stayed);
        }
        Some(free.saturating_sub(self.received(rank)))
    }

    fn loads(&self, credited: bool) -> Vec<RankLoad> {
        let now = |(rank, load): (usize, &&RankLoad)| {
            let (running, waiting) = (&self.running[rank], &self.waiting[rank]);
            let blocks = waiting.iter().map(|entry| self.request(entry));
            RankLoad {
                rank: load.rank,
                running: self.running_on(rank),
                waiting: waiting.len() as u32,
                waiting_kv_blocks: Some(blocks.collect()),
                free_kv_blocks: self.free(rank, credited),
                max_num_seqs: load.max_num_seqs,
                sequences: Some(running.iter().map(|entry| self.sequence(entry)).collect()),
            }
        };
        self.before.iter().enumerate().map(now).collect()
    }

    /// The moves from the first state to this one.
    fn moves(&self) -> Vec<Move> {
        let all = [(&self.running, true), (&self.waiting, false)];
        let mut moves: Vec<Move> = all
            .into_iter()
            .flat_map(|(held, needs_kv)| self.moves_of(held, needs_kv))
            .collect();
        moves.sort_by_key(|m| (m.from, m.to, !m.needs_kv));
        moves
    }

    fn moves_of(&self, held: &[Vec<Entry>], needs_kv: bool) -> Vec<Move> {
        let arrived = |to| arrivals(held, to).map(move |(from, index)| (from, to, index));
        let mut entries: Vec<(usize, usize, u32)> = (0..held.len()).flat_map(arrived).collect();
        entries.sort_unstable();
        let chunks = entries.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1));
        let to_move = |chunk: &[(usize, usize, u32)]| {
            let source = self.before[chunk[0].0];
            let named = !needs_kv || source.sequences.is_some();
            let indices = chunk.iter().filter(|_| named).map(|entry| entry.2);
            Move {
                from: source.rank,
                to: self.before[chunk[0].1].rank,
                count: chunk.len() as u32,
                sequences: indices.collect(),
                needs_kv,
            }
        };
        chunks.map(to_move).collect()
    }
}

/// Running sequences of a load that are told apart.
fn listed(load: &RankLoad) -> u32 {
    match &load.sequences {
        Some(sequences) => sequences.len() as u32,
        None => load.running,
    }
}

/// What a rank has now and did not have at first.
fn arrivals(held: &[Vec<Entry>], rank: usize) -> impl Iterator<Item = Entry> {
    held[rank]
        .iter()
        .copied()
        .filter(move |&(origin, _)| origin != rank)
}
