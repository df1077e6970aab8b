//! The sequences on the ranks of a group.

use std::collections::{BTreeMap, VecDeque};

use super::setup::Setup;
use crate::plan::RankCount;

/// Not admitted, or finished.
const NEVER: u64 = u64::MAX;

/// State of the group before a step.
///
/// A sequence that was admitted before step `a` with `held` tokens holds
/// `held + (s - a)` tokens in step `s`, so the KV tokens of a rank are a line in
/// `s`: `base + running * s`.
pub(super) struct Cluster<'a> {
    setup: &'a Setup,
    /// Real ranks behind each one here: 1, or all of them for a shared pool.
    fold: u32,
    /// Per sequence: tokens still to generate and tokens held, both at admission.
    left: Vec<u32>,
    held: Vec<u32>,
    admitted: Vec<u64>,
    finish: Vec<u64>,
    /// Per prompt: the rank that has its KV blocks in the prefix cache, plus 1.
    cached: Vec<u32>,
    /// Position of each running sequence in the list of its rank.
    at: Vec<u32>,
    /// Per rank, in no particular order.
    pub(super) running: Vec<Vec<u32>>,
    pub(super) waiting: Vec<VecDeque<u32>>,
    home: Vec<u32>,
    base: Vec<f64>,
    slope: Vec<f64>,
    pub(super) counts: Vec<RankCount>,
    /// Sequences by the step before which they finish; those that were preempted
    /// meanwhile are in an old list too.
    finishing: BTreeMap<u64, Vec<u32>>,
    /// Ranks on which a request could have become admissible.
    touched: Vec<u32>,
    pub(super) unfinished: u64,
    pub(super) preemptions: u64,
}

impl<'a> Cluster<'a> {
    pub(super) fn new(setup: &'a Setup, lengths: &[u32], pooled: bool) -> Self {
        let ranks = if pooled { 1 } else { setup.ranks as usize };
        let count = lengths.len();
        let mut waiting = vec![VecDeque::new(); ranks];
        let mut home = vec![0; count];
        let per_prompt = setup.samples_per_prompt as usize;
        for (sequence, home) in home.iter_mut().enumerate() {
            let prompt = sequence / per_prompt;
            let rank = prompt * ranks / setup.prompts as usize;
            waiting[rank].push_back(sequence as u32);
            *home = rank as u32;
        }
        let queued = |queue: &VecDeque<u32>| RankCount {
            running: 0,
            waiting: queue.len() as u32,
        };
        Self {
            setup,
            fold: if pooled { setup.ranks } else { 1 },
            left: lengths.to_vec(),
            held: vec![setup.prompt_tokens; count],
            admitted: vec![NEVER; count],
            finish: vec![NEVER; count],
            at: vec![0; count],
            cached: vec![0; setup.prompts as usize],
            running: vec![Vec::new(); ranks],
            counts: waiting.iter().map(queued).collect(),
            waiting,
            home,
            base: vec![0.0; ranks],
            slope: vec![0.0; ranks],
            finishing: BTreeMap::new(),
            touched: (0..ranks as u32).collect(),
            unfinished: count as u64,
            preemptions: 0,
        }
    }

    /// Running sequences per real rank on the busiest one.
    pub(super) fn busiest(&self) -> u32 {
        let most = self
            .counts
            .iter()
            .map(|count| count.running)
            .max()
            .unwrap_or(0);
        most.div_ceil(self.fold)
    }

    pub(super) fn totals(&self) -> RankCount {
        RankCount {
            running: self.counts.iter().map(|count| count.running).sum(),
            waiting: self.counts.iter().map(|count| count.waiting).sum(),
        }
    }

    /// KV tokens that the busiest real rank reads in a step.
    pub(super) fn most_kv(&self, step: u64) -> f64 {
        let step = step as f64;
        let lines = self.base.iter().zip(&self.slope);
        lines.fold(0.0, |most: f64, (base, slope)| {
            most.max(base + slope * step)
        }) / f64::from(self.fold)
    }

    fn kv(&self, rank: usize, step: u64) -> f64 {
        self.base[rank] + self.slope[rank] * step as f64
    }

    fn capacity(&self) -> Option<f64> {
        self.setup
            .kv_capacity_tokens
            .map(|tokens| tokens as f64 * f64::from(self.fold))
    }

    /// KV tokens that a rank may take: one block per running sequence is kept for
    /// growth.
    pub(super) fn free_tokens(&self, rank: usize, step: u64) -> Option<f64> {
        let growth = self.slope[rank] * f64::from(self.setup.block_tokens);
        self.capacity()
            .map(|capacity| (capacity - self.kv(rank, step) - growth).max(0.0))
    }

    /// Tokens that a running sequence holds.
    pub(super) fn tokens(&self, sequence: u32, step: u64) -> u64 {
        let i = sequence as usize;
        u64::from(self.held[i]) + (step - self.admitted[i])
    }

    /// Tokens that a waiting request needs at once.
    pub(super) fn prompt_tokens(&self, sequence: u32) -> u32 {
        self.held[sequence as usize]
    }

    /// Tokens that a running sequence has generated.
    pub(super) fn generated(&self, sequence: u32, step: u64) -> u64 {
        self.tokens(sequence, step) - u64::from(self.setup.prompt_tokens)
    }

    /// The next step before which a sequence finishes.
    pub(super) fn next_finish(&mut self) -> Option<u64> {
        while let Some(entry) = self.finishing.first_entry() {
            let step = *entry.key();
            let ends = |&sequence: &u32| self.finish[sequence as usize] == step;
            if entry.get().iter().any(ends) {
                return Some(step);
            }
            entry.remove();
        }
        None
    }

    /// The next step after `step` in which a rank needs more KV than it has.
    pub(super) fn next_overflow(&self, step: u64) -> Option<u64> {
        let capacity = self.capacity()?;
        let lines = self.base.iter().zip(&self.slope);
        let at = lines
            .filter(|&(_, &slope)| slope > 0.0)
            .map(|(base, slope)| ((capacity - base) / slope).floor() + 1.0);
        at.reduce(f64::min).map(|at| (at as u64).max(step + 1))
    }

    /// Takes finished sequences out, before step `step`.
    pub(super) fn finish(&mut self, step: u64) {
        while let Some(entry) = self.finishing.first_entry() {
            if *entry.key() > step {
                break;
            }
            let (at, mut ending) = entry.remove_entry();
            ending.sort_unstable();
            ending.dedup();
            for sequence in ending {
                if self.finish[sequence as usize] == at {
                    self.leave(sequence);
                    self.finish[sequence as usize] = NEVER;
                    self.unfinished -= 1;
                }
            }
        }
    }

    /// Puts the youngest sequences of ranks without enough KV back into the queue.
    pub(super) fn preempt(&mut self, step: u64) {
        let Some(capacity) = self.capacity() else {
            return;
        };
        for rank in 0..self.running.len() {
            while self.kv(rank, step) > capacity && self.running[rank].len() > 1 {
                let age = |&&sequence: &&u32| (self.admitted[sequence as usize], sequence);
                let Some(&sequence) = self.running[rank].iter().max_by_key(age) else {
                    break;
                };
                let generated = (step - self.admitted[sequence as usize]) as u32;
                self.leave(sequence);
                let i = sequence as usize;
                self.left[i] -= generated;
                self.held[i] += generated;
                self.finish[i] = NEVER;
                self.admitted[i] = NEVER;
                self.waiting[rank].push_front(sequence);
                self.counts[rank].waiting += 1;
                self.preemptions += 1;
            }
        }
    }

    /// Admits waiting requests; the most tokens that one real rank prefills.
    pub(super) fn admit(&mut self, step: u64) -> f64 {
        let mut most: f64 = 0.0;
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for &rank in &touched {
            if self.counts[rank as usize].waiting > 0 {
                most = most.max(self.admit_on(rank as usize, step));
            }
        }
        touched.clear();
        self.touched = touched;
        most / f64::from(self.fold)
    }

    fn admit_on(&mut self, rank: usize, step: u64) -> f64 {
        let slots = u64::from(self.setup.max_num_seqs) * u64::from(self.fold);
        let mut prefill = 0.0;
        while u64::from(self.counts[rank].running) < slots {
            let Some(&sequence) = self.waiting[rank].front() else {
                break;
            };
            let i = sequence as usize;
            let needed = f64::from(self.held[i] + self.setup.block_tokens);
            let fits = self
                .free_tokens(rank, step)
                .is_none_or(|free| needed <= free);
            if !fits && self.counts[rank].running > 0 {
                break;
            }
            self.waiting[rank].pop_front();
            self.counts[rank].waiting -= 1;
            let prompt = i / self.setup.samples_per_prompt as usize;
            let shared = self.cached[prompt] == rank as u32 + 1;
            self.cached[prompt] = rank as u32 + 1;
            let cached = if shared { self.setup.prompt_tokens } else { 0 };
            prefill += f64::from(self.held[i] - cached);
            self.admitted[i] = step;
            self.finish[i] = step + u64::from(self.left[i]);
            self.finishing
                .entry(self.finish[i])
                .or_default()
                .push(sequence);
            self.join(sequence, rank);
        }
        prefill
    }

    fn join(&mut self, sequence: u32, rank: usize) {
        let i = sequence as usize;
        self.home[i] = rank as u32;
        self.at[i] = self.running[rank].len() as u32;
        self.running[rank].push(sequence);
        self.counts[rank].running += 1;
        self.base[rank] += f64::from(self.held[i]) - self.admitted[i] as f64;
        self.slope[rank] += 1.0;
    }

    fn leave(&mut self, sequence: u32) {
        let i = sequence as usize;
        let rank = self.home[i] as usize;
        let at = self.at[i] as usize;
        self.running[rank].swap_remove(at);
        if let Some(&moved) = self.running[rank].get(at) {
            self.at[moved as usize] = at as u32;
        }
        self.counts[rank].running -= 1;
        self.touched.push(rank as u32);
        self.base[rank] -= f64::from(self.held[i]) - self.admitted[i] as f64;
        self.slope[rank] -= 1.0;
    }

    /// Moves a running sequence with its KV.
    pub(super) fn shift(&mut self, sequence: u32, to: usize) {
        self.leave(sequence);
        self.join(sequence, to);
    }

    /// Moves waiting requests to the head of another queue.
    pub(super) fn requeue(&mut self, from: usize, to: usize, sequences: &[u32]) {
        self.waiting[from].retain(|sequence| !sequences.contains(sequence));
        for &sequence in sequences.iter().rev() {
            self.waiting[to].push_front(sequence);
            self.home[sequence as usize] = to as u32;
        }
        self.touched.extend([from as u32, to as u32]);
        self.counts[from].waiting -= sequences.len() as u32;
        self.counts[to].waiting += sequences.len() as u32;
    }
}
