//! The pool: which servers there are, and which requests in flight belong to which life of a server.

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

/// Requests of an earlier life of a server that have not come back.
#[derive(Debug)]
struct Orphans {
    epoch: u32,
    outstanding: u32,
}

/// One server id. Its slot stays taken after removal while requests are still out.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) id: Box<str>,
    pub(super) present: bool,
    /// Changes when the id is added again: pins of an earlier life do not count.
    pub(super) incarnation: u32,
    /// Changes when the id is added again and when anonymous releases have emptied the server, so
    /// that a request's record says whether it still is in flight.
    pub(super) epoch: u32,
    /// Requests acquired in this epoch and not released.
    pub(super) outstanding: u32,
    /// Whether a release without a request id came in this epoch.
    anonymous: bool,
    orphans: Vec<Orphans>,
}

/// Whether a recorded request is still in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// On the server as it is now.
    Current,
    /// On an earlier life of the server.
    Orphaned,
    /// Over: anonymous releases have accounted for it.
    Over,
}

/// Slots by server id.
#[derive(Debug, Default)]
pub(super) struct Servers {
    slots: Vec<Server>,
    free: Vec<u32>,
    by_id: HashTable<u32>,
    /// Present slots in the order in which they were added.
    order: Vec<u32>,
    last_epoch: u32,
    last_incarnation: u32,
}

impl Servers {
    /// Adds `id`; `None` if it is in the pool already.
    pub(super) fn add(&mut self, id: &str) -> Option<u32> {
        let slot = match self.find_any(id) {
            Some(slot) if self.slots[slot as usize].present => return None,
            Some(slot) => slot,
            None => self.new_slot(id),
        };
        self.last_epoch = self.last_epoch.wrapping_add(1);
        self.last_incarnation = self.last_incarnation.wrapping_add(1);
        let server = &mut self.slots[slot as usize];
        server.present = true;
        server.incarnation = self.last_incarnation;
        server.epoch = self.last_epoch;
        self.order.push(slot);
        Some(slot)
    }

    /// Takes `id` out of the pool; `None` if it is not there.
    pub(super) fn remove(&mut self, id: &str) -> Option<u32> {
        let slot = self.find(id)?;
        self.order.retain(|other| *other != slot);
        let server = &mut self.slots[slot as usize];
        server.present = false;
        if server.outstanding > 0 {
            let (epoch, outstanding) = (server.epoch, server.outstanding);
            server.orphans.push(Orphans { epoch, outstanding });
            server.outstanding = 0;
        }
        server.anonymous = false;
        self.drop_if_unused(slot);
        Some(slot)
    }

    /// The slot of a server in the pool.
    pub(super) fn find(&self, id: &str) -> Option<u32> {
        self.find_any(id)
            .filter(|slot| self.slots[*slot as usize].present)
    }

    /// The slot of a server that is in the pool, or has left it with requests in flight.
    pub(super) fn find_any(&self, id: &str) -> Option<u32> {
        let slots = &self.slots;
        self.by_id
            .find(hash(id), |slot| *slots[*slot as usize].id == *id)
            .copied()
    }

    pub(super) fn get(&self, slot: u32) -> &Server {
        &self.slots[slot as usize]
    }

    /// Present slots in the order in which they were added.
    pub(super) fn order(&self) -> &[u32] {
        &self.order
    }

    pub(super) fn standing(&self, slot: u32, epoch: u32) -> Standing {
        let server = &self.slots[slot as usize];
        if server.present && server.epoch == epoch {
            Standing::Current
        } else if server.orphans.iter().any(|o| o.epoch == epoch) {
            Standing::Orphaned
        } else {
            Standing::Over
        }
    }

    /// Whether the requests of this epoch that have come back are known one by one, so that those
    /// on record are certainly out.
    pub(super) fn knows_requests(&self, slot: u32, epoch: u32) -> bool {
        self.standing(slot, epoch) == Standing::Current && !self.slots[slot as usize].anonymous
    }

    pub(super) fn acquired(&mut self, slot: u32) {
        self.slots[slot as usize].outstanding += 1;
    }

    /// A request of the present epoch has come back and said which it is.
    pub(super) fn released(&mut self, slot: u32) {
        let server = &mut self.slots[slot as usize];
        server.outstanding = server.outstanding.saturating_sub(1);
        self.renew_if_emptied(slot);
    }

    /// A request of an earlier life has come back.
    pub(super) fn released_orphan(&mut self, slot: u32, epoch: u32) {
        let orphans = &mut self.slots[slot as usize].orphans;
        if let Some(place) = orphans.iter().position(|o| o.epoch == epoch) {
            orphans[place].outstanding -= 1;
            if orphans[place].outstanding == 0 {
                orphans.remove(place);
            }
        }
        self.drop_if_unused(slot);
    }

    /// A request has come back without saying which. The oldest life is assumed, since requests
    /// come back roughly in order; `true` if it belongs to the server as it is now.
    pub(super) fn released_anonymously(&mut self, slot: u32) -> bool {
        let server = &mut self.slots[slot as usize];
        if let Some(oldest) = server.orphans.first().map(|o| o.epoch) {
            self.released_orphan(slot, oldest);
            return false;
        }
        server.outstanding = server.outstanding.saturating_sub(1);
        server.anonymous = true;
        self.renew_if_emptied(slot);
        true
    }

    /// Once anonymous releases have emptied a server, the records that they left behind are void.
    fn renew_if_emptied(&mut self, slot: u32) {
        let server = &mut self.slots[slot as usize];
        if server.anonymous && server.outstanding == 0 {
            self.last_epoch = self.last_epoch.wrapping_add(1);
            server.epoch = self.last_epoch;
            server.anonymous = false;
        }
    }

    fn new_slot(&mut self, id: &str) -> u32 {
        let server = Server {
            id: id.into(),
            present: false,
            incarnation: 0,
            epoch: 0,
            outstanding: 0,
            anonymous: false,
            orphans: Vec::new(),
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = server;
                slot
            }
            None => {
                self.slots.push(server);
                self.slots.len() as u32 - 1
            }
        };
        let slots = &self.slots;
        self.by_id
            .insert_unique(hash(id), slot, |other| hash(&slots[*other as usize].id));
        slot
    }

    fn drop_if_unused(&mut self, slot: u32) {
        let server = &self.slots[slot as usize];
        if !server.present && server.orphans.is_empty() {
            if let Ok(found) = self
                .by_id
                .find_entry(hash(&server.id), |other| *other == slot)
            {
                found.remove();
            }
            self.free.push(slot);
        }
    }
}

fn hash(id: &str) -> u64 {
    xxh3_64(id.as_bytes())
}
