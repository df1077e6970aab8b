//! The beginning of a round of copying: the sources name their full blocks, the destinations hold
//! as many, and the exchange goes into the background.

use std::time::Instant;

use super::{Copied, Copy, Pending, lost};
use crate::migrate::MigrateError;
use crate::migrate::channel::{KvChannel, KvMove};
use crate::migrate::check::Migrator;
use crate::migrate::engine::Engine;
use crate::migrate::policy::Flight;
use crate::migrate::report::Report;
use crate::wire::frame::Kind;
use crate::wire::message::Vote;
use crate::wire::{List, decode, encode};

impl<K: KvChannel> Migrator<K> {
    /// Begins a round of copying; the report says when the next check comes.
    pub(in crate::migrate) fn copy(
        &mut self,
        engine: &mut dyn Engine,
        mut pending: Pending,
        report: &mut Report,
        step: u64,
        until: Instant,
    ) -> Result<(), MigrateError> {
        let rank = self.dp.rank();
        pending.rounds += 1;
        pending.looks = 0;
        let full = self.name(engine, &mut pending, until)?;
        let outbound = pending.of(Some(rank), None);
        let inbound = pending.of(None, Some(rank));

        // The sources: from which block to which.
        let mut payloads: Vec<Vec<(u32, u32)>> = vec![Vec::new(); self.dp.size() as usize];
        for (i, full) in outbound.iter().zip(&full) {
            let copy = &pending.copies[*i];
            let range = (copy.copied.blocks.len() as u32, full.len() as u32);
            payloads[copy.flight.to as usize].push(range);
        }
        let payloads = payloads.iter().map(encode).collect();
        let received = self.dp.all_to_all(Kind::Prepare, payloads, until)?;

        // The destinations.
        let mut votes = vec![Vote::default(); inbound.len()];
        for (peer, bytes) in (0..).zip(received) {
            let from_peer = pending.of(Some(peer), Some(rank));
            let ranges = bytes
                .and_then(|b| decode::<List<(u32, u32)>>(Kind::Prepare, &b))
                .map(|List(ranges)| ranges);
            let problem = match &ranges {
                Ok(ranges) if ranges.len() == from_peer.len() => None,
                Ok(ranges) => Some(format!(
                    "{} ranges instead of {}",
                    ranges.len(),
                    from_peer.len()
                )),
                Err(why) => Some(why.to_string()),
            };
            let ranges = ranges.unwrap_or_default();
            for (n, i) in from_peer.into_iter().enumerate() {
                let held = match (&problem, ranges.get(n)) {
                    (None, Some((from, to))) => hold(engine, &mut pending.copies[i], *from, *to),
                    (why, _) => Err(why.clone().unwrap_or_default()),
                };
                if let (Err(why), Some(at)) = (held, inbound.iter().position(|one| *one == i)) {
                    votes[at].error = Some(why);
                }
            }
        }
        // All shards hold as many blocks, so that their schedulers stay alike.
        let votes = self.agree(votes, until)?;
        for (i, vote) in inbound.iter().zip(votes) {
            if let Some(why) = vote.error {
                let copy = &mut pending.copies[*i];
                engine.dismiss(copy.ticket).map_err(lost)?;
                (copy.copied, copy.under_way) = (Copied::default(), Vec::new());
                tracing::warn!(%why, "no blocks are held for a copy in the background");
            }
        }

        // The answers.
        let mut payloads: Vec<Vec<bool>> = vec![Vec::new(); self.dp.size() as usize];
        for i in &inbound {
            let copy = &pending.copies[*i];
            payloads[copy.flight.from as usize].push(!copy.under_way.is_empty());
        }
        let payloads = payloads.iter().map(encode).collect();
        let received = self.dp.all_to_all(Kind::Prepared, payloads, until)?;
        // The source does not know that these are held, and will send nothing.
        for peer in self.dp.refused().to_vec() {
            for i in pending.of(Some(peer), Some(rank)) {
                pending.copies[i].under_way.clear();
            }
        }
        let answers: Vec<Vec<bool>> = received
            .into_iter()
            .map(|bytes| {
                bytes
                    .and_then(|b| decode::<List<bool>>(Kind::Prepared, &b))
                    .map_or_else(|_| Vec::new(), |List(answers)| answers)
            })
            .collect();
        let mut taken = vec![0; answers.len()];
        for (i, full) in outbound.iter().zip(full) {
            let copy = &mut pending.copies[*i];
            let to = copy.flight.to as usize;
            if answers[to].get(taken[to]).copied().unwrap_or(false) {
                copy.under_way = full[copy.copied.blocks.len()..].to_vec();
            } else if !full.is_empty() {
                let why = format!(
                    "not copied: {} holds no blocks",
                    self.dp.name(copy.flight.to)
                );
                report.precopied.aborted.push(why);
            }
            taken[to] += 1;
        }
        // A shard that has failed must not leave the others to go on.
        self.done(until)?;
        self.begin(&pending, report);
        report.resume_at = Some(step + u64::from(pending.steps));
        self.pending = Some(pending);
        Ok(())
    }

    /// The full blocks of each sequence that is to leave here; none where there is nothing new.
    fn name(
        &mut self,
        engine: &mut dyn Engine,
        pending: &mut Pending,
        until: Instant,
    ) -> Result<Vec<Vec<u32>>, MigrateError> {
        let mut full = Vec::new();
        let mut votes = Vec::new();
        let outbound = pending.of(Some(self.dp.rank()), None);
        for i in &outbound {
            let copy = &pending.copies[*i];
            let watched = engine.watch(copy.flight.source, copy.ticket);
            votes.push(Vote {
                error: watched.as_ref().err().map(ToString::to_string),
                rejected: false,
            });
            let blocks = watched.unwrap_or_default();
            let new = copy.copied.leads(&blocks) == copy.copied.blocks.len()
                && blocks.len() > copy.copied.blocks.len();
            full.push(if new { blocks } else { Vec::new() });
        }
        let votes = self.agree(votes, until)?;
        for ((i, full), vote) in outbound.into_iter().zip(&mut full).zip(votes) {
            if let Some(why) = vote.error {
                full.clear();
                pending.copies[i].lost = Some(why);
            }
        }
        Ok(full)
    }

    fn begin(&mut self, pending: &Pending, report: &mut Report) {
        let rank = self.dp.rank();
        let moves = |of: Vec<usize>, peer: fn(&Flight) -> u32| -> Vec<KvMove> {
            of.into_iter()
                .map(|i| &pending.copies[i])
                .filter(|c| !c.under_way.is_empty())
                .map(|c| KvMove {
                    peer: peer(&c.flight),
                    blocks: c.under_way.clone(),
                })
                .collect()
        };
        let outbound = moves(pending.of(Some(rank), None), |f| f.to);
        let inbound = moves(pending.of(None, Some(rank)), |f| f.from);
        if outbound.is_empty() && inbound.is_empty() {
            return;
        }
        let blocks = |list: &[KvMove]| list.iter().map(|m| m.blocks.len()).sum::<usize>();
        tracing::info!(
            "copying {} KV blocks of {} sequences to other ranks in the background, {} blocks of {} \
             sequences from them; the next check comes in {} steps",
            blocks(&outbound),
            outbound.len(),
            blocks(&inbound),
            inbound.len(),
            pending.steps,
        );
        // It must have failed before a check at the next step runs out of time.
        let deadline = Instant::now() + self.deadline / 2;
        if let Err(why) = self.kv.begin(outbound, inbound, deadline) {
            tracing::warn!(why, "KV was copied while decoding stood still");
            let why = format!("not in the background: {why}");
            report.precopied.aborted.push(why);
        }
    }
}

/// Holds blocks for a move up to block `to`, if those up to `from` have been copied here.
fn hold(engine: &mut dyn Engine, copy: &mut Copy, from: u32, to: u32) -> Result<(), String> {
    if to == 0 {
        return Ok(());
    }
    let have = copy.copied.blocks.len();
    if from as usize != have || to <= from {
        return Err(format!("blocks {from} to {to} follow, but {have} are here"));
    }
    let blocks = engine.prepare(copy.ticket, to).map_err(|e| e.0)?;
    copy.copied.ticket = Some(copy.ticket);
    if blocks.len() != to as usize || copy.copied.leads(&blocks) != have {
        return Err(format!("{} blocks are held, {to} wanted", blocks.len()));
    }
    copy.under_way = blocks[have..].to_vec();
    Ok(())
}
