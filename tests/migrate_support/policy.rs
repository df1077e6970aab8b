//! Plans that no planner would make.

use std::collections::VecDeque;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use seqshift::migrate::engine::Source;
use seqshift::migrate::policy::{Decision, Flight, Policy};
use seqshift::wire::message::{Detail, Load};

/// Sends about half of everything anywhere, whether there is room or not.
pub struct Anything {
    pub rng: ChaCha8Rng,
}

impl Anything {
    pub fn new(seed: u64) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        Self { rng }
    }
}

impl Policy for Anything {
    fn idle(&self, _: &[Load]) -> bool {
        false
    }

    fn decide(&mut self, _: &[Load], details: &[Detail]) -> Decision {
        let ranks = details.len() as u64;
        let mut flights = Vec::new();
        for (from, detail) in (0..).zip(details) {
            let running = (0..detail.running.len() as u32).map(Source::Running);
            let waiting = (0..detail.waiting_blocks.len() as u32).map(Source::Waiting);
            for source in running.chain(waiting) {
                let draw = self.rng.next_u64();
                let to = ((draw >> 8) % ranks) as u32;
                if draw & 1 == 0 && to != from {
                    flights.push(Flight { from, to, source });
                }
            }
        }
        decision(flights)
    }
}

/// One list of moves after the other; nothing when they are used up.
pub struct Script(pub VecDeque<Vec<Flight>>);

impl Policy for Script {
    fn idle(&self, _: &[Load]) -> bool {
        self.0.is_empty()
    }

    fn decide(&mut self, _: &[Load], _: &[Detail]) -> Decision {
        decision(self.0.pop_front().unwrap_or_default())
    }
}

fn decision(flights: Vec<Flight>) -> Decision {
    Decision {
        flights,
        ..Decision::default()
    }
}
