//! One check, in the order of the protocol:
//! load, plan, offer, reserve, transfer, commit; and the return of results.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::MigrateError;
use super::channel::{KvChannel, KvMove, KvReport};
use super::engine::{Engine, EngineError};
use super::policy::{Decision, Flight, Policy};
use crate::collective::control::{Mesh, Received};
use crate::wire::frame::Kind;
use crate::wire::manifest::SequenceKey;
use crate::wire::message::{Detail, Load, MoveOutcome, Offer, Outcome, Reply, ShardVotes, Sync};
use crate::wire::{decode, encode};

/// How long a rank waits for the others to enter a check: the default of the
/// engine's own gloo collectives, since a rank that is late here is late there.
const ENTRY: Duration = Duration::from_secs(1800);

/// What became of one move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveResult {
    /// The move.
    pub flight: Flight,
    /// None when it was committed.
    pub error: Option<String>,
    /// It failed before anything was reserved: a reject, not a fault.
    pub rejected: bool,
}

/// What one check did, as this rank saw it.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Every rank's load record.
    pub loads: Vec<Load>,
    /// The plan; without flights when there was none.
    pub decision: Decision,
    /// Every move of the group, in plan order; equal on all ranks.
    pub moves: Vec<MoveResult>,
    /// KV bytes sent from here.
    pub kv_bytes: u64,
    /// Results or aborts were exchanged.
    pub synced: bool,
    /// Time from the moment all ranks had entered to the end.
    pub pause: Duration,
}

impl Report {
    /// Moves that were committed.
    pub fn committed(&self) -> usize {
        self.moves.iter().filter(|m| m.error.is_none()).count()
    }

    /// Moves that failed after a reservation: what `max_failures` counts.
    pub fn faults(&self) -> usize {
        self.moves
            .iter()
            .filter(|m| m.error.is_some() && !m.rejected)
            .count()
    }
}

/// One rank's end of the protocol.
pub struct Migrator<K> {
    dp: Mesh,
    tp: Mesh,
    kv: K,
    policy: Box<dyn Policy>,
    block_size: u32,
    deadline: Duration,
}

impl<K: KvChannel> Migrator<K> {
    /// `dp` joins the ranks of the DP group, `tp` the shards of this rank;
    /// `deadline` bounds every check from the moment all ranks have entered.
    pub fn new(
        dp: Mesh,
        tp: Mesh,
        kv: K,
        policy: Box<dyn Policy>,
        block_size: u32,
        deadline: Duration,
    ) -> Self {
        Self {
            dp,
            tp,
            kv,
            policy,
            block_size,
            deadline,
        }
    }

    /// The KV channel, to resolve its pointers again.
    pub fn kv(&mut self) -> &mut K {
        &mut self.kv
    }

    /// Makes the KV communicator before the first check.
    ///
    /// # Errors
    /// Says what failed.
    pub fn start(&mut self) -> Result<(), String> {
        self.kv
            .restore(&mut self.dp, Instant::now() + self.deadline)
    }

    /// Runs one check. All ranks call it at the same step boundary.
    ///
    /// # Errors
    /// [`MigrateError`] stops the rollout; everything milder is in the report.
    pub fn check(&mut self, engine: &mut dyn Engine, step: u64) -> Result<Report, MigrateError> {
        // 1. Load.
        let loads = self.loads(engine, step)?;
        let entered = Instant::now();
        let until = entered + self.deadline;
        let mut report = Report {
            loads,
            ..Report::default()
        };
        // 7. Return: tokens so far go home before anything moves on.
        if report.loads.iter().any(|l| l.has_sync) {
            self.sync(engine, Kind::Sync, until)?;
            report.synced = true;
        }
        if report.loads.iter().all(|l| l.healthy) && !self.policy.idle(&report.loads) {
            if report.loads.iter().any(|l| l.communicator_broken)
                && let Err(why) = self.kv.restore(&mut self.dp, until)
            {
                tracing::warn!(why, "the KV communicator could not be made");
            }
            // 2. Plan.
            report.decision = self.plan(engine, &report.loads, until)?;
            if !report.decision.flights.is_empty() {
                let flights = report.decision.flights.clone();
                Round::new(self, flights, until).run(engine, &mut report)?;
            }
        }
        report.pause = entered.elapsed();
        Ok(report)
    }

    /// The last exchange of a rollout: results that are still away go home.
    /// Returns whether anything was returned to anybody.
    ///
    /// # Errors
    /// As [`Migrator::check`].
    pub fn drain(&mut self, engine: &mut dyn Engine) -> Result<bool, MigrateError> {
        let until = Instant::now() + ENTRY;
        self.sync(engine, Kind::Drain, until)
    }

    fn loads(&mut self, engine: &mut dyn Engine, step: u64) -> Result<Vec<Load>, MigrateError> {
        let counts = engine.counts();
        if let Err(why) = &counts {
            tracing::warn!(%why, "the engine's load could not be read");
        }
        let healthy = counts.is_ok();
        let counts = counts.unwrap_or_default();
        let mine = Load {
            step,
            running: counts.running,
            waiting: counts.waiting,
            free_kv_blocks: counts.free_kv_blocks,
            max_num_seqs: counts.max_num_seqs,
            healthy,
            has_sync: counts.has_sync,
            communicator_broken: self.kv.broken(),
        };
        let until = Instant::now() + ENTRY;
        let loads: Vec<Load> = gather(&mut self.dp, Kind::Load, &mine, until)?;
        for (rank, load) in (0..).zip(&loads) {
            if load.step != step {
                return Err(MigrateError::LostLockstep {
                    rank,
                    theirs: load.step,
                    ours: step,
                });
            }
        }
        Ok(loads)
    }

    fn sync(
        &mut self,
        engine: &mut dyn Engine,
        kind: Kind,
        until: Instant,
    ) -> Result<bool, MigrateError> {
        let after = |action| move |e: EngineError| MigrateError::AfterCommit { action, why: e.0 };
        let mine = engine
            .take_sync(self.dp.size())
            .map_err(after("taking results"))?;
        // A rank without results of its own must know that others have some.
        let any = mine.iter().any(|s| !s.returns.is_empty());
        let payloads = mine.iter().map(|s| encode(&(any, s))).collect();
        let received = self.dp.all_to_all(kind, payloads, until)?;
        let mut returned = false;
        for (rank, bytes) in (0..).zip(received) {
            let (any, sync): (bool, Sync) = read(kind, rank, bytes)?;
            returned |= any;
            engine
                .accept_sync(sync)
                .map_err(after("delivering results"))?;
        }
        Ok(returned)
    }

    fn plan(
        &mut self,
        engine: &mut dyn Engine,
        loads: &[Load],
        until: Instant,
    ) -> Result<Decision, MigrateError> {
        let mine = match engine.detail() {
            Ok(detail) => Detail {
                healthy: true,
                ..detail
            },
            Err(why) => {
                tracing::warn!(%why, "the engine's sequences could not be read");
                Detail::default()
            }
        };
        let details: Vec<Detail> = gather(&mut self.dp, Kind::Detail, &mine, until)?;
        if !details.iter().all(|d| d.healthy) {
            return Ok(Decision::default());
        }
        let decision = self.policy.decide(loads, &details);
        // The shards of a rank must not act on different plans.
        let votes = ShardVotes {
            plan: decision.digest(),
            votes: Vec::new(),
        };
        let shards: Vec<ShardVotes> = gather(&mut self.tp, Kind::Shard, &votes, until)?;
        if shards.iter().any(|s| s.plan != votes.plan) {
            tracing::warn!("TP shards planned differently; nothing moves in this check");
            return Ok(Decision::default());
        }
        Ok(decision)
    }
}

/// Sends `mine` to all and decodes everybody's; a damaged one cannot be done without.
fn gather<T: Serialize + DeserializeOwned>(
    mesh: &mut Mesh,
    kind: Kind,
    mine: &T,
    until: Instant,
) -> Result<Vec<T>, MigrateError> {
    let received = mesh.all_gather(kind, &encode(mine), until)?;
    (0..)
        .zip(received)
        .map(|(rank, bytes)| read(kind, rank, bytes))
        .collect()
}

fn read<T: DeserializeOwned>(kind: Kind, rank: u32, bytes: Received) -> Result<T, MigrateError> {
    bytes
        .and_then(|b| decode(kind, &b))
        .map_err(|e| MigrateError::Peer {
            rank,
            why: e.to_string(),
        })
}

/// What this rank knows of one move on its way through steps 3 to 6.
#[derive(Debug, Default)]
struct Passage {
    key: Option<SequenceKey>,
    blocks: Vec<u32>,
    captured: bool,
    reserved: bool,
    error: Option<String>,
    rejected: bool,
    digest: Option<u64>,
}

impl Passage {
    fn reject(&mut self, why: String) {
        self.error.get_or_insert(why);
        self.rejected = true;
    }
}

/// Steps 3 to 6 for one list of flights.
struct Round<'a, K> {
    to: &'a mut Migrator<K>,
    rank: u32,
    flights: Vec<Flight>,
    passages: Vec<Passage>,
    until: Instant,
    kv: KvReport,
}

impl<'a, K: KvChannel> Round<'a, K> {
    fn new(to: &'a mut Migrator<K>, flights: Vec<Flight>, until: Instant) -> Self {
        let passages = flights.iter().map(|_| Passage::default()).collect();
        let rank = to.dp.rank();
        Self {
            to,
            rank,
            flights,
            passages,
            until,
            kv: KvReport::default(),
        }
    }

    fn run(mut self, engine: &mut dyn Engine, report: &mut Report) -> Result<(), MigrateError> {
        self.offer(engine)?;
        self.reply()?;
        self.transfer();
        self.install(engine);
        self.agree()?;
        self.commit(engine)?;
        report.kv_bytes = self.kv.bytes;
        report.moves = self
            .flights
            .into_iter()
            .zip(self.passages)
            .map(|(flight, p)| MoveResult {
                flight,
                error: p.error,
                rejected: p.rejected,
            })
            .collect();
        Ok(())
    }

    fn outbound(&self, peer: Option<u32>) -> Vec<usize> {
        let mine = |f: &Flight| f.from == self.rank && peer.is_none_or(|p| f.to == p);
        (0..self.flights.len())
            .filter(|i| mine(&self.flights[*i]))
            .collect()
    }

    fn inbound(&self, peer: Option<u32>) -> Vec<usize> {
        let mine = |f: &Flight| f.to == self.rank && peer.is_none_or(|p| f.from == p);
        (0..self.flights.len())
            .filter(|i| mine(&self.flights[*i]))
            .collect()
    }

    /// The shards of this rank agree: what failed on one has failed on all.
    fn shards(&mut self, of: &[usize]) -> Result<(), MigrateError> {
        if self.to.tp.size() == 1 {
            return Ok(());
        }
        let votes = of.iter().map(|i| self.passages[*i].error.clone()).collect();
        let mine = ShardVotes { plan: 0, votes };
        let all: Vec<ShardVotes> = gather(&mut self.to.tp, Kind::Shard, &mine, self.until)?;
        for (shard, votes) in (0..).zip(all) {
            if votes.votes.len() != of.len() {
                let why = format!("{} votes instead of {}", votes.votes.len(), of.len());
                return Err(MigrateError::Peer { rank: shard, why });
            }
            for (i, vote) in of.iter().zip(votes.votes) {
                if let (None, Some(why)) = (&self.passages[*i].error, vote) {
                    self.passages[*i].error = Some(format!("TP shard {shard}: {why}"));
                }
            }
        }
        Ok(())
    }

    /// 3. Offer: the source freezes and describes; 4. the destination reserves.
    fn offer(&mut self, engine: &mut dyn Engine) -> Result<(), MigrateError> {
        let outbound = self.outbound(None);
        let mut manifests = Vec::new();
        for i in &outbound {
            let passage = &mut self.passages[*i];
            manifests.push(match engine.capture(self.flights[*i].source) {
                Ok(captured) => {
                    passage.captured = true;
                    passage.key = Some(captured.manifest.key);
                    passage.blocks = captured.blocks;
                    Some(captured.manifest)
                }
                Err(why) => {
                    passage.reject(format!("not captured: {why}"));
                    None
                }
            });
        }
        self.shards(&outbound)?;
        let mut payloads: Vec<Vec<Offer>> = vec![Vec::new(); self.to.dp.size() as usize];
        for (i, manifest) in outbound.iter().zip(manifests) {
            let passage = &mut self.passages[*i];
            let offer = match (manifest, &passage.error) {
                (Some(manifest), None) => Offer::Manifest(Box::new(manifest)),
                (_, why) => {
                    let why = why.clone().unwrap_or_default();
                    passage.rejected = true;
                    Offer::Withdrawn(why)
                }
            };
            payloads[self.flights[*i].to as usize].push(offer);
        }
        let payloads = payloads.iter().map(encode).collect();
        let received = self.to.dp.all_to_all(Kind::Offer, payloads, self.until)?;
        for (peer, bytes) in (0..).zip(received) {
            let inbound = self.inbound(Some(peer));
            match bytes.and_then(|b| decode::<Vec<Offer>>(Kind::Offer, &b)) {
                Ok(offers) if offers.len() == inbound.len() => {
                    for (i, offer) in inbound.into_iter().zip(offers) {
                        self.reserve(engine, i, offer);
                    }
                }
                Ok(offers) => {
                    let why = format!("{} offers instead of {}", offers.len(), inbound.len());
                    self.reject_all(&inbound, &why);
                }
                Err(why) => self.reject_all(&inbound, &why.to_string()),
            }
        }
        let inbound = self.inbound(None);
        self.shards(&inbound)
    }

    fn reject_all(&mut self, of: &[usize], why: &str) {
        for i in of {
            self.passages[*i].reject(why.to_string());
        }
    }

    fn reserve(&mut self, engine: &mut dyn Engine, i: usize, offer: Offer) {
        let block_size = self.to.block_size;
        let passage = &mut self.passages[i];
        let manifest = match offer {
            Offer::Manifest(manifest) => manifest,
            Offer::Withdrawn(why) => return passage.reject(why),
        };
        if let Err(why) = manifest.validate(block_size) {
            return passage.reject(format!("manifest: {why}"));
        }
        match engine.reserve(&manifest) {
            Ok(blocks) => {
                passage.reserved = true;
                passage.key = Some(manifest.key);
                if blocks.len() != manifest.kv_blocks as usize {
                    let (have, want) = (blocks.len(), manifest.kv_blocks);
                    passage.reject(format!("{have} blocks reserved, {want} wanted"));
                }
                passage.blocks = blocks;
            }
            Err(why) => passage.reject(why.0),
        }
    }

    /// 4. Reserve, the answers.
    fn reply(&mut self) -> Result<(), MigrateError> {
        let mut payloads: Vec<Vec<Reply>> = vec![Vec::new(); self.to.dp.size() as usize];
        for i in self.inbound(None) {
            let passage = &mut self.passages[i];
            let reply = match &passage.error {
                None => Reply::Accept,
                Some(why) => {
                    passage.rejected = true;
                    Reply::Reject(why.clone())
                }
            };
            payloads[self.flights[i].from as usize].push(reply);
        }
        let payloads = payloads.iter().map(encode).collect();
        let received = self.to.dp.all_to_all(Kind::Reply, payloads, self.until)?;
        for (peer, bytes) in (0..).zip(received) {
            let outbound = self.outbound(Some(peer));
            match bytes.and_then(|b| decode::<Vec<Reply>>(Kind::Reply, &b)) {
                Ok(replies) if replies.len() == outbound.len() => {
                    for (i, reply) in outbound.into_iter().zip(replies) {
                        if let Reply::Reject(why) = reply {
                            self.passages[i].reject(why);
                        }
                    }
                }
                Ok(replies) => {
                    let why = format!("{} replies instead of {}", replies.len(), outbound.len());
                    self.reject_all(&outbound, &why);
                }
                Err(why) => self.reject_all(&outbound, &why.to_string()),
            }
        }
        Ok(())
    }

    /// 5. Transfer: only the accepted KV.
    fn transfer(&mut self) {
        let ready = |list: Vec<usize>, p: &[Passage]| -> Vec<usize> {
            list.into_iter()
                .filter(|i| p[*i].error.is_none() && !p[*i].blocks.is_empty())
                .collect()
        };
        let outbound = ready(self.outbound(None), &self.passages);
        let inbound = ready(self.inbound(None), &self.passages);
        if outbound.is_empty() && inbound.is_empty() {
            return;
        }
        let kv_move = |i: &usize, peer| KvMove {
            peer,
            blocks: self.passages[*i].blocks.clone(),
        };
        let sends: Vec<_> = outbound
            .iter()
            .map(|i| kv_move(i, self.flights[*i].to))
            .collect();
        let receives: Vec<_> = inbound
            .iter()
            .map(|i| kv_move(i, self.flights[*i].from))
            .collect();
        self.kv = self.to.kv.exchange(&sends, &receives, self.until);
        let outcomes = self.kv.outbound.iter().chain(&self.kv.inbound);
        for (i, outcome) in outbound.iter().chain(&inbound).zip(outcomes) {
            self.passages[*i].digest = outcome.digest;
            self.passages[*i].error = outcome.error.clone();
        }
    }

    /// 6. Commit, first half: in place, but inactive.
    fn install(&mut self, engine: &mut dyn Engine) {
        for i in self.inbound(None) {
            let passage = &mut self.passages[i];
            if let (None, Some(key)) = (&passage.error, passage.key)
                && let Err(why) = engine.install(key)
            {
                passage.error = Some(format!("not installed: {why}"));
            }
        }
    }

    /// 6. Commit: the one exchange on whose strength moves are activated and dropped.
    fn agree(&mut self) -> Result<(), MigrateError> {
        let mine = |f: &Flight| f.from == self.rank || f.to == self.rank;
        let moves = (0..)
            .zip(self.flights.iter().zip(&self.passages))
            .filter(|(_, (flight, _))| mine(flight))
            .map(|(index, (_, p))| MoveOutcome {
                index,
                digest: p.digest,
                error: p.error.clone(),
                rejected: p.rejected,
            })
            .collect();
        let mine = Outcome {
            moves,
            communicator_broken: self.kv.broken,
        };
        let all: Vec<Outcome> = gather(&mut self.to.dp, Kind::Outcome, &mine, self.until)?;
        let mut ends: Vec<Vec<MoveOutcome>> = self.flights.iter().map(|_| Vec::new()).collect();
        for (rank, outcome) in (0..).zip(all) {
            for one in outcome.moves {
                let Some(list) = ends.get_mut(one.index as usize) else {
                    let why = format!("outcome of move {}, which no plan has", one.index);
                    return Err(MigrateError::Peer { rank, why });
                };
                list.push(one);
            }
        }
        for (i, ends) in ends.into_iter().enumerate() {
            let passage = &mut self.passages[i];
            let error = match ends.as_slice() {
                [a, b] => a.error.clone().or(b.error.clone()).or_else(|| {
                    (a.digest != b.digest).then(|| {
                        let show =
                            |d: Option<u64>| d.map_or("none".into(), |d| format!("{d:#018x}"));
                        format!(
                            "KV digests differ: {} and {}",
                            show(a.digest),
                            show(b.digest)
                        )
                    })
                }),
                _ => Some(format!("{} ends reported instead of 2", ends.len())),
            };
            if let Some(why) = error {
                passage.error.get_or_insert(why);
            }
            passage.rejected |= ends.iter().any(|e| e.rejected);
        }
        let everything: Vec<usize> = (0..self.flights.len()).collect();
        self.shards(&everything)
    }

    /// 6. Commit, second half: activate and drop, or undo and thaw.
    fn commit(&mut self, engine: &mut dyn Engine) -> Result<(), MigrateError> {
        let after = |action| move |e: EngineError| MigrateError::AfterCommit { action, why: e.0 };
        // Sources first: a slot that one sequence leaves may be taken by another.
        for i in self.outbound(None) {
            let (flight, passage) = (self.flights[i], &self.passages[i]);
            if passage.error.is_none() {
                engine
                    .forget(flight.source, flight.to)
                    .map_err(after("dropping a moved sequence"))?;
            } else if passage.captured {
                engine
                    .thaw(flight.source)
                    .map_err(after("thawing a sequence"))?;
            }
        }
        for i in self.inbound(None) {
            let passage = &self.passages[i];
            let Some(key) = passage.key.filter(|_| passage.reserved) else {
                continue;
            };
            if passage.error.is_none() {
                engine
                    .activate(key)
                    .map_err(after("activating a moved sequence"))?;
            } else {
                engine
                    .release(key)
                    .map_err(after("undoing a reservation"))?;
            }
        }
        Ok(())
    }
}
