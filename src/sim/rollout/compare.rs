//! Several policies side by side.

use std::thread;

use serde::Serialize;

use super::error::SimError;
use super::policy::Policy;
use super::run::{RunResult, simulate};
use super::setup::Setup;
use super::timeline::Timeline;

/// A policy's rollout beside the oracle's and the bound.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyResult {
    /// The policy.
    pub policy: Policy,
    /// Seconds of the rollout.
    pub wall_seconds: f64,
    /// How much longer than the oracle's, as a fraction of it. Below zero for a policy
    /// that evens KV beyond what gears need, or waits for nothing to move.
    pub gap_to_oracle: f64,
    /// The same against the bound; below zero only where that is none
    /// ([`Comparison::bound_holds`]).
    pub gap_to_bound: f64,
    /// Decode steps.
    pub steps: u64,
    /// Mean seconds per step without pauses.
    pub mean_tpot_seconds: f64,
    /// Rebalance checks, and those that moved something.
    pub checks: u64,
    /// See `checks`.
    pub plans: u64,
    /// Running sequences moved.
    pub sequences_moved: u64,
    /// Waiting requests moved.
    pub waiting_moved: u64,
    /// KV bytes moved, per die.
    pub kv_bytes_moved: f64,
    /// Seconds in which decoding stood still for checks and moves.
    pub pause_seconds: f64,
    /// Sequences put back into the queue for lack of KV blocks.
    pub preemptions: u64,
    /// State over time.
    pub timeline: Timeline,
}

/// The policies of a comparison, in the order asked for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// What was simulated.
    pub setup: Setup,
    /// Sequences of the rollout.
    pub sequences: u64,
    /// Generated tokens, the same under every policy.
    pub tokens: u64,
    /// Seconds of [`Policy::Oracle`].
    pub oracle_seconds: f64,
    /// Seconds of [`Policy::Bound`].
    pub bound_seconds: f64,
    /// Whether no policy can be below it: [`Setup::bound_holds`].
    pub bound_holds: bool,
    /// The results.
    pub policies: Vec<PolicyResult>,
}

/// Simulates `policies` and, for the gaps, the oracle and the bound, on all cores.
///
/// # Errors
/// [`SimError`] for an impossible setup.
pub fn compare(setup: &Setup, policies: &[Policy]) -> Result<Comparison, SimError> {
    setup.check()?;
    let mut wanted = policies.to_vec();
    for reference in [Policy::Oracle, Policy::Bound] {
        if !wanted.contains(&reference) {
            wanted.push(reference);
        }
    }
    let runs: Vec<Result<RunResult, SimError>> = thread::scope(|scope| {
        let run = |&policy: &Policy| scope.spawn(move || simulate(setup, policy));
        let handles: Vec<_> = wanted.iter().map(run).collect();
        let join = |handle: thread::ScopedJoinHandle<_>| match handle.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        handles.into_iter().map(join).collect()
    });
    let runs = runs.into_iter().collect::<Result<Vec<_>, _>>()?;
    let of = |reference| {
        let mut both = wanted.iter().zip(&runs);
        let found = both.find(|&(&policy, _)| policy == reference);
        found.map_or(f64::NAN, |(_, run)| run.wall_seconds)
    };
    let (oracle_seconds, bound_seconds) = (of(Policy::Oracle), of(Policy::Bound));
    let tokens = runs.first().map_or(0, |run| run.tokens);
    let result = |(&policy, run): (&Policy, RunResult)| PolicyResult {
        policy,
        wall_seconds: run.wall_seconds,
        gap_to_oracle: run.wall_seconds / oracle_seconds - 1.0,
        gap_to_bound: run.wall_seconds / bound_seconds - 1.0,
        steps: run.steps,
        mean_tpot_seconds: (run.wall_seconds - run.pause_seconds) / run.steps as f64,
        checks: run.checks,
        plans: run.plans,
        sequences_moved: run.sequences_moved,
        waiting_moved: run.waiting_moved,
        kv_bytes_moved: run.kv_bytes_moved,
        pause_seconds: run.pause_seconds,
        preemptions: run.preemptions,
        timeline: run.timeline,
    };
    Ok(Comparison {
        sequences: setup.sequences(),
        tokens,
        oracle_seconds,
        bound_seconds,
        bound_holds: setup.bound_holds(),
        policies: policies.iter().zip(runs).map(result).collect(),
        setup: setup.clone(),
    })
}
