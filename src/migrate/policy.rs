//! How a check comes to its list of moves: the planner, or a forced plan of the tests.

use xxhash_rust::xxh3::xxh3_64;

use super::engine::Source;
use crate::wire::message::{Detail, Load};

/// One move of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flight {
    /// Source rank.
    pub from: u32,
    /// Destination rank.
    pub to: u32,
    /// The sequence, in the source rank's lists.
    pub source: Source,
}

/// A plan as the protocol carries it out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// Moves in an order that all ranks share.
    pub flights: Vec<Flight>,
    /// Why the plan is as it is.
    pub reasons: Vec<String>,
    /// Something was in the way of a better plan.
    pub blocked: bool,
}

impl Decision {
    /// Digest that the TP shards compare.
    pub fn digest(&self) -> u64 {
        let mut bytes = Vec::with_capacity(self.flights.len() * 13);
        for flight in &self.flights {
            let (tag, index) = match flight.source {
                Source::Running(i) => (0, i),
                Source::Waiting(i) => (1, i),
            };
            bytes.push(tag);
            for word in [flight.from, flight.to, index] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
        }
        xxh3_64(&bytes)
    }
}

/// Decides what moves. Pure: equal records give equal decisions on every rank.
pub trait Policy: Send {
    /// Whether the counts alone say that nothing can be gained.
    fn idle(&self, loads: &[Load]) -> bool;

    /// The moves of one check.
    fn decide(&mut self, loads: &[Load], details: &[Detail]) -> Decision;

    /// Which moves of an earlier decision are still worth it, given the counts of now;
    /// by default all.
    fn confirm(&self, loads: &[Load], flights: &[Flight]) -> Vec<bool> {
        let _ = loads;
        vec![true; flights.len()]
    }
}

/// Forced plans of the tests (`SEQSHIFT_TEST_PLAN`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forced {
    /// Every rank sends up to six movable sequences to the next rank.
    Shuffle,
    /// Rank 0 is drained, then gets everything back.
    Pingpong,
}

impl Forced {
    /// Parses the value of `SEQSHIFT_TEST_PLAN`.
    ///
    /// # Errors
    /// Names the value and the two that are known.
    pub fn parse(name: &str) -> Result<Self, String> {
        match name {
            "shuffle" => Ok(Self::Shuffle),
            "pingpong" => Ok(Self::Pingpong),
            other => Err(format!(
                "SEQSHIFT_TEST_PLAN: {other:?} is neither \"shuffle\" nor \"pingpong\""
            )),
        }
    }
}

/// Replaces the planner by a forced plan.
#[derive(Debug)]
pub struct ForcedPolicy {
    plan: Forced,
    checks: u64,
}

impl ForcedPolicy {
    /// A policy that starts with its first check.
    pub fn new(plan: Forced) -> Self {
        Self { plan, checks: 0 }
    }

    /// Up to six sequences of every rank, others in every check.
    fn shuffle(&self, details: &[Detail]) -> Vec<Flight> {
        const MOST: usize = 6;
        let ranks = details.len() as u32;
        let mut flights = Vec::new();
        for (from, detail) in (0..).zip(details) {
            let movable = movable(detail);
            let start = if movable.is_empty() {
                0
            } else {
                self.checks as usize % movable.len()
            };
            let chosen = movable
                .iter()
                .cycle()
                .skip(start)
                .take(MOST.min(movable.len()));
            let to = (from + 1) % ranks;
            flights.extend(chosen.map(|i| Flight {
                from,
                to,
                source: Source::Running(*i),
            }));
        }
        flights
    }

    /// Away from rank 0 in odd checks, back to it in even ones.
    fn pingpong(&self, details: &[Detail]) -> Vec<Flight> {
        let others = details.len() as u32 - 1;
        if self.checks % 2 == 1 {
            let away = movable(&details[0]);
            let targets = (1..=others).cycle();
            let flight = |(i, to): (&u32, u32)| Flight {
                from: 0,
                to,
                source: Source::Running(*i),
            };
            return away.iter().zip(targets).map(flight).collect();
        }
        let mut flights = Vec::new();
        for (from, detail) in (0..).zip(details).skip(1) {
            for index in movable(detail) {
                if detail.running[index as usize]
                    .key
                    .is_some_and(|k| k.origin == 0)
                {
                    flights.push(Flight {
                        from,
                        to: 0,
                        source: Source::Running(index),
                    });
                }
            }
        }
        flights
    }
}

fn movable(detail: &Detail) -> Vec<u32> {
    (0..)
        .zip(&detail.running)
        .filter(|(_, s)| s.movable)
        .map(|(i, _)| i)
        .collect()
}

impl Policy for ForcedPolicy {
    fn idle(&self, loads: &[Load]) -> bool {
        loads.len() < 2
    }

    fn decide(&mut self, _loads: &[Load], details: &[Detail]) -> Decision {
        self.checks += 1;
        let flights = match self.plan {
            Forced::Shuffle => self.shuffle(details),
            Forced::Pingpong => self.pingpong(details),
        };
        Decision {
            flights,
            reasons: vec!["forced".into()],
            blocked: false,
        }
    }
}
