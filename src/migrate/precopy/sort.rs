//! Which of the moves whose KV has been copied are still to be made.

use std::time::Instant;

use super::{Copy, Pending, lost};
use crate::migrate::MigrateError;
use crate::migrate::channel::KvChannel;
use crate::migrate::check::Migrator;
use crate::migrate::engine::{Engine, Source, Watched};
use crate::migrate::policy::{Decision, Flight};
use crate::migrate::report::Report;
use crate::wire::message::{Detail, Standing};

impl<K: KvChannel> Migrator<K> {
    /// Keeps the moves whose sequences still run and that are still worth it.
    pub(super) fn sort_out(
        &mut self,
        engine: &mut dyn Engine,
        pending: &mut Pending,
        report: &mut Report,
        details: &[Detail],
        until: Instant,
    ) -> Result<(), MigrateError> {
        let mut taken = vec![0; details.len()];
        let mut reasons: Vec<Option<String>> = Vec::new();
        for copy in &mut pending.copies {
            let from = copy.flight.from;
            let theirs = &details[from as usize];
            let standing = theirs.standing.get(taken[from as usize]);
            taken[from as usize] += 1;
            let running = match standing {
                Some(Standing::Gone(why)) => Err(why.clone()),
                Some(Standing::Running(index)) => Ok(*index),
                None => {
                    let why = "it does not say what has become of its sequences".into();
                    let who = self.dp.name(from);
                    return Err(MigrateError::Peer { who, why });
                }
            };
            reasons.push(match running {
                Ok(index) => match theirs.running.get(index as usize) {
                    Some(sequence) if sequence.movable => {
                        copy.flight.source = Source::Running(index);
                        None
                    }
                    _ => Some("it cannot be moved any more".into()),
                },
                Err(why) => Some(why),
            });
        }
        let well = |reasons: &[Option<String>]| -> Vec<usize> {
            (0..reasons.len())
                .filter(|i| reasons[*i].is_none())
                .collect()
        };
        let kept = well(&reasons);
        let flights: Vec<Flight> = kept.iter().map(|i| pending.copies[*i].flight).collect();
        let confirmed = self.policy.confirm(&report.loads, &flights);
        for (i, _) in kept.iter().zip(confirmed).filter(|(_, keep)| !keep) {
            reasons[*i] = Some("it is no longer needed".into());
        }
        let flights = well(&reasons)
            .iter()
            .map(|i| pending.copies[*i].flight)
            .collect();
        let decision = Decision {
            flights,
            ..Decision::default()
        };
        // The shards of a rank must not act on different lists.
        if !self.shards_agree(decision.digest(), until)? {
            tracing::warn!("TP shards disagree on what still runs; nothing moves in this check");
            reasons.fill(Some("the TP shards disagree".into()));
        }
        let rank = self.dp.rank();
        let mut kept = Vec::new();
        for (copy, reason) in std::mem::take(&mut pending.copies).into_iter().zip(reasons) {
            let Some(why) = reason else {
                kept.push(copy);
                continue;
            };
            engine.dismiss(copy.ticket).map_err(lost)?;
            if copy.flight.from == rank {
                report.precopied.aborted.push(why);
            }
        }
        pending.copies = kept;
        Ok(())
    }
}

/// What has become of the sequences that are to leave here.
pub(super) fn standing(engine: &mut dyn Engine, pending: &Pending, rank: u32) -> Vec<Standing> {
    let one = |i: usize| match &pending.copies[i].lost {
        Some(why) => Standing::Gone(why.clone()),
        None => watched(engine, &pending.copies[i]),
    };
    pending.of(Some(rank), None).into_iter().map(one).collect()
}

fn watched(engine: &mut dyn Engine, copy: &Copy) -> Standing {
    match engine.watched(copy.ticket) {
        Ok(Watched::Running { index, full }) => {
            let copied = &copy.copied;
            if copied.leads(&full) == copied.blocks.len() {
                Standing::Running(index)
            } else {
                Standing::Gone("its blocks are other ones".into())
            }
        }
        Ok(Watched::Gone(why)) => Standing::Gone(why),
        Err(why) => Standing::Gone(why.0),
    }
}
