//! One rollout under one policy.

use std::collections::BTreeMap;

use super::cluster::Cluster;
use super::error::SimError;
use super::policy::{PUBLISHED_INTERVAL, Policy};
use super::setup::Setup;
use super::timeline::{Sample, Timeline};
use crate::plan::{
    Gears, Measured, Mode, Options, Outcome, Plan, RankLoad, SequenceLoad, Shared, Trigger, plan,
};

/// What a rollout took.
#[derive(Debug, Clone, PartialEq)]
pub struct RunResult {
    /// Seconds from the first prefill to the last token.
    pub wall_seconds: f64,
    /// Decode steps.
    pub steps: u64,
    /// Generated tokens.
    pub tokens: u64,
    /// Rebalance checks.
    pub checks: u64,
    /// Checks that moved something.
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
    /// Steps by number of sequences on the busiest rank (index: number).
    pub steps_by_busiest: Vec<u64>,
    /// State over time.
    pub timeline: Timeline,
}

/// Simulates one rollout.
///
/// Time: O(events x ranks) with a few events per sequence.
///
/// # Errors
/// [`SimError`] for an impossible setup.
pub fn simulate(setup: &Setup, policy: Policy) -> Result<RunResult, SimError> {
    setup.check()?;
    let lengths = setup.lengths.draw(
        setup.prompts,
        setup.samples_per_prompt,
        setup.prompt_correlation,
        setup.seed,
    );
    let gears = Gears::new(&setup.gears)
        .map_err(|error| SimError::invalid("gears", "0", error.to_string()))?;
    let tokens = lengths.iter().map(|&length| u64::from(length)).sum();
    let mut run = Run::new(setup, policy, &lengths, gears);
    run.run();
    Ok(RunResult {
        wall_seconds: run.seconds,
        steps: run.step,
        tokens,
        preemptions: run.cluster.preemptions,
        ..run.result
    })
}

/// Steps between two questions of the oracle to the planner where every count is a gear
/// or requests wait.
const ORACLE_STEPS: u64 = 16;

struct Run<'a> {
    setup: &'a Setup,
    policy: Policy,
    gears: Gears,
    /// What the planner is given.
    plan_gears: Gears,
    cluster: Cluster<'a>,
    trigger: Option<Trigger>,
    /// Steps done, that is, the number of the step that comes next.
    step: u64,
    seconds: f64,
    /// When the planner was last asked by the oracle.
    asked: u64,
    /// Latest mean step time by gear.
    measured: BTreeMap<u32, f64>,
    /// Of the last moves: seconds of their transfer per block.
    seconds_per_block: Option<f64>,
    result: RunResult,
}

impl<'a> Run<'a> {
    fn new(setup: &'a Setup, policy: Policy, lengths: &[u32], gears: Gears) -> Self {
        let trigger = match policy {
            Policy::Published => Some((Mode::Interval, PUBLISHED_INTERVAL)),
            Policy::Interval => Some((Mode::Interval, setup.check_interval)),
            Policy::Adaptive => Some((Mode::Adaptive, setup.check_interval)),
            Policy::Static | Policy::Gears | Policy::Oracle | Policy::Bound => None,
        };
        let trigger = trigger.filter(|_| setup.ranks > 1).map(|(mode, interval)| {
            Trigger::new(mode, interval, gears.clone(), setup.max_num_seqs)
        });
        Self {
            setup,
            policy,
            plan_gears: if policy == Policy::Published {
                Gears::default()
            } else {
                gears.clone()
            },
            gears,
            cluster: Cluster::new(setup, lengths, policy == Policy::Bound),
            trigger,
            step: 0,
            seconds: 0.0,
            asked: 0,
            measured: BTreeMap::new(),
            seconds_per_block: None,
            result: RunResult {
                wall_seconds: 0.0,
                steps: 0,
                tokens: 0,
                checks: 0,
                plans: 0,
                sequences_moved: 0,
                waiting_moved: 0,
                kv_bytes_moved: 0.0,
                pause_seconds: 0.0,
                preemptions: 0,
                steps_by_busiest: vec![0; setup.max_num_seqs as usize + 1],
                timeline: Timeline::default(),
            },
        }
    }

    fn run(&mut self) {
        while self.cluster.unfinished > 0 {
            self.cluster.preempt(self.step);
            let mut prefill = self.cluster.admit(self.step);
            if self.check_is_due() {
                self.check();
                prefill += self.cluster.admit(self.step);
            }
            self.seconds += prefill * self.setup.step.seconds_per_prefill_token;
            let next = self.next_event();
            self.advance(next);
            self.cluster.finish(self.step);
        }
    }

    fn gear(&self) -> u32 {
        match self.policy {
            Policy::Static if self.gears.largest() > 0 => self
                .gears
                .gear_of(self.gears.largest().max(self.cluster.busiest())),
            Policy::Static => self.setup.max_num_seqs,
            _ => self.gears.gear_of(self.cluster.busiest()),
        }
    }

    fn next_event(&mut self) -> u64 {
        let trigger = self
            .trigger
            .as_ref()
            .and_then(|trigger| trigger.next_due(self.step));
        let overflow = self.cluster.next_overflow(self.step);
        let next = [self.cluster.next_finish(), trigger, overflow];
        let next = next
            .into_iter()
            .flatten()
            .filter(|&next| next > self.step)
            .min();
        next.unwrap_or(self.step + 1)
    }

    /// Takes the steps up to `next`; counts and gear stay as they are.
    fn advance(&mut self, next: u64) {
        let (from, steps, gear) = (self.step, next - self.step, self.gear());
        let kv = |step| self.cluster.most_kv(step);
        // The busiest rank's KV is convex in the step, so Simpson is nearly exact.
        let mean = match steps {
            1 => kv(from),
            2..=8 => (kv(from) + kv(next - 1)) / 2.0,
            _ => (kv(from) + 4.0 * kv(from + steps / 2) + kv(next - 1)) / 6.0,
        };
        let tpot = self.setup.step.seconds(gear, mean);
        let totals = self.cluster.totals();
        let busiest = self.cluster.busiest();
        self.result.timeline.offer(Sample {
            seconds: self.seconds,
            step: from,
            gear,
            busiest,
            running: totals.running,
            waiting: totals.waiting,
            tpot_seconds: tpot,
        });
        self.measured.insert(gear, tpot);
        self.result.steps_by_busiest[busiest as usize] += steps;
        self.seconds += tpot * steps as f64;
        self.step = next;
    }

    fn check_is_due(&mut self) -> bool {
        if self.policy == Policy::Oracle {
            return self.oracle_checks();
        }
        let Some(trigger) = &mut self.trigger else {
            return false;
        };
        self.step > 0 && trigger.observe(self.step, &self.cluster.counts).is_some()
    }

    /// Whether the planner could find something now. Above the largest gear, where
    /// every count is a gear, it is asked every few steps only.
    fn oracle_checks(&mut self) -> bool {
        let slots = self.setup.max_num_seqs;
        let counts = &self.cluster.counts;
        let waits = counts.iter().any(|count| count.waiting > 0)
            && counts
                .iter()
                .any(|count| count.running + count.waiting < slots);
        let running = self.cluster.counts.iter().map(|count| count.running);
        let lower = self.gears.lower_possible(&running.collect::<Vec<u32>>());
        let graphs = !waits && self.cluster.busiest() <= self.gears.largest();
        let due = graphs || self.step >= self.asked + ORACLE_STEPS;
        if (waits || lower) && due {
            self.asked = self.step;
            return true;
        }
        false
    }

    fn check(&mut self) {
        self.result.checks += 1;
        let loads = self.loads();
        let slots = Some(self.setup.max_num_seqs);
        let options = Options {
            max_num_seqs: slots,
            minimum_gain: 0.0,
        };
        let found = plan(&loads, &self.plan_gears, &options);
        let mut pause = self.setup.transfer.check_seconds;
        let outcome = match &found {
            Ok(found) if !found.is_empty() => {
                pause += self.setup.transfer.moving_seconds + self.apply(found);
                self.result.plans += 1;
                Outcome::Moved
            }
            Ok(found) if found.lower_bound < found.gear_before => Outcome::Blocked,
            _ => Outcome::Nothing,
        };
        if self.policy == Policy::Oracle {
            return;
        }
        self.seconds += pause;
        self.result.pause_seconds += pause;
        let shared = self.shared(&loads);
        if let Some(trigger) = &mut self.trigger {
            trigger.checked(self.step, outcome, Some(shared));
        }
    }

    fn blocks(&self, tokens: u64) -> u32 {
        tokens.div_ceil(u64::from(self.setup.block_tokens)) as u32
    }

    /// The load of each rank, as far as the policy looks at it.
    fn loads(&self) -> Vec<RankLoad> {
        let counts_only = self.policy == Policy::Published;
        let load = |rank: usize| {
            let count = self.cluster.counts[rank];
            if counts_only {
                return RankLoad::counts(rank as u32, count.running, 0);
            }
            let sequence = |&sequence: &u32| SequenceLoad {
                kv_blocks: self.blocks(self.cluster.tokens(sequence, self.step)),
                movable: true,
            };
            let prompt =
                |&sequence: &u32| self.blocks(self.cluster.prompt_tokens(sequence).into()) + 1;
            let free = self.cluster.free_tokens(rank, self.step);
            let block = f64::from(self.setup.block_tokens);
            RankLoad {
                free_kv_blocks: free.map(|tokens| (tokens / block) as u64),
                sequences: Some(self.cluster.running[rank].iter().map(sequence).collect()),
                waiting_kv_blocks: Some(self.cluster.waiting[rank].iter().map(prompt).collect()),
                ..RankLoad::counts(rank as u32, count.running, count.waiting)
            }
        };
        (0..self.cluster.running.len()).map(load).collect()
    }

    /// Carries out the moves; seconds of the busiest rank's transfer.
    fn apply(&mut self, plan: &Plan) -> f64 {
        let ranks = self.cluster.running.len();
        // Tokens and blocks: sent by a rank, received by it.
        let mut traffic = vec![[(0.0, 0.0); 2]; ranks];
        let mut chosen: Vec<(usize, usize, bool, Vec<u32>)> = Vec::new();
        let mut taken = vec![0; ranks];
        for m in &plan.moves {
            let (from, to) = (m.from as usize, m.to as usize);
            let sequences: Vec<u32> = if !m.needs_kv {
                m.sequences
                    .iter()
                    .map(|&i| self.cluster.waiting[from][i as usize])
                    .collect()
            } else if m.sequences.is_empty() {
                // A plan by counts does not say which.
                let start = taken[from];
                taken[from] += m.count as usize;
                self.cluster.running[from][start..taken[from]].to_vec()
            } else {
                m.sequences
                    .iter()
                    .map(|&i| self.cluster.running[from][i as usize])
                    .collect()
            };
            chosen.push((from, to, m.needs_kv, sequences));
        }
        for (from, to, needs_kv, sequences) in chosen {
            if !needs_kv {
                self.result.waiting_moved += sequences.len() as u64;
                self.cluster.requeue(from, to, &sequences);
                continue;
            }
            self.result.sequences_moved += sequences.len() as u64;
            for sequence in sequences {
                let tokens = self.cluster.tokens(sequence, self.step);
                let blocks = self.blocks(tokens);
                for (rank, way) in [(from, 0), (to, 1)] {
                    traffic[rank][way].0 += tokens as f64;
                    traffic[rank][way].1 += f64::from(blocks);
                }
                self.result.kv_bytes_moved += tokens as f64 * self.setup.transfer.bytes_per_token;
                self.cluster.shift(sequence, to);
            }
        }
        let mut longest = 0.0;
        for (tokens, blocks) in traffic.into_iter().flatten() {
            let seconds = self.setup.transfer.seconds(tokens, blocks);
            if seconds > longest {
                longest = seconds;
                self.seconds_per_block = Some(seconds / blocks);
            }
        }
        longest
    }

    /// What the ranks would exchange in a check.
    fn shared(&self, loads: &[RankLoad]) -> Shared {
        let mean_blocks = |load: &RankLoad| {
            let listed = load.sequences.as_deref().unwrap_or_default();
            let blocks: u64 = listed.iter().map(|s| u64::from(s.kv_blocks)).sum();
            blocks as f64 / listed.len().max(1) as f64
        };
        let longest = u64::from(self.setup.lengths.longest());
        let generated = self.cluster.running.iter().flatten();
        let least = generated
            .map(|&sequence| self.cluster.generated(sequence, self.step))
            .min();
        let remaining = longest.saturating_sub(least.unwrap_or(0)) as u32;
        let transfer = &self.setup.transfer;
        Shared::merge(&[Measured {
            step_seconds: self
                .measured
                .iter()
                .map(|(&gear, &seconds)| (gear, seconds))
                .collect(),
            fixed_seconds: Some(transfer.check_seconds + transfer.moving_seconds),
            seconds_per_block: self.seconds_per_block,
            blocks_per_sequence: loads.iter().map(mean_blocks).fold(0.0, f64::max),
            longest_remaining: Some(remaining),
        }])
    }
}
