//! Which conversation gives way when there are more than may be kept.

/// An idle conversation is certainly forgotten after this many acquires, if it was not forgotten
/// earlier; without a size limit, never before.
const UNLIMITED_IDLE: u64 = 1 << 18;
/// A conversation is taken as over when it has been idle for this many mean gaps between turns.
const OVER_AFTER_GAPS: f64 = 2.0;
/// The same without a size limit, where keeping costs nothing but memory.
const OVER_AFTER_GAPS_UNLIMITED: f64 = 4.0;
/// Weight of one observation in the moving averages.
const GAP_WEIGHT: f64 = 1.0 / 256.0;
const LOSS_WEIGHT: f64 = 1.0 / 64.0;
/// Share of returning conversations that find their pin gone, above which the cache is too small
/// for the conversations that live.
const TOO_SMALL: f64 = 1.0 / 128.0;
/// Remembered evictions per kept conversation.
const GHOSTS_PER_PIN: usize = 4;

/// A forgotten conversation: enough to recognise its return.
#[derive(Debug, Clone, Copy, Default)]
struct Ghost {
    tag: u32,
    stamp: u32,
}

/// Decides between the oldest conversation and the newest.
///
/// Plain LRU keeps nothing of a set that is a little larger than the cache and visited in turn:
/// each conversation is evicted just before it returns. So the state watches for conversations that
/// return after their eviction. While there are none, the least recently used gives way. While
/// there are some, an old conversation gives way only once it has been idle for longer than two
/// mean gaps between turns, and otherwise the newcomer does: what fits in the cache keeps its pins.
///
/// Time is counted in acquires.
#[derive(Debug)]
pub(super) struct Retention {
    limit: Option<usize>,
    clock: u64,
    mean_gap: f64,
    gaps_seen: u64,
    /// Moving share of returns that came after an eviction.
    loss: f64,
    ghosts: Vec<Ghost>,
}

impl Retention {
    pub(super) fn new(limit: Option<usize>) -> Self {
        Self {
            limit,
            clock: 0,
            mean_gap: 0.0,
            gaps_seen: 0,
            loss: 0.0,
            ghosts: Vec::new(),
        }
    }

    /// Largest number of conversations to keep, those in flight apart.
    pub(super) fn limit(&self) -> Option<usize> {
        self.limit
    }

    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(super) fn now(&self) -> u64 {
        self.clock
    }

    /// A kept conversation took another turn after `idle` acquires.
    pub(super) fn returned(&mut self, idle: u64) {
        self.observe_gap(idle);
        self.loss -= self.loss * LOSS_WEIGHT;
    }

    /// A conversation without an entry came: new, or returning after its eviction.
    pub(super) fn arrived(&mut self, key: [u64; 2]) {
        let Some(place) = self.ghost_place(key) else {
            return;
        };
        let ghost = self.ghosts[place];
        if ghost.stamp != 0 && ghost.tag == tag(key) {
            self.ghosts[place] = Ghost::default();
            self.observe_gap(u64::from((self.clock as u32).wrapping_sub(ghost.stamp)));
            self.loss += (1.0 - self.loss) * LOSS_WEIGHT;
        }
    }

    /// A conversation last active at `stamp` was forgotten.
    pub(super) fn evicted(&mut self, key: [u64; 2], stamp: u64) {
        let Some(limit) = self.limit else { return };
        if self.ghosts.is_empty() {
            let size = (limit.max(1) * GHOSTS_PER_PIN).next_power_of_two();
            self.ghosts.resize(size, Ghost::default());
        }
        if let Some(place) = self.ghost_place(key) {
            self.ghosts[place] = Ghost {
                tag: tag(key),
                stamp: (stamp as u32).max(1),
            };
        }
    }

    /// Whether newcomers give way to those that are kept.
    pub(super) fn is_too_small(&self) -> bool {
        self.loss > TOO_SMALL
    }

    /// Whether a conversation last active at `stamp` has been idle for as long as any is kept.
    pub(super) fn is_long_idle(&self, stamp: u64) -> bool {
        self.clock.saturating_sub(stamp) > UNLIMITED_IDLE
    }

    /// Whether a conversation last active at `stamp` may be forgotten.
    pub(super) fn is_over(&self, stamp: u64) -> bool {
        let idle = self.clock.saturating_sub(stamp);
        match self.limit {
            None => {
                self.is_long_idle(stamp) && idle as f64 > OVER_AFTER_GAPS_UNLIMITED * self.mean_gap
            }
            Some(_) => !self.is_too_small() || idle as f64 > OVER_AFTER_GAPS * self.mean_gap,
        }
    }

    fn observe_gap(&mut self, gap: u64) {
        self.gaps_seen += 1;
        let weight = GAP_WEIGHT.max(1.0 / self.gaps_seen as f64);
        self.mean_gap += (gap as f64 - self.mean_gap) * weight;
    }

    fn ghost_place(&self, key: [u64; 2]) -> Option<usize> {
        let mask = self.ghosts.len().checked_sub(1)?;
        Some(key[0] as usize & mask)
    }
}

fn tag(key: [u64; 2]) -> u32 {
    key[1] as u32
}
