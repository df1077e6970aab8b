//! Small random groups.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use seqshift::plan::{Options, RankLoad, SequenceLoad};

/// What the groups are like.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// With waiting requests, some of which cannot move.
    pub waiting: bool,
    /// All running sequences have the same size, and all waiting ones.
    pub equal: bool,
}

#[derive(Debug, Clone)]
pub struct Case {
    pub loads: Vec<RankLoad>,
    pub gears: Vec<u32>,
    pub options: Options,
}

/// An endless row of groups.
pub struct Cases {
    rng: ChaCha8Rng,
    kind: Kind,
}

impl Cases {
    pub fn new(seed: u64, kind: Kind) -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            kind,
        }
    }

    /// A number in `0..=most`.
    fn up_to(&mut self, most: u32) -> u32 {
        self.rng.next_u32() % (most + 1)
    }

    fn load(&mut self, rank: u32, size: u32, waiting_size: u32, tight: u32) -> RankLoad {
        let most = if self.kind.equal { 6 } else { 5 };
        let running = self.up_to(most);
        let waiting = if self.kind.waiting {
            self.up_to(5).saturating_sub(2)
        } else {
            0
        };
        let mut pinned_waiting = Vec::new();
        if self.kind.waiting {
            for _ in 0..self.up_to(6).saturating_sub(3) {
                pinned_waiting.push(1 + self.up_to(3));
            }
        }
        let pins = self.up_to(3);
        let mut sequences = Vec::new();
        for _ in 0..running {
            let kv_blocks = if self.kind.equal {
                size
            } else {
                1 + self.up_to(size)
            };
            let movable = pins > 0 || self.up_to(1) == 0;
            sequences.push(SequenceLoad { kv_blocks, movable });
        }
        let free = self.up_to(tight);
        let slots = running + self.up_to(4);
        RankLoad {
            rank,
            running,
            waiting,
            waiting_kv_blocks: Some(vec![waiting_size; waiting as usize]),
            pinned_waiting,
            free_kv_blocks: (self.up_to(3) > 0).then_some(free.into()),
            max_num_seqs: (self.up_to(2) == 0).then_some(slots),
            sequences: Some(sequences),
        }
    }
}

impl Iterator for Cases {
    type Item = Case;

    fn next(&mut self) -> Option<Case> {
        let ranks = 2 + self.up_to(if self.kind.equal { 2 } else { 1 });
        let size = 1 + self.up_to(if self.kind.equal { 3 } else { 6 });
        let waiting_size = 1 + self.up_to(3);
        let tight = if self.kind.equal { 5 * size } else { 3 * size };
        let loads = (0..ranks)
            .map(|rank| self.load(rank, size, waiting_size, tight))
            .collect();
        let gears: &[u32] = match self.up_to(4) {
            0 => &[],
            1 => &[8, 4, 2, 1],
            2 => &[3, 6],
            3 => &[1, 2],
            _ => &[5, 3, 2, 7],
        };
        let max_num_seqs = (self.up_to(2) == 0).then_some(7);
        let options = Options {
            max_num_seqs,
            minimum_gain: 0.0,
        };
        Some(Case {
            loads,
            gears: gears.to_vec(),
            options,
        })
    }
}
