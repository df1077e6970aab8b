//! One inference engine as a fluid: continuous batching, chunked prefill, a KV pool shared by what
//! runs and by what is cached.
//!
//! Between two events every decoding sequence advances by the same number of tokens, so one number
//! per replica says how far all of them are, and an event costs O(log sequences).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::Finite;

/// Tokens of progress after which the step time is computed anew, since contexts have grown.
const REFRESH_TOKENS: f64 = 256.0;
const EPSILON: f64 = 1e-6;

/// Speed and size of a replica. The defaults are of the order of an 8B model with grouped-query
/// attention on one accelerator with 3 TB/s.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReplicaModel {
    /// Seconds of a decode step whatever its batch.
    pub step_seconds: f64,
    /// Seconds that each sequence adds to a step.
    pub step_seconds_per_sequence: f64,
    /// Seconds that each token of context in the batch adds to a step.
    pub step_seconds_per_context_token: f64,
    /// Tokens prefilled per second.
    pub prefill_tokens_per_second: f64,
    /// Tokens prefilled in one step at most (chunked prefill).
    pub prefill_chunk: f64,
    /// Sequences running at once at most.
    pub max_num_seqs: usize,
    /// Tokens that the KV pool holds: running sequences and cached prefixes.
    pub kv_pool_tokens: f64,
    /// Tokens per KV block: a hit is whole blocks.
    pub block_size: f64,
}

impl Default for ReplicaModel {
    fn default() -> Self {
        Self {
            step_seconds: 0.008,
            step_seconds_per_sequence: 0.000_05,
            step_seconds_per_context_token: 4.5e-8,
            prefill_tokens_per_second: 25_000.0,
            prefill_chunk: 2048.0,
            max_num_seqs: 256,
            kv_pool_tokens: 400_000.0,
            block_size: 16.0,
        }
    }
}

/// A turn as a replica sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    pub(super) session: usize,
    /// Tokens of the prompt.
    pub(super) context: f64,
    /// Tokens to generate.
    pub(super) output: f64,
    /// Tokens at the start of the prompt that all sessions share.
    pub(super) shared: f64,
}

/// Prefixes that nobody uses at the moment, by age.
#[derive(Debug, Default)]
struct IdlePrefixes {
    by_session: HashMap<usize, (u64, f64)>,
    by_age: BTreeMap<u64, usize>,
    tokens: f64,
    next: u64,
}

impl IdlePrefixes {
    fn put(&mut self, session: usize, tokens: f64) {
        self.take(session);
        self.by_session.insert(session, (self.next, tokens));
        self.by_age.insert(self.next, session);
        self.next += 1;
        self.tokens += tokens;
    }

    fn take(&mut self, session: usize) -> f64 {
        let Some((age, tokens)) = self.by_session.remove(&session) else {
            return 0.0;
        };
        self.by_age.remove(&age);
        self.tokens -= tokens;
        tokens
    }

    /// Gives up the oldest prefixes, the last one from its end, until `limit` tokens are left.
    fn shrink_to(&mut self, limit: f64) {
        while self.tokens > limit + EPSILON {
            let Some((_, session)) = self.by_age.first_key_value() else {
                return;
            };
            let session = *session;
            let surplus = self.tokens - limit;
            match self.by_session.get_mut(&session) {
                Some((_, tokens)) if *tokens > surplus => {
                    *tokens -= surplus;
                    self.tokens -= surplus;
                }
                _ => {
                    self.take(session);
                }
            }
        }
    }
}

/// State of one replica.
#[derive(Debug)]
pub(super) struct Replica {
    model: ReplicaModel,
    now: f64,
    /// Tokens that every decoding sequence has generated since the beginning of time.
    progress: f64,
    /// Decoding sequences by the progress at which they end.
    decoding: BinaryHeap<Reverse<(Finite, usize)>>,
    /// Sum over decoding sequences of their context less the progress at which they began.
    context_base: f64,
    /// What is left to prefill, in order.
    prefilling: VecDeque<(usize, f64)>,
    waiting: VecDeque<Job>,
    running: HashMap<usize, Job>,
    /// Tokens that running sequences hold at their end.
    reserved: f64,
    idle: IdlePrefixes,
    has_shared: bool,
    /// Prompt tokens scheduled, and those found in the cache.
    pub(super) queried: f64,
    pub(super) hit: f64,
}

impl Replica {
    pub(super) fn new(model: ReplicaModel) -> Self {
        Self {
            model,
            now: 0.0,
            progress: 0.0,
            decoding: BinaryHeap::new(),
            context_base: 0.0,
            prefilling: VecDeque::new(),
            waiting: VecDeque::new(),
            running: HashMap::new(),
            reserved: 0.0,
            idle: IdlePrefixes::default(),
            has_shared: false,
            queried: 0.0,
            hit: 0.0,
        }
    }

    /// Brings the state to time `now`, which must not be after [`Replica::next_event`].
    pub(super) fn advance(&mut self, now: f64) {
        let elapsed = now - self.now;
        self.now = now;
        if elapsed <= 0.0 || self.running.is_empty() {
            return;
        }
        let step = self.step();
        self.progress += elapsed / step;
        if let Some((_, left)) = self.prefilling.front_mut() {
            *left -= elapsed * self.model.prefill_chunk / step;
        }
    }

    /// When the state changes of itself, `None` if nothing runs.
    pub(super) fn next_event(&self) -> Option<f64> {
        if self.running.is_empty() {
            return None;
        }
        let step = self.step();
        let decode = self
            .decoding
            .peek()
            .map(|Reverse((end, _))| (end.0 - self.progress) * step);
        let prefill = self
            .prefilling
            .front()
            .map(|(_, left)| left * step / self.model.prefill_chunk);
        let refresh = REFRESH_TOKENS * step;
        let first = [decode, prefill]
            .into_iter()
            .flatten()
            .fold(refresh, f64::min);
        Some(self.now + first.max(0.0))
    }

    /// A turn arrives now.
    pub(super) fn submit(&mut self, job: Job) {
        self.waiting.push_back(job);
        self.admit();
    }

    /// Turns that have ended by now.
    pub(super) fn settle(&mut self) -> Vec<usize> {
        while let Some((session, left)) = self.prefilling.front().copied() {
            if left > EPSILON {
                break;
            }
            self.prefilling.pop_front();
            let job = self.running[&session];
            self.decoding
                .push(Reverse((Finite(self.progress + job.output), session)));
            self.context_base += job.context - self.progress;
        }
        let mut ended = Vec::new();
        while let Some(Reverse((end, session))) = self.decoding.peek().copied() {
            if end.0 > self.progress + EPSILON {
                break;
            }
            self.decoding.pop();
            if let Some(job) = self.running.remove(&session) {
                self.context_base -= job.context - (end.0 - job.output);
                self.reserved -= job.context + job.output;
                self.idle.put(session, job.context + job.output);
                ended.push(session);
            }
        }
        if !ended.is_empty() {
            self.admit();
        }
        ended
    }

    /// Seconds of a step as things stand.
    fn step(&self) -> f64 {
        let sequences = self.decoding.len() as f64;
        let context = self.context_base + sequences * self.progress;
        let mut step = self.model.step_seconds
            + self.model.step_seconds_per_sequence * sequences
            + self.model.step_seconds_per_context_token * context;
        if !self.prefilling.is_empty() {
            step += self.model.prefill_chunk / self.model.prefill_tokens_per_second;
        }
        step
    }

    /// Starts what fits, first come first served; what is cached gives way to what runs.
    fn admit(&mut self) {
        while let Some(job) = self.waiting.front().copied() {
            let needed = job.context + job.output;
            let fits = self.reserved + needed <= self.model.kv_pool_tokens
                && self.running.len() < self.model.max_num_seqs;
            if !fits && !self.running.is_empty() {
                return;
            }
            self.waiting.pop_front();
            let own = self.idle.take(job.session).min(job.context);
            let shared = if self.has_shared {
                job.shared.min(job.context)
            } else {
                0.0
            };
            let blocks = (own.max(shared) / self.model.block_size).floor();
            // The last token is always computed: it gives the first output.
            let hit = (blocks * self.model.block_size)
                .min(job.context - 1.0)
                .max(0.0);
            self.has_shared = true;
            self.queried += job.context;
            self.hit += hit;
            self.reserved += needed;
            self.idle
                .shrink_to((self.model.kv_pool_tokens - self.reserved).max(0.0));
            self.running.insert(job.session, job);
            self.prefilling.push_back((job.session, job.context - hit));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(replica: &mut Replica) -> Vec<(f64, usize)> {
        let mut ended = Vec::new();
        while let Some(at) = replica.next_event() {
            replica.advance(at);
            ended.extend(replica.settle().into_iter().map(|session| (at, session)));
        }
        ended
    }

    fn job(session: usize, context: f64, output: f64) -> Job {
        Job {
            session,
            context,
            output,
            shared: 0.0,
        }
    }

    /// One sequence alone takes its prefill steps, then one step per token.
    #[test]
    fn a_lone_turn_takes_what_the_formula_says() {
        let model = ReplicaModel {
            step_seconds: 0.01,
            step_seconds_per_sequence: 0.0,
            step_seconds_per_context_token: 0.0,
            prefill_tokens_per_second: 10_000.0,
            prefill_chunk: 1000.0,
            ..ReplicaModel::default()
        };
        let mut replica = Replica::new(model);
        replica.submit(job(0, 2000.0, 50.0));
        let ended = run(&mut replica);
        // Two chunks of 0.1 s + 0.01 s each, then 50 steps of 0.01 s.
        assert_eq!(ended.len(), 1);
        assert!((ended[0].0 - 0.72).abs() < 1e-6, "{ended:?}");
    }

    #[test]
    fn the_next_turn_finds_its_prefix_in_whole_blocks() {
        let mut replica = Replica::new(ReplicaModel::default());
        replica.submit(job(0, 100.0, 10.0));
        run(&mut replica);
        replica.submit(job(0, 150.0, 10.0));
        run(&mut replica);
        assert_eq!((replica.queried, replica.hit), (250.0, 96.0));
    }

    #[test]
    fn the_oldest_prefix_gives_way_from_its_end() {
        let model = ReplicaModel {
            kv_pool_tokens: 1000.0,
            ..ReplicaModel::default()
        };
        let mut replica = Replica::new(model);
        for session in 0..2 {
            replica.submit(job(session, 390.0, 10.0));
            run(&mut replica);
        }
        // 600 tokens are wanted, 200 are free: session 0 keeps none of its 400, session 1 all.
        replica.submit(job(2, 590.0, 10.0));
        run(&mut replica);
        replica.submit(job(1, 400.0, 1.0));
        let before = replica.hit;
        assert_eq!(before, 399.0);
    }

    #[test]
    fn what_does_not_fit_waits_and_what_never_fits_runs_alone() {
        let model = ReplicaModel {
            kv_pool_tokens: 1000.0,
            ..ReplicaModel::default()
        };
        let mut replica = Replica::new(model);
        replica.submit(job(0, 5000.0, 10.0));
        replica.submit(job(1, 500.0, 10.0));
        let order: Vec<usize> = run(&mut replica)
            .into_iter()
            .map(|(_, session)| session)
            .collect();
        assert_eq!(order, [0, 1]);
    }
}
