//! Sessions against replicas, placed by the router.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Serialize;

use super::Finite;
use super::replica::{Job, Replica, ReplicaModel};
use super::workload::Session;
use crate::route::{Reason, Request, RouteError, Router, RouterConfig};

/// What a simulation measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Outcome {
    /// Seconds until the last session ended.
    pub generation_seconds: f64,
    /// Share of prompt tokens found in a prefix cache.
    pub prefix_hit_rate: f64,
    /// Turns that followed their pin.
    pub kept: u64,
    /// Pins that the policy broke.
    pub broken: u64,
    /// Mean over time of (greatest - mean) / mean requests in flight per replica.
    pub queue_skew: f64,
    /// Share of replica time with nothing in flight while another replica had two requests or more.
    pub starvation: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A replica's state changes; void if its version has moved on.
    Replica { index: usize, version: u64 },
    /// The next turn of a session is submitted.
    Submit { session: usize },
}

struct Run<'a> {
    sessions: &'a [Session],
    shared: f64,
    router: Router,
    replicas: Vec<Replica>,
    versions: Vec<u64>,
    in_flight: Vec<u32>,
    next_turn: Vec<usize>,
    placed_on: Vec<usize>,
    events: BinaryHeap<Reverse<(Finite, u64, Event)>>,
    sequence: u64,
}

/// Runs `sessions` to their end on `replicas` engines.
///
/// # Errors
/// [`RouteError::NoServers`] without a replica.
pub fn simulate(
    replicas: usize,
    model: ReplicaModel,
    sessions: &[Session],
    shared_prefix: f64,
    config: RouterConfig,
) -> Result<Outcome, RouteError> {
    let mut run = Run {
        sessions,
        shared: shared_prefix,
        router: Router::new((0..replicas).map(|i| i.to_string()), config),
        replicas: (0..replicas).map(|_| Replica::new(model)).collect(),
        versions: vec![0; replicas],
        in_flight: vec![0; replicas],
        next_turn: vec![0; sessions.len()],
        placed_on: vec![0; sessions.len()],
        events: BinaryHeap::new(),
        sequence: 0,
    };
    for (session, _) in sessions
        .iter()
        .enumerate()
        .filter(|(_, s)| !s.turns.is_empty())
    {
        run.schedule(0.0, Event::Submit { session });
    }
    run.finish()
}

impl Run<'_> {
    fn schedule(&mut self, at: f64, event: Event) {
        self.sequence += 1;
        self.events
            .push(Reverse((Finite(at), self.sequence, event)));
    }

    fn finish(mut self) -> Result<Outcome, RouteError> {
        let (mut now, mut skew, mut busy, mut starved) = (0.0, 0.0, 0.0, 0.0);
        while let Some(Reverse((Finite(at), _, event))) = self.events.pop() {
            if let Event::Replica { index, version } = event
                && self.versions[index] != version
            {
                continue;
            }
            let elapsed = at - now;
            now = at;
            let most = self.in_flight.iter().copied().max().unwrap_or(0);
            let total: u32 = self.in_flight.iter().sum();
            if total > 0 {
                let mean = f64::from(total) / self.in_flight.len() as f64;
                skew += elapsed * (f64::from(most) - mean) / mean;
                busy += elapsed;
            }
            if most >= 2 {
                let idle = self.in_flight.iter().filter(|n| **n == 0).count();
                starved += elapsed * idle as f64;
            }
            match event {
                Event::Submit { session } => self.submit(now, session)?,
                Event::Replica { index, .. } => self.replica_changes(now, index),
            }
        }
        let [queried, hit] = [|r: &Replica| r.queried, |r: &Replica| r.hit]
            .map(|of| self.replicas.iter().map(of).sum::<f64>());
        let reasons = self.router.reasons();
        Ok(Outcome {
            generation_seconds: now,
            prefix_hit_rate: if queried > 0.0 { hit / queried } else { 0.0 },
            kept: reasons[Reason::Kept as usize],
            broken: reasons[Reason::Broken as usize],
            queue_skew: if busy > 0.0 { skew / busy } else { 0.0 },
            starvation: if now > 0.0 {
                starved / (now * self.replicas.len() as f64)
            } else {
                0.0
            },
        })
    }

    fn submit(&mut self, now: f64, session: usize) -> Result<(), RouteError> {
        let turn = self.sessions[session].turns[self.next_turn[session]];
        let id = session.to_string();
        let weight = turn.context as u64;
        let decision = self.router.acquire(Request {
            weight,
            ..Request::new(&id)
        })?;
        let index = decision.slot as usize;
        self.placed_on[session] = index;
        self.in_flight[index] += 1;
        let job = Job {
            session,
            context: turn.context,
            output: turn.output,
            shared: self.shared,
        };
        self.replicas[index].advance(now);
        self.replicas[index].submit(job);
        self.reschedule(index);
        Ok(())
    }

    fn replica_changes(&mut self, now: f64, index: usize) {
        self.replicas[index].advance(now);
        for session in self.replicas[index].settle() {
            self.in_flight[index] -= 1;
            self.router
                .release(&index.to_string(), Some(&session.to_string()));
            let turn = self.sessions[session].turns[self.next_turn[session]];
            self.next_turn[session] += 1;
            if self.next_turn[session] < self.sessions[session].turns.len() {
                self.schedule(now + turn.think_seconds, Event::Submit { session });
            }
        }
        self.reschedule(index);
    }

    fn reschedule(&mut self, index: usize) {
        self.versions[index] += 1;
        if let Some(at) = self.replicas[index].next_event() {
            let version = self.versions[index];
            self.schedule(at, Event::Replica { index, version });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::PolicyOptions;
    use crate::sim::routing::Workload;

    fn run(replicas: usize, model: ReplicaModel, policy: &str, margin: f64) -> Outcome {
        let workload = Workload {
            sessions: 64,
            mean_context: Some(4000.0),
            ..Workload::default()
        };
        let options = PolicyOptions {
            affinity_break_margin: Some(margin),
            ..PolicyOptions::default()
        };
        let policy = options.build(policy).expect("valid");
        let config = RouterConfig {
            policy,
            seed: 3,
            ..RouterConfig::default()
        };
        let sessions = workload.sample(3);
        let turns: usize = sessions.iter().map(|session| session.turns.len()).sum();
        let outcome =
            simulate(replicas, model, &sessions, 0.0, config).expect("there are replicas");
        assert_eq!(
            outcome.kept + outcome.broken,
            (turns - sessions.len()) as u64
        );
        outcome
    }

    #[test]
    fn every_turn_is_served_and_pins_that_never_break_do_not() {
        let outcome = run(8, ReplicaModel::default(), "sticky", 0.0);
        assert_eq!(outcome.broken, 0);
        assert!(run(8, ReplicaModel::default(), "margin", 0.0).broken > 0);
    }

    #[test]
    fn with_one_replica_policies_do_not_differ() {
        let model = ReplicaModel::default();
        assert_eq!(run(1, model, "sticky", 0.0), run(1, model, "margin", 0.0));
    }

    #[test]
    fn a_pool_that_holds_everything_loses_no_prefix_of_a_pinned_session() {
        let large = ReplicaModel {
            kv_pool_tokens: 1e9,
            block_size: 1.0,
            ..ReplicaModel::default()
        };
        let small = ReplicaModel {
            kv_pool_tokens: 20_000.0,
            ..large
        };
        let (kept, lost) = (run(8, large, "sticky", 0.0), run(8, small, "sticky", 0.0));
        assert!(kept.prefix_hit_rate > lost.prefix_hit_rate);
        assert!(kept.generation_seconds < lost.generation_seconds);
        // Misses are what is new: first prompts and what tools add.
        assert!(kept.prefix_hit_rate > 0.9, "{kept:?}");
    }
}
