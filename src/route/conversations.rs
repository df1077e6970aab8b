//! What is known of each conversation: its pin and its requests in flight.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_128;

use super::retention::Retention;
use super::servers::{Servers, Standing};

const NONE: u32 = u32::MAX;
/// Entries looked at per operation when something has to give way; the rest is left to later ones.
const TRIM_STEPS: usize = 8;
/// Queue nodes that may be stale before it is worth looking.
const COMPACT_ABOVE: usize = 1024;

/// A conversation by a 128-bit digest of its id: 16 bytes instead of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key([u64; 2]);

impl Key {
    pub(super) fn of(request_id: &str) -> Self {
        let digest = xxh3_128(request_id.as_bytes());
        Self([digest as u64, (digest >> 64) as u64])
    }

    /// The part of the digest that tables use.
    fn hash(self) -> u64 {
        self.0[0]
    }
}

/// Requests of one conversation in flight on one life of a server.
#[derive(Debug, Clone, Copy)]
struct Flight {
    slot: u32,
    count: u32,
    epoch: u32,
    weight: u32,
}

impl Flight {
    const EMPTY: Self = Self {
        slot: NONE,
        count: 0,
        epoch: 0,
        weight: 0,
    };
}

/// A further flight of a conversation that is in flight on several servers at once.
#[derive(Debug, Clone, Copy)]
struct Further {
    flight: Flight,
    next: u32,
}

/// A server that a conversation is pinned to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pin {
    pub(super) slot: u32,
    pub(super) incarnation: u32,
}

impl Pin {
    const ABSENT: Self = Self {
        slot: NONE,
        incarnation: 0,
    };
}

/// One cache line, so that a turn of a known conversation costs one miss beside the table's.
#[derive(Debug)]
#[repr(align(64))]
struct Conversation {
    key: Key,
    /// Oldest flight; `count` 0: none.
    flight: Flight,
    /// Later flights, in order.
    further: u32,
    on_probation: bool,
    pin: Pin,
    /// Last activity.
    stamp: u64,
    /// Place in the queue: last activity as the queue has it, or when it was last found in use. 0:
    /// the entry is free.
    queued: u64,
}

const _: () = assert!(size_of::<Conversation>() == 64);

/// Conversations by last activity. Activity does not touch the queue: what it has is corrected when
/// it comes to the front.
type Queue = BinaryHeap<Reverse<(u64, u32)>>;

/// All conversations that have a pin or a request in flight. Every operation but `clear_pins` is
/// O(1), amortised, apart from what has to give way: O(log conversations).
#[derive(Debug)]
pub(super) struct Conversations {
    by_key: HashTable<u32>,
    entries: Vec<Conversation>,
    free: Vec<u32>,
    further: Vec<Further>,
    further_free: Vec<u32>,
    /// Kept conversations by last activity.
    kept: Queue,
    /// Newcomers that came when the cache was full, kept while they are in flight.
    probation: Queue,
    pinned: usize,
    retention: Retention,
}

impl Conversations {
    pub(super) fn new(limit: Option<usize>) -> Self {
        Self {
            by_key: HashTable::new(),
            entries: Vec::new(),
            free: Vec::new(),
            further: Vec::new(),
            further_free: Vec::new(),
            kept: Queue::new(),
            probation: Queue::new(),
            pinned: 0,
            retention: Retention::new(limit),
        }
    }

    /// Number of pins.
    pub(super) fn pinned(&self) -> usize {
        self.pinned
    }

    /// The entry of a conversation that takes a turn now, made if there is none.
    pub(super) fn turn(&mut self, key: Key) -> u32 {
        let now = self.retention.tick();
        if let Some(index) = self.find(key) {
            let entry = &mut self.entries[index as usize];
            let idle = now - entry.stamp;
            entry.stamp = now;
            if entry.pin != Pin::ABSENT {
                self.retention.returned(idle);
            }
            return index;
        }
        self.retention.arrived(key.0);
        let full = self
            .retention
            .limit()
            .is_some_and(|limit| self.by_key.len() >= limit);
        let entry = Conversation {
            key,
            flight: Flight::EMPTY,
            further: NONE,
            on_probation: full && self.retention.is_too_small(),
            pin: Pin::ABSENT,
            stamp: now,
            queued: now,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        let entries = &self.entries;
        self.by_key
            .insert_unique(key.hash(), index, |i| entries[*i as usize].key.hash());
        self.enqueue(index);
        index
    }

    fn find(&self, key: Key) -> Option<u32> {
        self.by_key
            .find(key.hash(), |i| self.entries[*i as usize].key == key)
            .copied()
    }

    pub(super) fn pin(&self, index: u32) -> Option<Pin> {
        Some(self.entries[index as usize].pin).filter(|pin| *pin != Pin::ABSENT)
    }

    pub(super) fn set_pin(&mut self, index: u32, pin: Option<Pin>) {
        let new = pin.unwrap_or(Pin::ABSENT);
        let old = std::mem::replace(&mut self.entries[index as usize].pin, new);
        self.pinned += usize::from(new != Pin::ABSENT);
        self.pinned -= usize::from(old != Pin::ABSENT);
    }

    /// Records a request in flight.
    pub(super) fn depart(&mut self, index: u32, slot: u32, weight: u64, servers: &Servers) {
        let epoch = servers.get(slot).epoch;
        self.drop_over(index, servers);
        let departing = Flight {
            slot,
            count: 1,
            epoch,
            weight: u32::try_from(weight).unwrap_or(u32::MAX),
        };
        let entry = &mut self.entries[index as usize];
        if entry.flight.count == 0 {
            entry.flight = departing;
            return;
        }
        if join(&mut entry.flight, departing) {
            return;
        }
        let mut link = entry.further;
        let mut last = NONE;
        while link != NONE {
            let further = &mut self.further[link as usize];
            if join(&mut further.flight, departing) {
                return;
            }
            last = link;
            link = further.next;
        }
        let node = Further {
            flight: departing,
            next: NONE,
        };
        let place = match self.further_free.pop() {
            Some(place) => {
                self.further[place as usize] = node;
                place
            }
            None => {
                self.further.push(node);
                self.further.len() as u32 - 1
            }
        };
        match last {
            NONE => self.entries[index as usize].further = place,
            last => self.further[last as usize].next = place,
        }
    }

    /// Takes back the oldest request in flight of `key` on `slot`: the epoch in which it was
    /// acquired and its weight. `None` if no such request is out.
    pub(super) fn arrive(&mut self, key: Key, slot: u32, servers: &Servers) -> Option<(u32, u64)> {
        let index = self.find(key)?;
        self.drop_over(index, servers);
        let entry = &mut self.entries[index as usize];
        let found = if entry.flight.count > 0 && entry.flight.slot == slot {
            take_one(&mut entry.flight)
        } else {
            let mut link = entry.further;
            loop {
                let further = self.further.get_mut(link as usize)?;
                if further.flight.count > 0 && further.flight.slot == slot {
                    break take_one(&mut further.flight);
                }
                link = further.next;
            }
        };
        self.drop_over(index, servers);
        if self.entries[index as usize].flight.count == 0 {
            let over_limit = self
                .retention
                .limit()
                .is_some_and(|n| self.by_key.len() > n);
            let Conversation {
                pin, on_probation, ..
            } = self.entries[index as usize];
            if pin == Pin::ABSENT || (on_probation && over_limit && !self.oldest_is_over()) {
                self.forget(index);
            }
        }
        Some(found)
    }

    /// Lets conversations give way if there are too many, or if they are over.
    pub(super) fn trim(&mut self, servers: &Servers) {
        for _ in 0..TRIM_STEPS {
            let over = self.oldest_is_over();
            let too_many = match self.retention.limit() {
                Some(limit) => self.by_key.len() > limit,
                None => over,
            };
            if !too_many {
                break;
            }
            let newcomer = (!over).then(|| self.front(true)).flatten();
            let Some(candidate) = newcomer.or_else(|| self.front(false)) else {
                break;
            };
            self.drop_over(candidate, servers);
            if self.is_in_use(candidate, servers) {
                // As good as just used.
                self.entries[candidate as usize].queued = self.retention.now();
                self.enqueue(candidate);
            } else {
                let was_kept = !self.entries[candidate as usize].on_probation;
                self.forget(candidate);
                if was_kept {
                    self.promote();
                }
            }
        }
        self.compact();
    }

    /// Whether a conversation is in flight. Where requests come back without an id, its own are
    /// taken as over after so long that memory would grow otherwise.
    fn is_in_use(&self, index: u32, servers: &Servers) -> bool {
        let entry = &self.entries[index as usize];
        let mut flight = entry.flight;
        let mut link = entry.further;
        while flight.count > 0 {
            let is_known = servers.knows_requests(flight.slot, flight.epoch);
            if is_known || !self.retention.is_long_idle(entry.stamp) {
                return true;
            }
            let Some(Further {
                flight: next,
                next: after,
            }) = self.further.get(link as usize)
            else {
                break;
            };
            (flight, link) = (*next, *after);
        }
        false
    }

    /// Drops all pins; what is in flight stays known. Returns the number of pins dropped.
    pub(super) fn clear_pins(&mut self, servers: &Servers) -> usize {
        let cleared = self.pinned;
        let indices: Vec<u32> = self.by_key.iter().copied().collect();
        for index in indices {
            self.set_pin(index, None);
            self.drop_over(index, servers);
            if self.entries[index as usize].flight.count == 0 {
                self.remove(index);
            }
        }
        cleared
    }

    /// Whether the conversation that was idle for longest may be forgotten.
    fn oldest_is_over(&mut self) -> bool {
        // Whatever the queue has in front was active then or later, or was found in use.
        let may_be = |r: &Retention, q: &Queue| q.peek().is_some_and(|Reverse(f)| r.is_over(f.0));
        may_be(&self.retention, &self.kept)
            && self
                .front(false)
                .is_some_and(|i| self.retention.is_over(self.entries[i as usize].stamp))
    }

    /// The entry that was idle for longest, with the queue corrected up to it.
    fn front(&mut self, on_probation: bool) -> Option<u32> {
        loop {
            let Reverse((queued, index)) = *self.queue(on_probation).peek()?;
            let entry = &self.entries[index as usize];
            let in_queue = entry.queued == queued && entry.on_probation == on_probation;
            if in_queue && entry.stamp <= queued {
                return Some(index);
            }
            self.queue(on_probation).pop();
            if in_queue {
                self.requeue(index);
            }
        }
    }

    fn queue(&mut self, on_probation: bool) -> &mut Queue {
        if on_probation {
            &mut self.probation
        } else {
            &mut self.kept
        }
    }

    fn requeue(&mut self, index: u32) {
        self.entries[index as usize].queued = self.entries[index as usize].stamp;
        self.enqueue(index);
    }

    fn enqueue(&mut self, index: u32) {
        let Conversation {
            queued,
            on_probation,
            ..
        } = self.entries[index as usize];
        self.queue(on_probation).push(Reverse((queued, index)));
    }

    /// Drops what the queues have of entries that are no more, once that is most of them.
    fn compact(&mut self) {
        if self.kept.len() + self.probation.len() > 2 * self.by_key.len() + COMPACT_ABOVE {
            let entries = &self.entries;
            for (queue, on_probation) in [(&mut self.kept, false), (&mut self.probation, true)] {
                queue.retain(|Reverse((queued, index))| {
                    let entry = &entries[*index as usize];
                    entry.queued == *queued && entry.on_probation == on_probation
                });
            }
        }
    }

    /// A place has become free: the newcomer that has waited longest takes it.
    fn promote(&mut self) {
        if let Some(index) = self.front(true) {
            self.entries[index as usize].on_probation = false;
            self.requeue(index);
        }
    }

    fn forget(&mut self, index: u32) {
        let entry = &self.entries[index as usize];
        if entry.pin != Pin::ABSENT {
            self.retention.evicted(entry.key.0, entry.stamp);
        }
        self.remove(index);
    }

    fn remove(&mut self, index: u32) {
        self.set_pin(index, None);
        let hash = self.entries[index as usize].key.hash();
        if let Ok(found) = self.by_key.find_entry(hash, |i| *i == index) {
            found.remove();
        }
        self.entries[index as usize].queued = 0;
        self.free.push(index);
    }

    /// Drops flights that are over, keeping the order of the others.
    fn drop_over(&mut self, index: u32, servers: &Servers) {
        let over = |f: &Flight| f.count == 0 || servers.standing(f.slot, f.epoch) == Standing::Over;
        let mut previous = NONE;
        let mut link = self.entries[index as usize].further;
        while link != NONE {
            let Further { flight, next } = self.further[link as usize];
            if over(&flight) {
                match previous {
                    NONE => self.entries[index as usize].further = next,
                    previous => self.further[previous as usize].next = next,
                }
                self.further_free.push(link);
            } else {
                previous = link;
            }
            link = next;
        }
        let entry = &mut self.entries[index as usize];
        if entry.flight.count > 0 && !over(&entry.flight) {
            return;
        }
        entry.flight = Flight::EMPTY;
        if entry.further != NONE {
            let first = entry.further;
            let Further { flight, next } = self.further[first as usize];
            entry.flight = flight;
            entry.further = next;
            self.further_free.push(first);
        }
    }
}

/// Adds `departing` to `flight` if both are on the same life of the same server.
fn join(flight: &mut Flight, departing: Flight) -> bool {
    let same = flight.slot == departing.slot && flight.epoch == departing.epoch;
    if same {
        flight.count += 1;
        flight.weight = flight.weight.saturating_add(departing.weight);
    }
    same
}

/// Takes one request out of `flight`; requests of one flight share their weight evenly.
fn take_one(flight: &mut Flight) -> (u32, u64) {
    let weight = flight.weight / flight.count;
    flight.weight -= weight;
    flight.count -= 1;
    (flight.epoch, u64::from(weight))
}
