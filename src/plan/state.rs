//! The group after some moves, kept as what differs from the group before them.

use std::borrow::Cow;

use super::group::{Group, UNLIMITED};
use super::load::SequenceLoad;
use super::outcome::Move;

/// A sequence or request: position of the rank that had it at first, and index there.
type Entry = (u32, u32);

/// The listed sequences of a rank (all, where it gave only counts), or its requests.
#[derive(Clone, Default)]
struct Held {
    /// How many it had at first.
    first: u32,
    /// Which of them have left, ascending.
    gone: Vec<u32>,
    /// What has come since, and is listed after those that stayed.
    came: Vec<Entry>,
}

impl Held {
    fn new(first: u32) -> Self {
        Self {
            first,
            ..Self::default()
        }
    }

    /// Those of this `rank` that have not left.
    fn stayed(&self, rank: usize) -> impl Iterator<Item = Entry> {
        let mut gone = self.gone.iter().peekable();
        let stays = move |index: &u32| gone.next_if_eq(&index).is_none();
        (0..self.first)
            .filter(stays)
            .map(move |index| (rank as u32, index))
    }

    fn all(&self, rank: usize) -> impl Iterator<Item = Entry> {
        self.stayed(rank).chain(self.came.iter().copied())
    }

    /// Appends [`Held::all`] to `listed`.
    fn list(&self, rank: usize, listed: &mut Vec<Entry>) {
        match self.gone.is_empty() {
            // Of known length, as nearly always.
            true => listed.extend((0..self.first).map(|index| (rank as u32, index))),
            false => listed.extend(self.stayed(rank)),
        }
        listed.extend_from_slice(&self.came);
    }

    /// What `rank` has now and did not have at first.
    fn arrivals(&self, rank: usize) -> impl Iterator<Item = Entry> {
        let came = self.came.iter().copied();
        came.filter(move |&(origin, _)| origin as usize != rank)
    }

    fn untouched(&self) -> bool {
        self.gone.is_empty() && self.came.is_empty()
    }

    fn count(&self) -> u32 {
        self.first - self.gone.len() as u32 + self.came.len() as u32
    }

    /// Takes out the entries at these positions of [`Held::all`].
    fn remove(&mut self, rank: usize, mut positions: Vec<u32>) {
        positions.sort_unstable();
        let stayed = self.first - self.gone.len() as u32;
        let came = positions.split_off(positions.partition_point(|&at| at < stayed));
        let (mut leaving, mut at) = (came.into_iter().peekable(), stayed..);
        self.came
            .retain(|_| leaving.next_if_eq(&at.next().expect("endless")).is_none());
        if self.gone.is_empty() {
            self.gone = positions;
            return;
        }
        let own: Vec<Entry> = self.stayed(rank).collect();
        self.gone
            .extend(positions.iter().map(|&at| own[at as usize].1));
        self.gone.sort_unstable();
    }
}

/// The group after some moves. All vectors have one entry per rank.
#[derive(Clone)]
pub(super) struct State<'a> {
    before: &'a Group<'a>,
    running: Vec<Held>,
    waiting: Vec<Held>,
    /// KV blocks of a rank's own sequences that have left it.
    given: Vec<u64>,
    /// KV blocks of the sequences that have come to it.
    received: Vec<u64>,
    /// Whether what has moved is just what the moves say.
    pub(super) as_planned: bool,
}

impl<'a> State<'a> {
    /// Before all moves.
    pub(super) fn new(before: &'a Group<'a>) -> Self {
        let listed = before.loads.iter().map(|load| match &load.sequences {
            Some(sequences) => sequences.len() as u32,
            None => load.running,
        });
        Self {
            running: listed.map(Held::new).collect(),
            waiting: before.waiting.iter().copied().map(Held::new).collect(),
            given: vec![0; before.len()],
            received: vec![0; before.len()],
            as_planned: true,
            before,
        }
    }

    /// This state after further moves, if all moves together are possible at once.
    pub(super) fn after(&self, moves: &[Move]) -> Option<Self> {
        let mut next = self.clone();
        let mut listed = Vec::new();
        for moves in moves.chunk_by(|a, b| a.from == b.from) {
            next.take(moves, true, &mut listed);
            next.take(moves, false, &mut listed);
        }
        next.send_home();
        next.possible().then_some(next)
    }

    /// Those of `moves`, which have one source, that need KV, or that do not. `listed` is a
    /// buffer.
    fn take(&mut self, moves: &[Move], needs_kv: bool, listed: &mut Vec<Entry>) {
        let mut moves = moves.iter().filter(|m| m.needs_kv == needs_kv).peekable();
        let Some(from) = moves.peek().map(|m| self.position(m.from)) else {
            return;
        };
        listed.clear();
        self.held(needs_kv)[from].list(from, listed);
        let mut last = listed.len() as u32;
        let count: u32 = moves.clone().map(|m| m.count).sum();
        let mut leaving = Vec::with_capacity(count as usize);
        for m in moves {
            let (to, start) = (self.position(m.to), leaving.len());
            if m.sequences.is_empty() {
                // A rank that gave only counts gives its last ones.
                last -= m.count;
                leaving.extend(last..last + m.count);
                // Those may be of another rank.
                self.as_planned = false;
            } else {
                leaving.extend_from_slice(&m.sequences);
            }
            let moved = leaving[start..].iter().map(|&at| listed[at as usize]);
            if needs_kv {
                moved.clone().for_each(|entry| self.carry(entry, from, to));
            }
            let came = &mut self.held(needs_kv)[to].came;
            let start = came.len();
            came.extend(moved);
            came[start..].sort_unstable();
        }
        self.held(needs_kv)[from].remove(from, leaving);
    }

    fn held(&mut self, needs_kv: bool) -> &mut [Held] {
        match needs_kv {
            true => &mut self.running,
            false => &mut self.waiting,
        }
    }

    /// Counts the blocks of a running sequence that moves.
    fn carry(&mut self, entry: Entry, from: usize, to: usize) {
        let blocks = u64::from(self.sequence(entry).kv_blocks);
        let own = entry.0 as usize;
        match own == from {
            true => self.given[from] += blocks,
            false => self.received[from] -= blocks,
        }
        match own == to {
            true => self.given[to] -= blocks,
            false => self.received[to] += blocks,
        }
    }

    /// Leaves waiting requests at home that later arrivals, or requests that stay at their
    /// destination, kept from a place there.
    fn send_home(&mut self) {
        // Who is back at home waits before those that have come there.
        let mut again = true;
        while again {
            again = false;
            for rank in 0..self.before.len() {
                again |= self.send_home_from(rank);
            }
        }
    }

    /// [`State::send_home`] for one rank; whether any had to leave it.
    fn send_home_from(&mut self, rank: usize) -> bool {
        let mut moved: Vec<Entry> = self.waiting[rank].arrivals(rank).collect();
        if moved.is_empty() {
            return false;
        }
        let blocks = |entries: &mut dyn Iterator<Item = Entry>| -> u64 {
            entries.map(|entry| u64::from(self.request(entry))).sum()
        };
        let (free, slots) = (self.free(rank, true), self.before.slots[rank]);
        let slots = slots.saturating_sub(self.running_on(rank));
        let all = blocks(&mut self.waiting[rank].all(rank));
        if all <= free && self.waiting_on(rank) <= slots {
            return false;
        }
        // Its own come first.
        let own = self.waiting_on(rank) - moved.len() as u32;
        let mut slots = slots.saturating_sub(own);
        let own = all - blocks(&mut moved.iter().copied());
        if own > free {
            slots = 0;
        }
        let mut free = free.saturating_sub(own);
        moved.sort_unstable_by_key(|&entry| (self.request(entry), entry));
        let fit = moved.iter().take(slots as usize).take_while(|&&entry| {
            let left = free.checked_sub(self.request(entry).into());
            free = left.unwrap_or(0);
            left.is_some()
        });
        let placed = fit.count();
        for entry in moved.drain(placed..) {
            self.as_planned = false;
            self.waiting[rank].came.retain(|&other| other != entry);
            self.waiting[entry.0 as usize].came.push(entry);
        }
        true
    }

    /// Whether every running sequence finds a slot and blocks while its destination
    /// still has all of its own.
    fn possible(&self) -> bool {
        (0..self.before.len()).all(|rank| {
            let count = self.running[rank].arrivals(rank).count() as u32;
            let running = self.before.running[rank].saturating_add(count);
            count == 0
                || running <= self.before.slots[rank]
                    && self.received[rank] <= self.before.free[rank]
        })
    }

    fn position(&self, rank: u32) -> usize {
        let loads = &self.before.loads;
        match loads.last() {
            // Nearly always, and a search would look at many loads.
            Some(last) if last.rank as usize + 1 == loads.len() => rank as usize,
            _ => loads.partition_point(|load| load.rank < rank),
        }
    }

    fn sequence(&self, (origin, index): Entry) -> SequenceLoad {
        match &self.before.loads[origin as usize].sequences {
            Some(listed) => listed[index as usize],
            None => SequenceLoad {
                kv_blocks: 1,
                movable: true,
            },
        }
    }

    /// Blocks of a waiting request.
    fn request(&self, (origin, index): Entry) -> u32 {
        let listed = &self.before.loads[origin as usize].waiting_kv_blocks;
        listed.as_ref().map_or(1, |blocks| blocks[index as usize])
    }

    pub(super) fn running_on(&self, rank: usize) -> u32 {
        let held = &self.running[rank];
        self.before.running[rank] - held.first + held.count()
    }

    pub(super) fn waiting_on(&self, rank: usize) -> u32 {
        self.waiting[rank].count()
    }

    /// Free blocks of a rank, with those that it gets back as a source if they are
    /// `credited`.
    pub(super) fn free(&self, rank: usize, credited: bool) -> u64 {
        let back = if credited { self.given[rank] } else { 0 };
        match self.before.free[rank] {
            UNLIMITED => UNLIMITED,
            free => (free + back).saturating_sub(self.received[rank] + self.before.owed[rank]),
        }
    }

    /// Movable sequences on a rank: only such ones come and go.
    pub(super) fn movable(&self, rank: usize) -> u32 {
        let held = &self.running[rank];
        self.before.movable[rank] + held.came.len() as u32 - held.gone.len() as u32
    }

    /// The listed sequences of a rank.
    pub(super) fn sequences(&self, rank: usize) -> Vec<SequenceLoad> {
        let all = self.running[rank].all(rank);
        all.map(|entry| self.sequence(entry)).collect()
    }

    /// The blocks of each request that waits on a rank; `None` for one each.
    pub(super) fn requests(&self, rank: usize) -> Option<Cow<'a, [u32]>> {
        let held = &self.waiting[rank];
        if held.untouched() {
            return self.before.requests[rank].clone();
        }
        Some(held.all(rank).map(|entry| self.request(entry)).collect())
    }

    /// The moves from the group before to this one.
    pub(super) fn moves(&self) -> Vec<Move> {
        let mut moves = self.moves_of(&self.running, true);
        moves.extend(self.moves_of(&self.waiting, false));
        moves.sort_by_key(|m| (m.from, m.to, !m.needs_kv));
        moves
    }

    fn moves_of(&self, held: &[Held], needs_kv: bool) -> Vec<Move> {
        let mut entries: Vec<(u32, u32, u32)> = Vec::new();
        for (to, held) in held.iter().enumerate() {
            let arrivals = held.arrivals(to);
            entries.extend(arrivals.map(|(from, index)| (from, to as u32, index)));
        }
        entries.sort_unstable();
        let chunks = entries.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1));
        let to_move = |chunk: &[(u32, u32, u32)]| {
            let source = self.before.loads[chunk[0].0 as usize];
            let named = !needs_kv || source.sequences.is_some();
            let indices = chunk.iter().filter(|_| named).map(|entry| entry.2);
            Move {
                from: source.rank,
                to: self.before.loads[chunk[0].1 as usize].rank,
                count: chunk.len() as u32,
                sequences: indices.collect(),
                needs_kv,
            }
        };
        chunks.map(to_move).collect()
    }
}
