//! One check, in the order of the protocol: load, return, plan; then [`Round`]
//! carries the plan out. At the end of a rollout, the last return of results.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::MigrateError;
use super::channel::KvChannel;
use super::engine::{Engine, EngineError};
use super::policy::{Decision, Flight, Policy};
use super::round::Round;
use crate::collective::control::{Mesh, Received};
use crate::plan::Measured;
use crate::wire::frame::Kind;
use crate::wire::message::{self, Detail, Load, ShardVotes, Sync};
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
    /// KV blocks sent from here or received here, whichever is more.
    pub kv_blocks: u32,
    /// Time spent in the KV exchange.
    pub kv_time: Duration,
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
    pub(super) dp: Mesh,
    pub(super) tp: Mesh,
    pub(super) kv: K,
    policy: Box<dyn Policy>,
    pub(super) block_size: u32,
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

    /// Hands this rank's measurements to all ranks and TP shards; returns everybody's.
    ///
    /// # Errors
    /// As [`Migrator::check`].
    pub fn exchange_measured(&mut self, mine: &Measured) -> Result<Vec<Measured>, MigrateError> {
        let until = Instant::now() + self.deadline;
        let ranks: Vec<message::Measured> =
            gather(&mut self.dp, Kind::Measured, &mine.into(), until)?;
        let shards: Vec<Vec<message::Measured>> =
            gather(&mut self.tp, Kind::Measured, &ranks, until)?;
        Ok(shards.into_iter().flatten().map(Into::into).collect())
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
pub(super) fn gather<T: Serialize + DeserializeOwned>(
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
