//! Steps 3 to 6 for the moves of one plan: offer, reserve, transfer, commit.

use std::time::{Duration, Instant};

use super::MigrateError;
use super::channel::{KvChannel, KvMove, KvReport};
use super::check::{Migrator, gather, half};
use super::engine::{Engine, EngineError};
use super::policy::Flight;
use super::precopy::{Copied, join};
use super::report::{MoveResult, Report};
use crate::wire::frame::Kind;
use crate::wire::manifest::SequenceKey;
use crate::wire::message::{MoveOutcome, Offer, Outcome, Reply, Vote};
use crate::wire::{List, decode, encode};

/// What this rank knows of one move on its way through steps 3 to 6.
#[derive(Debug, Default)]
struct Passage {
    key: Option<SequenceKey>,
    blocks: Vec<u32>,
    /// What has been copied in the background; of it, `filled` blocks count at both ends.
    copied: Copied,
    filled: usize,
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
pub(super) struct Round<'a, K> {
    to: &'a mut Migrator<K>,
    rank: u32,
    flights: Vec<Flight>,
    passages: Vec<Passage>,
    until: Instant,
    kv: KvReport,
    kv_blocks: u32,
    kv_time: Duration,
}

impl<'a, K: KvChannel> Round<'a, K> {
    /// `copied`: what has been copied in the background, by flight; empty if nothing has.
    pub(super) fn new(
        to: &'a mut Migrator<K>,
        flights: Vec<Flight>,
        copied: Vec<Copied>,
        until: Instant,
    ) -> Self {
        let passage = |copied| Passage {
            copied,
            ..Passage::default()
        };
        let mut passages: Vec<Passage> = copied.into_iter().map(passage).collect();
        passages.resize_with(flights.len(), Passage::default);
        let rank = to.dp.rank();
        Self {
            to,
            rank,
            flights,
            passages,
            until,
            kv: KvReport::default(),
            kv_blocks: 0,
            kv_time: Duration::ZERO,
        }
    }

    pub(super) fn run(
        mut self,
        engine: &mut dyn Engine,
        report: &mut Report,
    ) -> Result<(), MigrateError> {
        self.offer(engine)?;
        self.reply()?;
        self.transfer();
        self.install(engine);
        self.agree()?;
        self.commit(engine)?;
        report.kv_bytes += self.kv.bytes;
        (report.kv_blocks, report.kv_time) = (self.kv_blocks, self.kv_time);
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
        let vote = |i: &usize| Vote {
            error: self.passages[*i].error.clone(),
            rejected: self.passages[*i].rejected,
        };
        let votes = of.iter().map(vote).collect();
        let agreed = self.to.agree(votes, self.until)?;
        for (i, vote) in of.iter().zip(agreed) {
            let passage = &mut self.passages[*i];
            passage.rejected |= vote.rejected;
            passage.error = vote.error;
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
                    passage.filled = passage.copied.leads(&passage.blocks);
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
                (Some(manifest), None) => {
                    Offer::Manifest(Box::new(manifest), passage.filled as u32)
                }
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
            match bytes.and_then(|b| decode::<List<Offer>>(Kind::Offer, &b)) {
                Ok(List(offers)) if offers.len() == inbound.len() => {
                    for (i, offer) in inbound.into_iter().zip(offers) {
                        self.reserve(engine, i, offer);
                    }
                }
                Ok(List(offers)) => {
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
        let (block_size, ranks) = (self.to.block_size, self.to.dp.size());
        let passage = &mut self.passages[i];
        let (manifest, filled) = match offer {
            Offer::Manifest(manifest, filled) => (manifest, filled as usize),
            Offer::Withdrawn(why) => return passage.reject(why),
        };
        if let Err(why) = manifest.validate(block_size) {
            return passage.reject(format!("manifest: {why}"));
        }
        if manifest.key.origin >= ranks {
            let origin = manifest.key.origin;
            return passage.reject(format!("manifest: key.origin: {origin} of {ranks} ranks"));
        }
        match engine.reserve(&manifest, passage.copied.ticket) {
            Ok(blocks) => {
                passage.reserved = true;
                passage.key = Some(manifest.key);
                if blocks.len() != manifest.kv_blocks as usize {
                    let (have, want) = (blocks.len(), manifest.kv_blocks);
                    passage.reject(format!("{have} blocks reserved, {want} wanted"));
                }
                passage.blocks = blocks;
                // Only what is well at both ends counts.
                let here = passage.copied.leads(&passage.blocks);
                passage.filled = if here == filled { here } else { 0 };
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
                None => Reply::Accept(passage.filled as u32),
                Some(why) => {
                    passage.rejected = true;
                    Reply::Reject(why.clone())
                }
            };
            payloads[self.flights[i].from as usize].push(reply);
        }
        let payloads = payloads.iter().map(encode).collect();
        let received = self.to.dp.all_to_all(Kind::Reply, payloads, self.until)?;
        // The source does not know that these were accepted, and will send nothing.
        for peer in self.to.dp.refused().to_vec() {
            let inbound = self.inbound(Some(peer));
            self.reject_all(&inbound, &format!("rank {peer} could not read the reply"));
        }
        for (peer, bytes) in (0..).zip(received) {
            let outbound = self.outbound(Some(peer));
            match bytes.and_then(|b| decode::<List<Reply>>(Kind::Reply, &b)) {
                Ok(List(replies)) if replies.len() == outbound.len() => {
                    for (i, reply) in outbound.into_iter().zip(replies) {
                        let passage = &mut self.passages[i];
                        match reply {
                            Reply::Accept(filled) if filled as usize == passage.filled => {}
                            Reply::Accept(0) => passage.filled = 0,
                            Reply::Accept(filled) => {
                                let ours = passage.filled;
                                passage.reject(format!("{filled} blocks filled, not {ours}"));
                            }
                            Reply::Reject(why) => passage.reject(why),
                        }
                    }
                }
                Ok(List(replies)) => {
                    let why = format!("{} replies instead of {}", replies.len(), outbound.len());
                    self.reject_all(&outbound, &why);
                }
                Err(why) => self.reject_all(&outbound, &why.to_string()),
            }
        }
        Ok(())
    }

    /// 5. Transfer: only the accepted KV, and of it what has not been copied before. If it
    ///    stalls, there is time left to agree on that.
    fn transfer(&mut self) {
        for passage in &mut self.passages {
            passage.digest = passage.copied.digest.filter(|_| passage.filled > 0);
        }
        let ready = |list: Vec<usize>, p: &[Passage]| -> Vec<usize> {
            list.into_iter()
                .filter(|i| p[*i].error.is_none() && p[*i].blocks.len() > p[*i].filled)
                .collect()
        };
        let outbound = ready(self.outbound(None), &self.passages);
        let inbound = ready(self.inbound(None), &self.passages);
        if outbound.is_empty() && inbound.is_empty() {
            return;
        }
        let kv_move = |i: &usize, peer| KvMove {
            peer,
            blocks: self.passages[*i].blocks[self.passages[*i].filled..].to_vec(),
        };
        let sends: Vec<_> = outbound
            .iter()
            .map(|i| kv_move(i, self.flights[*i].to))
            .collect();
        let receives: Vec<_> = inbound
            .iter()
            .map(|i| kv_move(i, self.flights[*i].from))
            .collect();
        let began = Instant::now();
        self.kv = self.to.kv.exchange(&sends, &receives, half(self.until));
        self.kv_time = began.elapsed();
        let blocks = |list: &[KvMove]| list.iter().map(|m| m.blocks.len()).sum::<usize>();
        // The rest after a copy in the background says nothing about bandwidth.
        if self.passages.iter().all(|p| p.filled == 0) {
            self.kv_blocks = blocks(&sends).max(blocks(&receives)) as u32;
        }
        let outcomes = self.kv.outbound.iter().chain(&self.kv.inbound);
        for (i, outcome) in outbound.iter().chain(&inbound).zip(outcomes) {
            let passage = &mut self.passages[*i];
            passage.digest = match passage.filled {
                0 => outcome.digest,
                _ => join(passage.digest, outcome.digest),
            };
            passage.error = outcome.error.clone();
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
                let flight = self.flights.get(one.index as usize);
                if flight.is_none_or(|f| f.from != rank && f.to != rank) {
                    let why = format!("outcome of move {}, which is none of its own", one.index);
                    let who = self.to.dp.name(rank);
                    return Err(MigrateError::Peer { who, why });
                }
                ends[one.index as usize].push(one);
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
            passage.error = error;
            passage.rejected = ends.iter().any(|e| e.rejected);
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
