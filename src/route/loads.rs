//! Servers grouped by load, so that the least loaded is found without a scan.

use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

const ABSENT: u32 = u32::MAX;
/// Loads below this have a bucket of their own in an array; counts of requests nearly always do.
const DENSE: usize = 64 * 64;

/// Load per server slot with the slots of equal load kept together.
///
/// | operation | loads below 4096 | above |
/// |---|---|---|
/// | `get` | O(1) | O(1) |
/// | `set`, `add`, `sub`, `insert`, `remove` | O(1) | O(log distinct loads) |
/// | `min`, `max`, `pick_least` | O(1) | O(log distinct loads) |
#[derive(Debug, Default)]
pub(super) struct LoadIndex {
    /// Load by slot; meaningless where `position` is `ABSENT`.
    load: Vec<u64>,
    /// Place of the slot within its bucket.
    position: Vec<u32>,
    /// Buckets of loads below `DENSE`, as many as were ever needed.
    low: Vec<Vec<u32>>,
    occupied: Occupied,
    high: BTreeMap<u64, Vec<u32>>,
}

/// Which of the low buckets are not empty: one bit each, and one bit for each word of them.
#[derive(Debug)]
struct Occupied {
    words: [u64; DENSE / 64],
    summary: u64,
}

impl Default for Occupied {
    fn default() -> Self {
        Self {
            words: [0; DENSE / 64],
            summary: 0,
        }
    }
}

impl Occupied {
    fn set(&mut self, bit: usize) {
        self.words[bit / 64] |= 1 << (bit % 64);
        self.summary |= 1 << (bit / 64);
    }

    fn clear(&mut self, bit: usize) {
        self.words[bit / 64] &= !(1 << (bit % 64));
        if self.words[bit / 64] == 0 {
            self.summary &= !(1 << (bit / 64));
        }
    }

    fn first(&self) -> Option<usize> {
        let word = (self.summary != 0).then(|| self.summary.trailing_zeros() as usize)?;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    fn last(&self) -> Option<usize> {
        let word = (self.summary != 0).then(|| 63 - self.summary.leading_zeros() as usize)?;
        Some(word * 64 + 63 - self.words[word].leading_zeros() as usize)
    }
}

impl LoadIndex {
    /// Adds `slot` with load 0.
    pub(super) fn insert(&mut self, slot: u32) {
        let index = slot as usize;
        if self.load.len() <= index {
            self.load.resize(index + 1, 0);
            self.position.resize(index + 1, ABSENT);
        }
        debug_assert_eq!(self.position[index], ABSENT);
        self.attach(slot, 0);
    }

    /// Takes `slot` out.
    pub(super) fn remove(&mut self, slot: u32) {
        self.detach(slot);
        self.position[slot as usize] = ABSENT;
    }

    pub(super) fn get(&self, slot: u32) -> u64 {
        self.load[slot as usize]
    }

    pub(super) fn set(&mut self, slot: u32, load: u64) {
        if self.load[slot as usize] != load {
            self.detach(slot);
            self.attach(slot, load);
        }
    }

    pub(super) fn add(&mut self, slot: u32, amount: u64) {
        self.set(slot, self.get(slot).saturating_add(amount));
    }

    /// Subtracts, stopping at 0.
    pub(super) fn sub(&mut self, slot: u32, amount: u64) {
        self.set(slot, self.get(slot).saturating_sub(amount));
    }

    pub(super) fn min(&self) -> u64 {
        let high = || self.high.first_key_value().map_or(0, |(load, _)| *load);
        self.occupied.first().map_or_else(high, |load| load as u64)
    }

    pub(super) fn max(&self) -> u64 {
        let low = || self.occupied.last().map_or(0, |load| load as u64);
        self.high
            .last_key_value()
            .map_or_else(low, |(load, _)| *load)
    }

    /// A slot of the least load, uniformly among equals. `rng` is used only if there is a tie.
    pub(super) fn pick_least(&self, rng: &mut ChaCha8Rng) -> Option<u32> {
        let bucket = match self.occupied.first() {
            Some(load) => &self.low[load],
            None => self.high.first_key_value()?.1,
        };
        match bucket.as_slice() {
            [only] => Some(*only),
            several => Some(several[below(several.len() as u64, rng) as usize]),
        }
    }

    fn attach(&mut self, slot: u32, load: u64) {
        let bucket = if load < DENSE as u64 {
            let bit = load as usize;
            if self.low.len() <= bit {
                self.low.resize_with(bit + 1, Vec::new);
            }
            self.occupied.set(bit);
            &mut self.low[bit]
        } else {
            self.high.entry(load).or_default()
        };
        self.position[slot as usize] = bucket.len() as u32;
        self.load[slot as usize] = load;
        bucket.push(slot);
    }

    fn detach(&mut self, slot: u32) {
        let load = self.load[slot as usize];
        let place = self.position[slot as usize] as usize;
        let is_low = load < DENSE as u64;
        let bucket = if is_low {
            &mut self.low[load as usize]
        } else {
            let Some(bucket) = self.high.get_mut(&load) else {
                return;
            };
            bucket
        };
        bucket.swap_remove(place);
        if let Some(moved) = bucket.get(place) {
            self.position[*moved as usize] = place as u32;
        }
        if bucket.is_empty() {
            if is_low {
                self.occupied.clear(load as usize);
            } else {
                self.high.remove(&load);
            }
        }
    }
}

/// A uniform number below `bound` without modulo bias (Lemire's widening multiplication).
fn below(bound: u64, rng: &mut ChaCha8Rng) -> u64 {
    let threshold = bound.wrapping_neg() % bound;
    loop {
        let wide = u128::from(rng.next_u64()) * u128::from(bound);
        if wide as u64 >= threshold {
            return (wide >> 64) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    proptest! {
        /// The index agrees with a plain vector of loads after any sequence of operations.
        #[test]
        fn agrees_with_a_scan(steps in prop::collection::vec((0u8..4, 0u32..8, 0u64..3000), 1..200)) {
            let mut index = LoadIndex::default();
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            let mut rng = ChaCha8Rng::seed_from_u64(1);
            for (kind, slot, amount) in steps {
                match (kind, model.get(&slot).copied()) {
                    (0, None) => { index.insert(slot); model.insert(slot, 0); }
                    (1, Some(_)) => { index.remove(slot); model.remove(&slot); }
                    (2, Some(load)) => { index.add(slot, amount); model.insert(slot, load + amount); }
                    (3, Some(load)) => {
                        index.sub(slot, amount);
                        model.insert(slot, load.saturating_sub(amount));
                    }
                    _ => {}
                }
                prop_assert_eq!(index.min(), model.values().copied().min().unwrap_or(0));
                prop_assert_eq!(index.max(), model.values().copied().max().unwrap_or(0));
                for (slot, load) in &model {
                    prop_assert_eq!(index.get(*slot), *load);
                }
                let pick = index.pick_least(&mut rng);
                prop_assert_eq!(pick.is_some(), !model.is_empty());
                if let Some(pick) = pick {
                    prop_assert_eq!(model[&pick], index.min());
                }
            }
        }
    }

    #[test]
    fn a_single_candidate_consumes_no_randomness() {
        let mut index = LoadIndex::default();
        index.insert(0);
        index.insert(1);
        index.add(0, 1);
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let untouched = rng.clone();
        assert_eq!(index.pick_least(&mut rng), Some(1));
        assert_eq!(rng, untouched);
        index.add(1, 1);
        index.pick_least(&mut rng);
        assert_ne!(rng, untouched);
    }

    #[test]
    fn ties_are_broken_uniformly() {
        let mut index = LoadIndex::default();
        (0..7).for_each(|slot| index.insert(slot));
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut seen = [0u32; 7];
        for _ in 0..70_000 {
            seen[index.pick_least(&mut rng).expect("seven servers") as usize] += 1;
        }
        // 10,000 expected with a standard deviation of 93.
        assert!(seen.iter().all(|n| (9_500..10_500).contains(n)), "{seen:?}");
    }
}
