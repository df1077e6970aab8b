//! One check, in the order of the protocol: load, return, plan; then [`Round`]
//! carries the plan out, at once or at a later check after a copy in the background
//! ([`super::precopy`]). At the end of a rollout, the last return of results.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::MigrateError;
use super::channel::KvChannel;
use super::engine::{Engine, EngineError};
use super::policy::Policy;
use super::precopy::{Pending, Precopy};
use super::report::Report;
use super::round::Round;
use crate::collective::control::{ControlError, Members, Mesh, Received};
use crate::plan::Measured;
use crate::wire::frame::Kind;
use crate::wire::message::{self, Detail, Load, ShardVotes, Speeds, Standing, Sync, Vote};
use crate::wire::{List, decode, encode};

/// How long a rank waits for the others to enter a check: the default of the
/// engine's own gloo collectives, since a rank that is late here is late there.
const ENTRY: Duration = Duration::from_secs(1800);

/// How long after a failure of the engine a peer's end may become known.
const NEWS: Duration = Duration::from_secs(1);
/// So much longer than for the ranks of its group a shard waits for the other shards of its rank,
/// at most: one of them may be waiting for such a rank, and names it when it gives up.
const HEARSAY: Duration = Duration::from_millis(500);
/// Longest look at one of the two meshes.
const LOOK: Duration = Duration::from_millis(20);

/// What a shard says of its DP group before it goes on: the flags of [`ShardVotes::plan`].
const UNREADABLE: u64 = 1;
const NO_KV: u64 = 2;
const IDLE: u64 = 4;
/// Begins an error that the shards of a rank have agreed on.
const SHARD: &str = "TP shard ";

/// One rank's end of the protocol.
pub struct Migrator<K> {
    pub(super) dp: Mesh,
    pub(super) tp: Mesh,
    pub(super) kv: K,
    pub(super) policy: Box<dyn Policy>,
    pub(super) block_size: u32,
    /// Of a wait for ranks.
    pub(super) deadline: Duration,
    hearsay: Duration,
    /// When the last check, with what belongs to it, has to be over.
    until: Instant,
    pub(super) precopy: Precopy,
    /// The measured ones; what is left is the engine's.
    pub(super) speeds: Speeds,
    pub(super) pending: Option<Pending>,
    /// Nothing is copied in the background for the rest of the rollout; equal on all ranks.
    pub(super) suspended: bool,
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
        let (mut dp, mut tp) = (dp, tp);
        let mut hearsay = Duration::ZERO;
        if tp.size() > 1 {
            hearsay = HEARSAY.min(deadline / 8);
            dp.set_members(Members::RanksOfShard(tp.rank()));
            tp.set_members(Members::ShardsOfRank(dp.rank()));
        }
        Self {
            dp,
            tp,
            kv,
            policy,
            block_size,
            deadline: deadline - hearsay,
            hearsay,
            until: Instant::now() + deadline,
            precopy: Precopy::Off,
            speeds: Speeds::default(),
            pending: None,
            suspended: false,
        }
    }

    /// Whether plans are preceded by a copy in the background; the same on all ranks.
    pub fn set_precopy(&mut self, precopy: Precopy) {
        self.precopy = precopy;
    }

    /// What this rank has measured: seconds of a decode step, and per KV block. The ranks
    /// exchange it before it decides anything.
    pub fn set_speeds(&mut self, step_seconds: Option<f64>, seconds_per_block: Option<f64>) {
        let nanos = |s: f64| (s * 1e9) as u64;
        self.speeds.step_nanos = step_seconds.map(nanos);
        self.speeds.block_nanos = seconds_per_block.map(nanos);
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
    /// [`MigrateError`] stops the rollout, on all ranks; everything milder is in the report.
    pub fn check(&mut self, engine: &mut dyn Engine, step: u64) -> Result<Report, MigrateError> {
        let result = self.run(engine, step);
        self.stop_on_error(result)
    }

    fn run(&mut self, engine: &mut dyn Engine, step: u64) -> Result<Report, MigrateError> {
        // 1. Load.
        let loads = self.loads(engine, step)?;
        let entered = Instant::now();
        let until = entered + self.deadline;
        self.until = until;
        let mut report = Report {
            loads,
            ..Report::default()
        };
        // 7. Return: tokens so far go home before anything moves on.
        if report.loads.iter().any(|l| l.has_sync) {
            self.sync(engine, Kind::Sync, until)?;
            report.synced = true;
        }
        if let Some(pending) = self.pending.take() {
            self.resume(engine, pending, &mut report, step, until)?;
            if report.resume_at.is_none() {
                self.done(until)?;
            }
            report.pause = entered.elapsed();
            return Ok(report);
        }
        let mut mine = ShardVotes::default();
        if report.loads.iter().any(|l| !l.healthy) {
            mine.plan |= UNREADABLE;
        }
        if self.policy.idle(&report.loads) {
            mine.plan |= IDLE;
        }
        let states = self.shards(&mine, until)?;
        report.unreadable = states.iter().any(|s| s.plan & UNREADABLE != 0);
        if states.iter().all(|s| s.plan == 0) {
            if report.loads.iter().any(|l| l.communicator_broken) || report.layouts_differ() {
                self.meet(&mut report, until);
            }
            // 2. Plan.
            let details = self.plan(engine, &mut report, until)?;
            let flights = report.decision.flights.clone();
            if !flights.is_empty() {
                match self.steps(&details, &flights, |_, blocks| blocks, until)? {
                    Some(steps) => {
                        let pending = Pending::new(&report.decision, &details, steps);
                        self.copy(engine, pending, &mut report, step, until)?;
                    }
                    None => {
                        Round::new(self, flights, Vec::new(), until).run(engine, &mut report)?;
                        self.done(until)?;
                    }
                }
            }
        }
        report.pause = entered.elapsed();
        Ok(report)
    }

    /// A check that plans nothing: results and aborts go home.
    ///
    /// # Errors
    /// As [`Migrator::check`].
    pub fn give_back(&mut self, engine: &mut dyn Engine, step: u64) -> Result<(), MigrateError> {
        let result = self.loads(engine, step).and_then(|loads| {
            let until = Instant::now() + self.deadline;
            self.until = until;
            if loads.iter().any(|l| l.has_sync) {
                self.sync(engine, Kind::Sync, until)?;
            }
            // A shard whose results are lost must not stop alone.
            self.shards(&ShardVotes::default(), until).map(|_| ())
        });
        self.stop_on_error(result)
    }

    /// The ranks make their KV communicator anew, which they can only if their caches are alike:
    /// they compare them field by field.
    pub(super) fn meet(&mut self, report: &mut Report, until: Instant) {
        if let Err(why) = self.kv.restore(&mut self.dp, half(until)) {
            tracing::warn!(why, "no KV can be sent");
            report.kv_error = Some(why);
        }
    }

    /// Hands this rank's measurements to all ranks and TP shards, within the deadline of the check
    /// before; returns everybody's.
    ///
    /// # Errors
    /// As [`Migrator::check`].
    pub fn exchange_measured(&mut self, mine: &Measured) -> Result<Vec<Measured>, MigrateError> {
        let result = self.measured(mine);
        self.stop_on_error(result)
    }

    fn measured(&mut self, mine: &Measured) -> Result<Vec<Measured>, MigrateError> {
        let until = self.until;
        let ranks: Vec<message::Measured> =
            gather(&mut self.dp, Kind::Measured, &mine.into(), until)?;
        let until = until + self.hearsay;
        let shards = gather(&mut self.tp, Kind::Measured, &List(ranks), until)?;
        let all = shards.into_iter().flat_map(|List(ranks)| ranks);
        Ok(all.map(Into::into).collect())
    }

    /// The last exchange of a rollout: results that are still away go home.
    /// Returns whether anything was returned to anybody.
    ///
    /// # Errors
    /// As [`Migrator::check`].
    pub fn drain(&mut self, engine: &mut dyn Engine) -> Result<bool, MigrateError> {
        let until = Instant::now() + ENTRY;
        let result = self.sync(engine, Kind::Drain, until).and_then(|returned| {
            // A shard whose results are lost must not stop alone.
            self.shards(&ShardVotes::default(), until)?;
            self.done(Instant::now() + self.deadline)?;
            Ok(returned)
        });
        self.stop_on_error(result)
    }

    /// The engine has failed between two checks: ends the group for this rank, and says who
    /// else had left it before.
    pub fn end(&mut self, why: &str) -> Option<ControlError> {
        let until = Instant::now() + NEWS;
        let gone = loop {
            let gone = self.dp.news(LOOK).or_else(|| self.tp.news(LOOK));
            if gone.is_some() || Instant::now() >= until {
                break gone;
            }
        };
        let why = gone.as_ref().map_or(why.into(), ControlError::to_string);
        self.dp.leave(&why);
        self.tp.leave(&why);
        gone
    }

    /// Nobody is left waiting for a rank that stops.
    fn stop_on_error<T>(&mut self, result: Result<T, MigrateError>) -> Result<T, MigrateError> {
        if let Err(why) = &result {
            self.dp.leave(&why.to_string());
            self.tp.leave(&why.to_string());
        }
        result
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
            copying: self.kv.copying(),
            layout: self.kv.layout(),
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
            let (any, sync): (bool, Sync) = read(&self.dp, kind, rank, bytes)?;
            returned |= any;
            engine
                .accept_sync(sync)
                .map_err(after("delivering results"))?;
        }
        read_by_all(&self.dp, kind)?;
        Ok(returned)
    }

    fn plan(
        &mut self,
        engine: &mut dyn Engine,
        report: &mut Report,
        until: Instant,
    ) -> Result<Vec<Detail>, MigrateError> {
        let Some(details) = self.details(engine, report, |_| Vec::new(), until)? else {
            return Ok(Vec::new());
        };
        let decision = self.policy.decide(&report.loads, &details);
        // The shards of a rank must not act on different plans.
        if self.shards_agree(decision.digest(), until)? {
            report.decision = decision;
        } else {
            tracing::warn!("TP shards planned differently; nothing moves in this check");
        }
        Ok(details)
    }

    /// Everybody's details, if all can be read and KV can be sent. `standing` is asked
    /// once the engine has fixed its lists.
    pub(super) fn details(
        &mut self,
        engine: &mut dyn Engine,
        report: &mut Report,
        standing: impl FnOnce(&mut dyn Engine) -> Vec<Standing>,
        until: Instant,
    ) -> Result<Option<Vec<Detail>>, MigrateError> {
        let detail = engine.detail();
        if let Err(why) = &detail {
            tracing::warn!(%why, "the engine's sequences could not be read");
        }
        let mut speeds = self.speeds;
        if self.precopy != Precopy::Off {
            speeds.remaining = engine.outlook().unwrap_or_default().longest_remaining;
        }
        let mine = Detail {
            healthy: detail.is_ok(),
            kv_ready: !self.kv.broken(),
            speeds,
            standing: if detail.is_ok() {
                standing(engine)
            } else {
                Vec::new()
            },
            ..detail.unwrap_or_default()
        };
        let details: Vec<Detail> = gather(&mut self.dp, Kind::Detail, &mine, until)?;
        // A shard whose peers are not ready must not leave the others to go on alone.
        let mut mine = ShardVotes::default();
        if details.iter().any(|d| !d.healthy) {
            mine.plan |= UNREADABLE;
        }
        if details.iter().any(|d| !d.kv_ready) {
            mine.plan |= NO_KV;
        }
        let states = self.shards(&mine, until)?;
        report.kv_failed = states.iter().any(|s| s.plan & NO_KV != 0);
        report.unreadable = states.iter().any(|s| s.plan & UNREADABLE != 0);
        Ok(states.iter().all(|s| s.plan == 0).then_some(details))
    }

    /// Everybody has done what was agreed on: a rank that ended meanwhile is missed here, by the
    /// ranks of its group and by the shards of each, and not in a collective of the engine.
    pub(super) fn done(&mut self, until: Instant) -> Result<(), MigrateError> {
        let _: Vec<()> = gather(&mut self.dp, Kind::Done, &(), until)?;
        self.shards(&ShardVotes::default(), until)?;
        Ok(())
    }

    /// What each shard of this rank says.
    pub(super) fn shards(
        &mut self,
        mine: &ShardVotes,
        until: Instant,
    ) -> Result<Vec<ShardVotes>, MigrateError> {
        gather(&mut self.tp, Kind::Shard, mine, until + self.hearsay)
    }

    /// The shards of this rank agree on a list of things: what failed on one has failed on all.
    pub(super) fn agree(
        &mut self,
        mine: Vec<Vote>,
        until: Instant,
    ) -> Result<Vec<Vote>, MigrateError> {
        if self.tp.size() == 1 {
            return Ok(mine);
        }
        let count = mine.len();
        let mine = ShardVotes {
            plan: 0,
            votes: mine,
        };
        let all = self.shards(&mine, until)?;
        for (shard, theirs) in (0..).zip(&all) {
            if theirs.votes.len() != count {
                let why = format!("{} votes instead of {count}", theirs.votes.len());
                let who = self.tp.name(shard);
                return Err(MigrateError::Peer { who, why });
            }
        }
        let one = |item: usize| {
            let votes = all.iter().map(|theirs| &theirs.votes[item]);
            // The first shard's words, so that all shards say the same.
            let mut errors = (0..)
                .zip(votes.clone())
                .filter_map(|(s, v)| Some((s, v.error.as_ref()?)));
            let error = errors.next().map(|(shard, why)| {
                if why.starts_with(SHARD) {
                    why.clone()
                } else {
                    format!("{SHARD}{shard}: {why}")
                }
            });
            Vote {
                error,
                rejected: votes.clone().any(|vote| vote.rejected),
            }
        };
        Ok((0..count).map(one).collect())
    }

    /// Whether all shards of this rank have come to the same.
    pub(super) fn shards_agree(&mut self, plan: u64, until: Instant) -> Result<bool, MigrateError> {
        let votes = Vec::new();
        let all = self.shards(&ShardVotes { plan, votes }, until)?;
        Ok(all.iter().all(|s| s.plan == plan))
    }
}

/// Half of the time left: a step that fails by its deadline leaves the other half
/// to agree on that.
pub(super) fn half(until: Instant) -> Instant {
    let now = Instant::now();
    now + until.saturating_duration_since(now) / 2
}

/// Sends `mine` to all and decodes everybody's; a damaged one cannot be done without.
pub(super) fn gather<T: Serialize + DeserializeOwned>(
    mesh: &mut Mesh,
    kind: Kind,
    mine: &T,
    until: Instant,
) -> Result<Vec<T>, MigrateError> {
    let received = mesh.all_gather(kind, &encode(mine), until)?;
    let all = (0..)
        .zip(received)
        .map(|(rank, bytes)| read(mesh, kind, rank, bytes))
        .collect::<Result<Vec<T>, MigrateError>>()?;
    read_by_all(mesh, kind)?;
    Ok(all)
}

/// Whoever could not read this rank's message stops, and so must this rank.
fn read_by_all(mesh: &Mesh, kind: Kind) -> Result<(), MigrateError> {
    match mesh.refused().first() {
        None => Ok(()),
        Some(peer) => Err(MigrateError::Peer {
            who: mesh.name(mesh.rank()),
            why: format!("{} could not read its {kind}", mesh.name(*peer)),
        }),
    }
}

fn read<T: DeserializeOwned>(
    mesh: &Mesh,
    kind: Kind,
    rank: u32,
    bytes: Received,
) -> Result<T, MigrateError> {
    bytes
        .and_then(|b| decode(kind, &b))
        .map_err(|e| MigrateError::Peer {
            who: mesh.name(rank),
            why: e.to_string(),
        })
}
