//! Between plan and [`Round`]: a copy of full KV blocks in the background.
//!
//! Full blocks of a running sequence never change, so the moves of a plan can be begun while
//! decoding goes on. In one check the sources name each sequence's full blocks, the
//! destinations hold as many, and a background exchange begins; all ranks know in how many
//! steps the next check comes. There, what still runs and is still worth moving goes through
//! an ordinary round, which sends only the rest.
//!
//! Nothing is decided by the copy itself: the sequence is neither frozen nor offered, and
//! what the destination holds is bound to no request. So whatever goes wrong costs only the
//! head start: a sequence that has ended is dropped, blocks that did not arrive are sent by
//! the round. Held blocks are given back only once nothing writes to them any more.

mod begin;
mod sort;

use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use super::MigrateError;
use super::channel::{KvChannel, KvOutcome};
use super::check::Migrator;
use super::engine::{Engine, EngineError, Source};
use super::policy::{Decision, Flight};
use super::report::Report;
use super::round::Round;
use crate::plan::Background;
use crate::wire::message::{Detail, ShardVotes};

/// Rounds of copying before the stop: each copies what the last one's time has added.
const MOST_ROUNDS: u32 = 3;

/// Looks at a copy that takes longer than predicted before all wait for it.
const MOST_LOOKS: u32 = 4;

/// Steps until the next check where a copy is forced and no prediction made.
const FORCED_STEPS: u32 = 3;

/// Whether KV is copied in the background before a round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Precopy {
    /// Never.
    #[default]
    Off,
    /// Where it pays.
    Auto,
    /// However little there is to copy: for tests.
    Always,
}

impl Precopy {
    /// From the setting and the value of `SEQSHIFT_TEST_PRECOPY`, empty if it is not set.
    ///
    /// # Errors
    /// Names the value and the one that is known.
    pub fn new(wanted: bool, test: &str) -> Result<Self, String> {
        match (wanted, test) {
            (false, _) => Ok(Self::Off),
            (true, "") => Ok(Self::Auto),
            (true, "always") => Ok(Self::Always),
            (true, other) => Err(format!(
                "SEQSHIFT_TEST_PRECOPY: {other:?} is not \"always\""
            )),
        }
    }
}

/// What copies in the background came to, as one rank saw it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Precopied {
    /// Copies that ended.
    pub rounds: u32,
    /// Bytes sent from here.
    pub bytes: u64,
    /// KV blocks sent from here or received here, whichever is more.
    pub blocks: u32,
    /// Time that the copies took.
    pub time: Duration,
    /// Why this rank's sequences did not move, or their copies were of no use.
    pub aborted: Vec<String>,
}

/// One end's part of a copy.
#[derive(Debug, Clone, Default)]
pub(super) struct Copied {
    /// At the destination: what the engine holds blocks under.
    pub(super) ticket: Option<u32>,
    /// Blocks copied, in token order.
    blocks: Vec<u32>,
    /// Digest of their bytes.
    pub(super) digest: Option<u64>,
}

impl Copied {
    /// Number of `blocks` that are copied, if these are the blocks that were.
    pub(super) fn leads(&self, blocks: &[u32]) -> usize {
        if blocks.starts_with(&self.blocks) {
            self.blocks.len()
        } else {
            0
        }
    }
}

/// Digest of two parts; none without both.
pub(super) fn join(first: Option<u64>, second: Option<u64>) -> Option<u64> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first?.to_le_bytes());
    bytes[8..].copy_from_slice(&second?.to_le_bytes());
    Some(xxh3_64(&bytes))
}

/// One move whose KV is being copied.
#[derive(Debug)]
struct Copy {
    ticket: u32,
    flight: Flight,
    /// The sequence's blocks when the last round began; the same on all ranks.
    seen: u32,
    copied: Copied,
    /// This end's blocks of the round under way.
    under_way: Vec<u32>,
    /// At the source: why the engine cannot say what becomes of the sequence.
    lost: Option<String>,
}

/// A plan between two checks; its moves are the same on all ranks.
#[derive(Debug)]
pub(super) struct Pending {
    reasons: Vec<String>,
    copies: Vec<Copy>,
    steps: u32,
    rounds: u32,
    looks: u32,
}

impl Pending {
    pub(super) fn new(decision: &Decision, details: &[Detail], steps: u32) -> Self {
        let copies = (0..).zip(&decision.flights).map(|(ticket, flight)| Copy {
            ticket,
            flight: *flight,
            seen: kv_blocks(details, flight),
            copied: Copied::default(),
            under_way: Vec::new(),
            lost: None,
        });
        Self {
            reasons: decision.reasons.clone(),
            copies: copies.collect(),
            steps,
            rounds: 0,
            looks: 0,
        }
    }

    fn flights(&self) -> Vec<Flight> {
        self.copies.iter().map(|c| c.flight).collect()
    }

    /// Moves from a rank, optionally to one other.
    fn of(&self, from: Option<u32>, to: Option<u32>) -> Vec<usize> {
        let wanted = |f: &Flight| from.is_none_or(|r| f.from == r) && to.is_none_or(|r| f.to == r);
        (0..self.copies.len())
            .filter(|i| wanted(&self.copies[*i].flight))
            .collect()
    }
}

/// Blocks of a move's sequence, as its rank has told.
fn kv_blocks(details: &[Detail], flight: &Flight) -> u32 {
    let Source::Running(index) = flight.source else {
        return 0;
    };
    let detail = details.get(flight.from as usize);
    detail
        .and_then(|d| d.running.get(index as usize))
        .map_or(0, |s| s.kv_blocks)
}

fn lost(e: EngineError) -> MigrateError {
    MigrateError::AfterCommit {
        action: "giving held blocks back",
        why: e.0,
    }
}

impl<K: KvChannel> Migrator<K> {
    /// In how many steps the next check comes if the moves are copied in the background;
    /// None where that does not pay. `blocks` says how many of a sequence's blocks count.
    /// Equal on all ranks and shards.
    pub(super) fn steps(
        &mut self,
        details: &[Detail],
        flights: &[Flight],
        blocks: impl Fn(usize, u32) -> u32,
        until: Instant,
    ) -> Result<Option<u32>, MigrateError> {
        let running = |f: &Flight| matches!(f.source, Source::Running(_));
        // A waiting request gains nothing and should not wait any longer.
        if self.precopy == Precopy::Off || self.suspended || !flights.iter().all(running) {
            return Ok(None);
        }
        let mut traffic = vec![(0_u32, 0_u32); details.len()];
        for (i, flight) in flights.iter().enumerate() {
            let count = blocks(i, kv_blocks(details, flight));
            traffic[flight.from as usize].0 += count;
            traffic[flight.to as usize].1 += count;
        }
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let copy = Background {
            blocks: traffic
                .iter()
                .map(|(out, into)| *out.max(into))
                .max()
                .unwrap_or(0),
            block_bytes: self.kv.block_bytes(),
            step_seconds: details
                .iter()
                .filter_map(|d| d.speeds.step_nanos)
                .max()
                .map(seconds),
            seconds_per_block: details
                .iter()
                .filter_map(|d| d.speeds.block_nanos)
                .max()
                .map(seconds),
            remaining: details.iter().filter_map(|d| d.speeds.remaining).max(),
        };
        let mine = match self.precopy {
            Precopy::Always if copy.blocks > 0 => copy.steps().or(Some(FORCED_STEPS)),
            _ => copy.steps(),
        };
        // The group waits for its slowest shard.
        let mine = ShardVotes {
            plan: mine.unwrap_or(0).into(),
            votes: Vec::new(),
        };
        let all = self.shards(&mine, until)?;
        let most = all.iter().map(|s| s.plan as u32).max().unwrap_or(0);
        Ok((most > 0).then_some(most))
    }

    /// The check that a copy has announced.
    pub(super) fn resume(
        &mut self,
        engine: &mut dyn Engine,
        mut pending: Pending,
        report: &mut Report,
        step: u64,
        until: Instant,
    ) -> Result<(), MigrateError> {
        const COPYING: u64 = 1;
        const UNREADABLE: u64 = 2;
        let flag = |on: bool, flag: u64| if on { flag } else { 0 };
        let flags = flag(report.loads.iter().any(|l| l.copying), COPYING)
            | flag(report.loads.iter().any(|l| !l.healthy), UNREADABLE);
        let mine = ShardVotes {
            plan: flags,
            votes: Vec::new(),
        };
        let flags = self
            .shards(&mine, until)?
            .iter()
            .fold(0, |all, s| all | s.plan);
        if flags == COPYING && pending.looks < MOST_LOOKS {
            pending.looks += 1;
            report.resume_at = Some(step + u64::from(pending.steps));
            self.pending = Some(pending);
            return Ok(());
        }
        self.collect(&mut pending, &mut report.precopied)?;
        report.kv_bytes += report.precopied.bytes;
        report.unreadable = flags & UNREADABLE != 0;
        if report.unreadable {
            return self.give_up(engine, pending, report, "an engine could not be read");
        }
        if report.layouts_differ() {
            self.meet(report, until);
        }
        let rank = self.dp.rank();
        let Some(details) = self.details(
            engine,
            report,
            |engine| sort::standing(engine, &pending, rank),
            until,
        )?
        else {
            // What broke the link would break the next copy as well.
            self.suspended |= report.kv_failed;
            let why = match report.kv_failed {
                true => report.kv_error.clone(),
                false => Some("an engine could not be read".into()),
            };
            let why = why.unwrap_or_else(|| "the KV communicator broke".into());
            return self.give_up(engine, pending, report, &why);
        };
        self.sort_out(engine, &mut pending, report, &details, until)?;
        let flights = pending.flights();
        if flights.is_empty() {
            return Ok(());
        }
        if pending.rounds < MOST_ROUNDS {
            let new = |i: usize, blocks: u32| blocks.saturating_sub(pending.copies[i].seen);
            if let Some(steps) = self.steps(&details, &flights, new, until)? {
                pending.steps = steps;
                for copy in &mut pending.copies {
                    copy.seen = kv_blocks(&details, &copy.flight);
                }
                return self.copy(engine, pending, report, step, until);
            }
        }
        report.decision = Decision {
            flights: flights.clone(),
            reasons: pending.reasons.clone(),
            blocked: false,
        };
        let copied = pending.copies.iter().map(|c| c.copied.clone()).collect();
        Round::new(self, flights, copied, until).run(engine, report)?;
        pending
            .copies
            .iter()
            .try_for_each(|c| engine.dismiss(c.ticket).map_err(lost))
    }

    /// Waits for the copy under way and takes in what arrived. What did not is sent later.
    fn collect(&mut self, pending: &mut Pending, into: &mut Precopied) -> Result<(), MigrateError> {
        let done = self.kv.finish().map_err(MigrateError::Background)?;
        let rank = self.dp.rank();
        let mut outbound = done.report.outbound.into_iter();
        let mut inbound = done.report.inbound.into_iter();
        let mut blocks = (0, 0);
        for copy in pending
            .copies
            .iter_mut()
            .filter(|c| !c.under_way.is_empty())
        {
            let new = std::mem::take(&mut copy.under_way);
            let leaves = copy.flight.from == rank;
            let outcome = if leaves {
                outbound.next()
            } else {
                inbound.next()
            };
            let outcome = outcome.unwrap_or_else(|| KvOutcome {
                digest: None,
                error: Some("nothing is known of it".into()),
            });
            *(if leaves { &mut blocks.0 } else { &mut blocks.1 }) += new.len();
            let copied = &mut copy.copied;
            match outcome.error {
                None => {
                    copied.digest = match copied.blocks.len() {
                        0 => outcome.digest,
                        _ => join(copied.digest, outcome.digest),
                    };
                    copied.blocks.extend(new);
                }
                Some(why) => {
                    (copied.blocks, copied.digest) = (Vec::new(), None);
                    into.aborted.push(format!("copied anew: {why}"));
                }
            }
        }
        into.rounds += 1;
        into.bytes += done.report.bytes;
        into.blocks += blocks.0.max(blocks.1) as u32;
        into.time += done.elapsed;
        Ok(())
    }

    /// All moves stay where they are.
    fn give_up(
        &mut self,
        engine: &mut dyn Engine,
        pending: Pending,
        report: &mut Report,
        why: &str,
    ) -> Result<(), MigrateError> {
        let rank = self.dp.rank();
        for copy in &pending.copies {
            engine.dismiss(copy.ticket).map_err(lost)?;
            if copy.flight.from == rank {
                report.precopied.aborted.push(why.into());
            }
        }
        Ok(())
    }

    /// The group has drained while KV is copied in the background: waits for the end of the copy
    /// and gives what is held back. All ranks come by here of themselves, so nothing is exchanged.
    ///
    /// # Errors
    /// The copy cannot be stopped.
    pub fn cancel(&mut self, engine: &mut dyn Engine) -> Result<Precopied, MigrateError> {
        self.drop_copies(engine, "the rollout has ended")
    }

    /// The engine leaves its group while KV may be copied in the background: as
    /// [`Migrator::cancel`], but the copy is stopped, and the communicator with it.
    ///
    /// # Errors
    /// The copy cannot be stopped.
    pub fn abandon(&mut self, engine: &mut dyn Engine) -> Result<Precopied, MigrateError> {
        self.kv.abandon();
        self.drop_copies(engine, "the engine has left its group")
    }

    fn drop_copies(
        &mut self,
        engine: &mut dyn Engine,
        why: &str,
    ) -> Result<Precopied, MigrateError> {
        self.suspended = false;
        let mut report = Report::default();
        if let Some(mut pending) = self.pending.take() {
            self.collect(&mut pending, &mut report.precopied)?;
            // Nothing is copied anew, whatever became of the copy.
            report.precopied.aborted.clear();
            self.give_up(engine, pending, &mut report, why)?;
        } else {
            // A check that has failed may have left a copy that nobody knows of any more.
            self.kv.finish().map_err(MigrateError::Background)?;
        }
        Ok(report.precopied)
    }
}
