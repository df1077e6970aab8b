//! The router: places turns, counts what is in flight, forgets what is over.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use xxhash_rust::xxh3::xxh3_64;

use super::conversations::{Conversations, Key, Pin};
use super::loads::LoadIndex;
use super::policy::{LoadUnit, LoadView, Policy, PolicyOptions};
use super::servers::{Servers, Standing};
use super::{Reason, RouteError};

/// How a [`Router`] behaves.
#[derive(Debug)]
pub struct RouterConfig {
    /// Whether a pin is kept.
    pub policy: Box<dyn Policy>,
    /// A policy that is asked and counted, but not followed.
    pub shadow: Option<Box<dyn Policy>>,
    /// Choose by hash of the id over the full pool and ignore loads.
    pub full_determinism: bool,
    /// Conversations to keep beside those in flight; `None`: as many as live.
    pub max_conversations: Option<usize>,
    /// Seed of the choice among equally loaded servers.
    pub seed: u64,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self {
            policy: Box::new(super::policy::Margin::new(
                PolicyOptions::default().affinity_break_margin,
            )),
            shadow: None,
            full_determinism: false,
            max_conversations: None,
            seed: 0,
        }
    }
}

/// One turn of a conversation.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Id of the conversation.
    pub request_id: &'a str,
    /// Load that the request declares (tokens or KV blocks), at most `u32::MAX`; only policies that
    /// weigh use it.
    pub weight: u64,
    /// Hash to use instead of the stable one when `full_determinism` is on.
    pub hash: Option<i64>,
}

impl<'a> Request<'a> {
    /// A request of weight 1 with the stable hash.
    pub fn new(request_id: &'a str) -> Self {
        Self {
            request_id,
            weight: 1,
            hash: None,
        }
    }
}

/// Where a turn goes, and why. Slots are indices for [`Router::server_id`]; a slot is reused after
/// its server has left the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// The chosen server.
    pub slot: u32,
    /// Why.
    pub reason: Reason,
    /// Load of the chosen server before this request, in the policy's unit.
    pub load: u64,
    /// Least load in the pool before this request, in the policy's unit.
    pub min_load: u64,
    /// The server of the pin that was broken.
    pub broken_from: Option<u32>,
}

/// What the shadow policy would have done with the pins that it was asked about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShadowCounts {
    /// Pins it would have kept.
    pub kept: u64,
    /// Pins it would have broken.
    pub broken: u64,
    /// Pins about which the two policies differ.
    pub differs: u64,
}

/// Sticky sessions over servers. See the [module](super) for costs.
#[derive(Debug)]
pub struct Router {
    config: RouterConfig,
    servers: Servers,
    /// Requests in flight by slot.
    requests: LoadIndex,
    /// Declared load by slot, if a policy weighs.
    declared: Option<LoadIndex>,
    conversations: Conversations,
    rng: ChaCha8Rng,
    reasons: [u64; Reason::ALL.len()],
    shadow: ShadowCounts,
}

impl Router {
    /// A router over `servers`, which may be empty.
    pub fn new<S: AsRef<str>>(servers: impl IntoIterator<Item = S>, config: RouterConfig) -> Self {
        let weighs = |policy: &dyn Policy| policy.unit() == LoadUnit::Declared;
        let declared =
            weighs(config.policy.as_ref()) || config.shadow.as_deref().is_some_and(weighs);
        let mut router = Self {
            servers: Servers::default(),
            requests: LoadIndex::default(),
            declared: declared.then(LoadIndex::default),
            conversations: Conversations::new(config.max_conversations),
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            reasons: [0; Reason::ALL.len()],
            shadow: ShadowCounts::default(),
            config,
        };
        for id in servers {
            router.add_server(id.as_ref());
        }
        router
    }

    /// Places one turn and counts it as in flight until [`Router::release`].
    ///
    /// # Errors
    /// [`RouteError::NoServers`] if the pool is empty.
    pub fn acquire(&mut self, request: Request<'_>) -> Result<Decision, RouteError> {
        if self.servers.order().is_empty() {
            return Err(RouteError::NoServers);
        }
        let weight = request.weight.min(u64::from(u32::MAX));
        let index = self.conversations.turn(Key::of(request.request_id));
        let min_load = self.loads(self.config.policy.unit()).min();
        let (slot, reason, broken_from) = if self.config.full_determinism {
            (self.by_hash(request), Reason::Deterministic, None)
        } else {
            self.by_pin_and_load(index)
        };
        let load = self.loads(self.config.policy.unit()).get(slot);
        if reason != Reason::Deterministic {
            let incarnation = self.servers.get(slot).incarnation;
            self.conversations
                .set_pin(index, Some(Pin { slot, incarnation }));
        }
        self.conversations
            .depart(index, slot, request.weight, &self.servers);
        self.servers.acquired(slot);
        self.requests.add(slot, 1);
        if let Some(declared) = &mut self.declared {
            declared.add(slot, weight);
        }
        self.conversations.trim(&self.servers);
        self.reasons[reason as usize] += 1;
        Ok(Decision {
            slot,
            reason,
            load,
            min_load,
            broken_from,
        })
    }

    /// Takes back one request. With a `request_id`, exactly that conversation's oldest request on
    /// this server, and nothing if there is none; without, any one.
    ///
    /// Unknown servers, unknown requests and surplus releases are ignored: a count never falls
    /// below 0, and a request of an earlier life of the server does not touch the present count.
    pub fn release(&mut self, server_id: &str, request_id: Option<&str>) {
        let Some(slot) = self.servers.find_any(server_id) else {
            return;
        };
        match request_id {
            Some(request_id) => self.release_known(slot, Key::of(request_id)),
            None => self.release_anonymous(slot),
        }
        self.conversations.trim(&self.servers);
    }

    /// Adds a server with nothing in flight. `false` if it is in the pool already; then nothing
    /// changes.
    pub fn add_server(&mut self, id: &str) -> bool {
        let Some(slot) = self.servers.add(id) else {
            return false;
        };
        self.requests.insert(slot);
        if let Some(declared) = &mut self.declared {
            declared.insert(slot);
        }
        true
    }

    /// Takes a server out of the pool. `false` if it is not there.
    pub fn remove_server(&mut self, id: &str) -> bool {
        let Some(slot) = self.servers.remove(id) else {
            return false;
        };
        self.requests.remove(slot);
        if let Some(declared) = &mut self.declared {
            declared.remove(slot);
        }
        true
    }

    /// Slot of a server in the pool.
    pub fn slot(&self, id: &str) -> Option<u32> {
        self.servers.find(id)
    }

    /// Id of the server in `slot`.
    pub fn server_id(&self, slot: u32) -> &str {
        &self.servers.get(slot).id
    }

    /// Slots of the pool in the order in which the servers were added.
    pub fn slots(&self) -> &[u32] {
        self.servers.order()
    }

    /// Requests in flight on a server of the pool.
    pub fn inflight(&self, id: &str) -> Option<u64> {
        self.slot(id).map(|slot| self.requests.get(slot))
    }

    /// Requests in flight by slot of the pool, in the order of [`Router::slots`].
    pub fn inflight_by_slot(&self) -> impl Iterator<Item = (u32, u64)> {
        self.slots()
            .iter()
            .map(|slot| (*slot, self.requests.get(*slot)))
    }

    /// Declared load by slot, if a policy weighs.
    pub fn declared_by_slot(&self) -> Option<impl Iterator<Item = (u32, u64)>> {
        let declared = self.declared.as_ref()?;
        Some(self.slots().iter().map(|slot| (*slot, declared.get(*slot))))
    }

    /// Requests in flight on all servers of the pool.
    pub fn total_inflight(&self) -> u64 {
        self.inflight_by_slot().map(|(_, load)| load).sum()
    }

    /// Sets what counts as in flight on a server. What is known of single requests stays, so their
    /// releases still count down from here.
    ///
    /// # Errors
    /// [`RouteError::UnknownServer`] if it is not in the pool.
    pub fn set_inflight(&mut self, id: &str, load: u64) -> Result<(), RouteError> {
        let slot = self
            .slot(id)
            .ok_or_else(|| RouteError::UnknownServer(id.to_owned()))?;
        self.requests.set(slot, load);
        Ok(())
    }

    /// Drops all pins and returns their number; requests in flight stay counted.
    pub fn clear_pins(&mut self) -> usize {
        self.conversations.clear_pins(&self.servers)
    }

    /// Number of pinned conversations.
    pub fn pinned(&self) -> usize {
        self.conversations.pinned()
    }

    /// Decisions so far by reason, in the order of [`Reason::ALL`].
    pub fn reasons(&self) -> [u64; Reason::ALL.len()] {
        self.reasons
    }

    /// What the shadow policy would have done, if there is one.
    pub fn shadow(&self) -> Option<ShadowCounts> {
        self.config.shadow.as_ref().map(|_| self.shadow)
    }

    /// How the router was set up.
    pub fn config(&self) -> &RouterConfig {
        &self.config
    }

    fn loads(&self, unit: LoadUnit) -> &LoadIndex {
        of_unit(unit, &self.declared, &self.requests)
    }

    fn by_hash(&self, request: Request<'_>) -> u32 {
        let order = self.servers.order();
        let index = match request.hash {
            Some(hash) => hash.rem_euclid(order.len() as i64) as usize,
            None => (xxh3_64(request.request_id.as_bytes()) % order.len() as u64) as usize,
        };
        order[index]
    }

    fn by_pin_and_load(&mut self, index: u32) -> (u32, Reason, Option<u32>) {
        let pin = self.conversations.pin(index);
        let (reason, broken_from) = match pin.filter(|pin| self.is_valid(*pin)) {
            Some(pin) => {
                let kept = self.keeps(self.config.policy.as_ref(), pin.slot);
                if let Some(shadow) = &self.config.shadow {
                    let shadow_kept = self.keeps(shadow.as_ref(), pin.slot);
                    self.shadow.kept += u64::from(shadow_kept);
                    self.shadow.broken += u64::from(!shadow_kept);
                    self.shadow.differs += u64::from(shadow_kept != kept);
                }
                if kept {
                    return (pin.slot, Reason::Kept, None);
                }
                (Reason::Broken, Some(pin.slot))
            }
            None if pin.is_some() => (Reason::ServerGone, None),
            None => (Reason::New, None),
        };
        let unit = self.config.policy.unit();
        let least = of_unit(unit, &self.declared, &self.requests).pick_least(&mut self.rng);
        (
            least.unwrap_or(self.servers.order()[0]),
            reason,
            broken_from,
        )
    }

    fn is_valid(&self, pin: Pin) -> bool {
        let server = self.servers.get(pin.slot);
        server.present && server.incarnation == pin.incarnation
    }

    fn keeps(&self, policy: &dyn Policy, slot: u32) -> bool {
        let loads = self.loads(policy.unit());
        policy.keeps(LoadView {
            pinned: loads.get(slot),
            min: loads.min(),
            max: loads.max(),
        })
    }

    fn release_known(&mut self, slot: u32, key: Key) {
        let Some((epoch, weight)) = self.conversations.arrive(key, slot, &self.servers) else {
            return;
        };
        match self.servers.standing(slot, epoch) {
            Standing::Current => {
                self.servers.released(slot);
                self.requests.sub(slot, 1);
                if let Some(declared) = &mut self.declared {
                    declared.sub(slot, weight);
                }
            }
            Standing::Orphaned => self.servers.released_orphan(slot, epoch),
            Standing::Over => {}
        }
    }

    fn release_anonymous(&mut self, slot: u32) {
        let outstanding = u64::from(self.servers.get(slot).outstanding);
        if self.servers.released_anonymously(slot) {
            self.requests.sub(slot, 1);
            if let Some(declared) = &mut self.declared {
                let share = declared.get(slot).div_ceil(outstanding.max(1));
                declared.sub(slot, share);
            }
        }
    }
}

fn of_unit<'a>(
    unit: LoadUnit,
    declared: &'a Option<LoadIndex>,
    requests: &'a LoadIndex,
) -> &'a LoadIndex {
    match (unit, declared) {
        (LoadUnit::Declared, Some(declared)) => declared,
        _ => requests,
    }
}
