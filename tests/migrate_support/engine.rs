//! An honest model of a serving engine: lists, blocks with contents, reservations. It fails the
//! test when a call comes out of the protocol's order or a block does not hold what it should.

mod protocol;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use seqshift::migrate::engine::{EngineError, Result, Source};
use seqshift::wire::manifest::SequenceKey;
use seqshift::wire::message::{Return, TokenOutput};

use super::faults::{Faults, Point};

/// Tokens per block.
pub const BLOCK_SIZE: u32 = 4;
pub type Block = [u64; BLOCK_SIZE as usize];
pub type Memory = Arc<Mutex<Vec<Block>>>;

pub fn mix(sum: u64, word: u64) -> u64 {
    (sum ^ word)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
}

/// The token that a sequence has at a position, wherever it runs.
pub fn token(name: &str, at: usize) -> u32 {
    let name = name.bytes().fold(7, |sum, b| mix(sum, u64::from(b)));
    (mix(name, at as u64) >> 40) as u32
}

/// Steps of a check, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Begun,
    Counts,
    Sync,
    Detail,
    Capture,
    Reserve,
    Install,
    Commit,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    pub name: String,
    pub key: Option<SequenceKey>,
    prompt: Vec<u32>,
    output: Vec<u32>,
    /// Tokens to generate.
    length: u32,
    hops: u32,
    blocks: Vec<u32>,
    frozen: bool,
    gone: bool,
    /// Times that it has lost its blocks.
    preempted: u32,
}

impl Sequence {
    fn tokens(&self) -> usize {
        self.prompt.len() + self.output.len()
    }

    fn computed(&self) -> usize {
        // Without blocks it is about to be computed anew.
        if self.output.is_empty() || self.blocks.is_empty() {
            0
        } else {
            self.tokens() - 1
        }
    }

    /// Blocks that it will have at its end, beyond those that it holds.
    fn to_come(&self) -> usize {
        let tokens = self.prompt.len() as u32 + self.length;
        tokens.div_ceil(BLOCK_SIZE) as usize - self.blocks.len()
    }
}

pub struct FakeEngine {
    pub rank: u32,
    pub shard: u32,
    pub memory: Memory,
    pub faults: Faults,
    pub slots: usize,
    pub free: Vec<u32>,
    pub running: Vec<Sequence>,
    pub waiting: Vec<Sequence>,
    /// Whether each is installed.
    reserved: BTreeMap<SequenceKey, (Sequence, bool)>,
    /// Sequences that are watched: name, times preempted.
    watched: BTreeMap<u32, (String, u32)>,
    /// Blocks held for sequences to come.
    pub prepared: BTreeMap<u32, Vec<u32>>,
    /// Own sequences that run elsewhere.
    pub away: BTreeMap<SequenceKey, String>,
    /// What the callers have got.
    pub results: BTreeMap<String, Vec<u32>>,
    pub finished: BTreeSet<String>,
    outgoing: BTreeMap<SequenceKey, Return>,
    aborts: Vec<SequenceKey>,
    aborted: BTreeSet<SequenceKey>,
    serial: u64,
    phase: Phase,
    /// Sequences run in the last step.
    pub ran: Vec<String>,
    /// Activations, drops, thaws and releases in the last check.
    pub commits: usize,
}

impl FakeEngine {
    pub fn new(rank: u32, shard: u32, blocks: u32, slots: usize, faults: Faults) -> Self {
        let memory = Arc::new(Mutex::new(vec![Block::default(); blocks as usize]));
        Self {
            rank,
            shard,
            memory,
            faults,
            slots,
            free: (0..blocks).rev().collect(),
            running: Vec::new(),
            waiting: Vec::new(),
            reserved: BTreeMap::new(),
            watched: BTreeMap::new(),
            prepared: BTreeMap::new(),
            away: BTreeMap::new(),
            results: BTreeMap::new(),
            finished: BTreeSet::new(),
            outgoing: BTreeMap::new(),
            aborts: Vec::new(),
            aborted: BTreeSet::new(),
            serial: 0,
            phase: Phase::Begun,
            ran: Vec::new(),
            commits: 0,
        }
    }

    pub fn add(&mut self, name: &str, prompt: usize, length: u32) {
        self.results.insert(name.into(), Vec::new());
        self.waiting.push(Sequence {
            name: name.into(),
            key: None,
            prompt: (0..prompt).map(|at| token(name, at)).collect(),
            output: Vec::new(),
            length,
            hops: 0,
            blocks: Vec::new(),
            frozen: false,
            gone: false,
            preempted: 0,
        });
    }

    pub fn watched_names(&self) -> Vec<String> {
        self.watched
            .values()
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// It loses its blocks, and is computed anew as soon as there is room.
    pub fn preempt(&mut self, name: &str) {
        let at = self.running.iter().position(|s| s.name == name).unwrap();
        let mut sequence = self.running.remove(at);
        self.free.append(&mut sequence.blocks);
        sequence.preempted += 1;
        self.waiting.insert(0, sequence);
    }

    /// The caller wants no more of it.
    pub fn abort(&mut self, name: &str) {
        self.results.remove(name);
        let away = self.away.iter().find(|(_, n)| *n == name).map(|(k, _)| *k);
        if let Some(key) = away {
            self.away.remove(&key);
            self.aborted.insert(key);
            self.aborts.push(key);
        } else {
            self.remove(|s| s.name == name);
        }
    }

    fn remove(&mut self, which: impl Fn(&Sequence) -> bool) {
        for list in [&mut self.running, &mut self.waiting] {
            for sequence in list.extract_if(.., |s| which(s)) {
                self.free.extend(sequence.blocks);
            }
        }
    }

    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// A step boundary: what moved away is gone, and nothing is left half done.
    pub fn settle(&mut self) {
        for list in [&mut self.running, &mut self.waiting] {
            list.retain(|s| !s.gone);
            assert!(list.iter().all(|s| !s.frozen), "left frozen: {list:?}");
        }
        assert!(self.reserved.is_empty(), "left: {:?}", self.reserved);
        let held = self.running.iter().chain(&self.waiting);
        let held = held.flat_map(|s| &s.blocks).chain(&self.free);
        let held = held.chain(self.prepared.values().flatten()).copied();
        let held: BTreeSet<u32> = held.collect();
        let all = self.memory.lock().unwrap().len();
        assert_eq!(held.len(), all, "blocks were lost or given out twice");
        self.begin();
    }

    /// A check or the last return begins.
    pub fn begin(&mut self) {
        self.phase = Phase::Begun;
        self.commits = 0;
    }

    /// One step of every sequence that has a slot.
    pub fn step(&mut self) {
        self.ran.clear();
        while let Some(next) = self.waiting.first()
            && self.running.len() < self.slots
            && self.free.len() >= self.promised() + next.to_come()
        {
            let next = self.waiting.remove(0);
            self.running.push(next);
        }
        let mut memory = self.memory.lock().unwrap();
        for sequence in &mut self.running {
            check_contents(sequence, self.shard, &memory);
            let tokens = sequence.tokens();
            for at in sequence.computed()..tokens {
                let (block, slot) = (at / BLOCK_SIZE as usize, at % BLOCK_SIZE as usize);
                if block == sequence.blocks.len() {
                    sequence.blocks.push(self.free.pop().unwrap());
                }
                memory[sequence.blocks[block] as usize][slot] = content(sequence, self.shard, at);
            }
            let new = token(&sequence.name, tokens);
            sequence.output.push(new);
            self.ran.push(sequence.name.clone());
            let done = sequence.output.len() as u32 == sequence.length;
            match sequence.key.filter(|k| k.origin != self.rank) {
                None => {
                    self.results.get_mut(&sequence.name).unwrap().push(new);
                    if done {
                        self.finished.insert(sequence.name.clone());
                    }
                }
                Some(key) => {
                    let none = Return {
                        key,
                        outputs: Vec::new(),
                        done: false,
                    };
                    let back = self.outgoing.entry(key).or_insert(none);
                    back.done = done;
                    back.outputs.push(TokenOutput {
                        token_ids: vec![new],
                        logprobs: None,
                        finish: None,
                        num_cached_tokens: 0,
                    });
                }
            }
        }
        drop(memory);
        self.remove(|s| s.output.len() as u32 == s.length);
    }

    /// Blocks that running and reserved sequences have yet to get.
    fn promised(&self) -> usize {
        let reserved = self.reserved.values().map(|(s, _)| s);
        let with_kv = reserved.filter(|s| !s.output.is_empty());
        self.running
            .iter()
            .chain(with_kv)
            .map(Sequence::to_come)
            .sum()
    }

    fn enter(&mut self, phase: Phase) {
        assert!(self.phase <= phase, "{phase:?} after {:?}", self.phase);
        if phase > Phase::Detail {
            assert!(self.phase >= Phase::Detail, "{phase:?} without details");
        }
        self.phase = phase;
    }

    fn commit(&mut self) {
        self.enter(Phase::Commit);
        self.commits += 1;
    }

    fn fails(&self, point: Point) -> Result<()> {
        if self.faults.fires(point) {
            return Err(EngineError(format!("{point:?}").to_lowercase()));
        }
        Ok(())
    }

    fn at(&mut self, source: Source) -> &mut Sequence {
        match source {
            Source::Running(i) => &mut self.running[i as usize],
            Source::Waiting(i) => &mut self.waiting[i as usize],
        }
    }
}

fn content(sequence: &Sequence, shard: u32, at: usize) -> u64 {
    mix(u64::from(token(&sequence.name, at)), u64::from(shard) + 1)
}

fn check_contents(sequence: &Sequence, shard: u32, memory: &[Block]) {
    for at in 0..sequence.computed() {
        let block = sequence.blocks[at / BLOCK_SIZE as usize] as usize;
        let have = memory[block][at % BLOCK_SIZE as usize];
        let want = content(sequence, shard, at);
        assert_eq!(have, want, "KV of {} at {at}", sequence.name);
    }
}
