//! What is known of each conversation: its pin and its requests in flight.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use xxhash_rust::xxh3::xxh3_128;

use super::retention::Retention;
use super::servers::{Servers, Standing};

const NONE: u32 = u32::MAX;
/// Entries looked at per operation when something has to give way; the rest is left to later ones.
const TRIM_STEPS: usize = 8;

/// A conversation by a 128-bit digest of its id: 16 bytes instead of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key([u64; 2]);

impl Key {
    pub(super) fn of(request_id: &str) -> Self {
        let digest = xxh3_128(request_id.as_bytes());
        Self([digest as u64, (digest >> 64) as u64])
    }

    fn digest(self) -> u128 {
        u128::from(self.0[1]) << 64 | u128::from(self.0[0])
    }
}

impl std::hash::Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[0]);
    }
}

/// A key is a digest already.
#[derive(Debug, Default, Clone)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// Requests of one conversation in flight on one life of a server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flight {
    pub(super) slot: u32,
    count: u32,
    pub(super) epoch: u64,
    weight: u64,
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

#[derive(Debug)]
struct Conversation {
    key: Key,
    /// Oldest flight; `count` 0: none.
    flight: Flight,
    /// Later flights, in order.
    further: u32,
    pin: Option<Pin>,
    /// Neighbours in the list: towards the older, towards the newer.
    older: u32,
    newer: u32,
    on_probation: bool,
    stamp: u64,
}

const _: () = assert!(size_of::<Conversation>() <= 80);

#[derive(Debug, Clone, Copy)]
struct List {
    oldest: u32,
    newest: u32,
}

impl Default for List {
    fn default() -> Self {
        Self {
            oldest: NONE,
            newest: NONE,
        }
    }
}

/// All conversations that have a pin or a request in flight. Every operation is O(1).
#[derive(Debug)]
pub(super) struct Conversations {
    by_key: HashMap<Key, u32, BuildHasherDefault<KeyHasher>>,
    entries: Vec<Conversation>,
    free: Vec<u32>,
    further: Vec<Further>,
    further_free: Vec<u32>,
    /// Kept conversations by last activity.
    kept: List,
    /// Newcomers that came when the cache was full, kept while they are in flight.
    probation: List,
    pinned: usize,
    retention: Retention,
}

impl Conversations {
    pub(super) fn new(limit: Option<usize>) -> Self {
        Self {
            by_key: HashMap::default(),
            entries: Vec::new(),
            free: Vec::new(),
            further: Vec::new(),
            further_free: Vec::new(),
            kept: List::default(),
            probation: List::default(),
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
        if let Some(index) = self.by_key.get(&key).copied() {
            let entry = &mut self.entries[index as usize];
            let idle = now - entry.stamp;
            entry.stamp = now;
            if entry.pin.is_some() {
                self.retention.returned(idle);
            }
            self.unlink(index);
            self.link_newest(index);
            return index;
        }
        self.retention.arrived(key.digest());
        let full = self
            .retention
            .limit()
            .is_some_and(|limit| self.by_key.len() >= limit);
        let entry = Conversation {
            key,
            flight: Flight::EMPTY,
            further: NONE,
            pin: None,
            older: NONE,
            newer: NONE,
            on_probation: full && self.retention.is_too_small(),
            stamp: now,
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
        self.by_key.insert(key, index);
        self.link_newest(index);
        index
    }

    pub(super) fn pin(&self, index: u32) -> Option<Pin> {
        self.entries[index as usize].pin
    }

    pub(super) fn set_pin(&mut self, index: u32, pin: Option<Pin>) {
        let old = std::mem::replace(&mut self.entries[index as usize].pin, pin);
        self.pinned = self.pinned + usize::from(pin.is_some()) - usize::from(old.is_some());
    }

    /// Records a request in flight.
    pub(super) fn depart(&mut self, index: u32, slot: u32, weight: u64, servers: &Servers) {
        let epoch = servers.get(slot).epoch;
        self.drop_over(index, servers);
        let departing = Flight {
            slot,
            count: 1,
            epoch,
            weight,
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
    pub(super) fn arrive(&mut self, key: Key, slot: u32, servers: &Servers) -> Option<(u64, u64)> {
        let index = self.by_key.get(&key).copied()?;
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
        let entry = &self.entries[index as usize];
        if entry.flight.count == 0 {
            let over_limit = self
                .retention
                .limit()
                .is_some_and(|n| self.by_key.len() > n);
            if entry.pin.is_none() || (entry.on_probation && over_limit && !self.oldest_is_over()) {
                self.forget(index);
            }
        }
        Some(found)
    }

    /// Lets conversations give way if there are too many, or if they are over.
    pub(super) fn trim(&mut self, servers: &Servers) {
        for _ in 0..TRIM_STEPS {
            let oldest = self.kept.oldest;
            let too_many = match self.retention.limit() {
                Some(limit) => self.by_key.len() > limit,
                None => oldest != NONE && self.oldest_is_over(),
            };
            if !too_many {
                return;
            }
            let candidate =
                if oldest != NONE && (self.oldest_is_over() || self.probation.oldest == NONE) {
                    oldest
                } else {
                    self.probation.oldest
                };
            if candidate == NONE {
                return;
            }
            self.drop_over(candidate, servers);
            if self.entries[candidate as usize].flight.count > 0 {
                // In use: as good as just used.
                self.unlink(candidate);
                self.entries[candidate as usize].stamp = self.retention.now();
                self.link_newest(candidate);
            } else {
                let was_kept = !self.entries[candidate as usize].on_probation;
                self.forget(candidate);
                if was_kept {
                    self.promote();
                }
            }
        }
    }

    /// Drops all pins; what is in flight stays known. Returns the number of pins dropped.
    pub(super) fn clear_pins(&mut self, servers: &Servers) -> usize {
        let cleared = self.pinned;
        let indices: Vec<u32> = self.by_key.values().copied().collect();
        for index in indices {
            self.set_pin(index, None);
            self.drop_over(index, servers);
            if self.entries[index as usize].flight.count == 0 {
                self.remove(index);
            }
        }
        cleared
    }

    fn oldest_is_over(&self) -> bool {
        self.entries
            .get(self.kept.oldest as usize)
            .is_some_and(|oldest| self.retention.is_over(oldest.stamp))
    }

    /// A place has become free: the newcomer that has waited longest takes it.
    fn promote(&mut self) {
        let index = self.probation.oldest;
        if index != NONE {
            self.unlink(index);
            self.entries[index as usize].on_probation = false;
            self.link_newest(index);
        }
    }

    fn forget(&mut self, index: u32) {
        let entry = &self.entries[index as usize];
        if entry.pin.is_some() {
            self.retention.evicted(entry.key.digest(), entry.stamp);
        }
        self.remove(index);
    }

    fn remove(&mut self, index: u32) {
        self.set_pin(index, None);
        self.unlink(index);
        self.by_key.remove(&self.entries[index as usize].key);
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

    fn list(&mut self, on_probation: bool) -> &mut List {
        if on_probation {
            &mut self.probation
        } else {
            &mut self.kept
        }
    }

    fn link_newest(&mut self, index: u32) {
        let on_probation = self.entries[index as usize].on_probation;
        let newest = std::mem::replace(&mut self.list(on_probation).newest, index);
        let entry = &mut self.entries[index as usize];
        (entry.older, entry.newer) = (newest, NONE);
        match newest {
            NONE => self.list(on_probation).oldest = index,
            newest => self.entries[newest as usize].newer = index,
        }
    }

    fn unlink(&mut self, index: u32) {
        let Conversation {
            older,
            newer,
            on_probation,
            ..
        } = self.entries[index as usize];
        match older {
            NONE => self.list(on_probation).oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => self.list(on_probation).newest = older,
            newer => self.entries[newer as usize].older = older,
        }
    }
}

/// Adds `departing` to `flight` if both are on the same life of the same server.
fn join(flight: &mut Flight, departing: Flight) -> bool {
    let same = flight.slot == departing.slot && flight.epoch == departing.epoch;
    if same {
        flight.count += 1;
        flight.weight += departing.weight;
    }
    same
}

/// Takes one request out of `flight`; requests of one flight share their weight evenly.
fn take_one(flight: &mut Flight) -> (u64, u64) {
    let weight = flight.weight / u64::from(flight.count);
    flight.weight -= weight;
    flight.count -= 1;
    (flight.epoch, weight)
}
