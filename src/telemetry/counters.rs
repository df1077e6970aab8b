//! What one process has done, summed over its engines.

use std::collections::BTreeMap;

/// One move of a check, as counters and profile lines see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveRecord {
    /// Source rank.
    pub from: u32,
    /// Destination rank.
    pub to: u32,
    /// None when it was committed.
    pub error: Option<String>,
    /// It failed before anything was reserved.
    pub rejected: bool,
}

/// One check, as counters and profile lines see it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CheckRecord {
    /// Running sequences of every rank before the moves.
    pub running: Vec<u32>,
    /// The plan's moves.
    pub moves: Vec<MoveRecord>,
    /// The planner's reasons.
    pub reasons: Vec<String>,
    /// Why no KV could be sent, if that was so.
    pub refused: Option<String>,
    /// What `max_failures` counts, in the whole group.
    pub faults: u64,
    /// KV bytes sent from here.
    pub kv_bytes: u64,
    /// Seconds from the moment that all ranks had entered.
    pub pause_seconds: f64,
}

impl CheckRecord {
    /// Running sequences of every rank after the moves.
    pub fn running_after(&self) -> Vec<u32> {
        let mut running = self.running.clone();
        for one in self.moves.iter().filter(|m| m.error.is_none()) {
            if let Some(count) = running.get_mut(one.from as usize) {
                *count = count.saturating_sub(1);
            }
            if let Some(count) = running.get_mut(one.to as usize) {
                *count += 1;
            }
        }
        running
    }
}

/// Counters of one process, since the hooks went in.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counters {
    /// Engine steps.
    pub steps: u64,
    /// Checks.
    pub checks: u64,
    /// Checks whose plan was not empty.
    pub plans: u64,
    /// Sequences that left here.
    pub sequences_moved: u64,
    /// Sequences that came here.
    pub sequences_received: u64,
    /// Moves from or to here that the destination did not take.
    pub moves_rejected: u64,
    /// Moves from or to here that were undone after a reservation.
    pub moves_rolled_back: u64,
    /// What `max_failures` counts, in the whole group.
    pub faults: u64,
    /// Requests that cannot be moved, by reason.
    pub pinned: BTreeMap<String, u64>,
    /// Moves that failed, and checks that could send no KV, by reason.
    pub failures: BTreeMap<String, u64>,
    /// KV bytes sent from here.
    pub kv_bytes_moved: u64,
    /// KV bytes sent from here in the background; part of `kv_bytes_moved`.
    pub precopied_bytes: u64,
    /// Copies in the background that this rank has waited for.
    pub precopy_rounds: u64,
    /// Copies in the background that were of no use, by reason.
    pub precopy_aborted: BTreeMap<String, u64>,
    /// Seconds spent in checks, from the moment that all ranks had entered.
    pub pause_seconds: f64,
    /// The group's gear after the last check; 0 before the first.
    pub gear: u32,
}

impl Counters {
    /// Zeros.
    pub const fn new() -> Self {
        Self {
            steps: 0,
            checks: 0,
            plans: 0,
            sequences_moved: 0,
            sequences_received: 0,
            moves_rejected: 0,
            moves_rolled_back: 0,
            faults: 0,
            pinned: BTreeMap::new(),
            failures: BTreeMap::new(),
            kv_bytes_moved: 0,
            precopied_bytes: 0,
            precopy_rounds: 0,
            precopy_aborted: BTreeMap::new(),
            pause_seconds: 0.0,
            gear: 0,
        }
    }

    /// Adds a check that `rank` took part in; `gear` is the group's after it.
    pub fn record(&mut self, rank: u32, check: &CheckRecord, gear: u32) {
        self.checks += 1;
        self.plans += u64::from(!check.moves.is_empty());
        self.faults += check.faults;
        self.kv_bytes_moved += check.kv_bytes;
        self.pause_seconds += check.pause_seconds;
        self.gear = gear;
        if let Some(why) = &check.refused {
            *self.failures.entry(why.clone()).or_default() += 1;
        }
        for one in check
            .moves
            .iter()
            .filter(|m| m.from == rank || m.to == rank)
        {
            match &one.error {
                None => {
                    self.sequences_moved += u64::from(one.from == rank);
                    self.sequences_received += u64::from(one.to == rank);
                }
                Some(why) => {
                    self.moves_rejected += u64::from(one.rejected);
                    self.moves_rolled_back += u64::from(!one.rejected);
                    *self.failures.entry(why.clone()).or_default() += 1;
                }
            }
        }
    }

    /// Counts a request that cannot be moved.
    pub fn pin(&mut self, reason: &str) {
        *self.pinned.entry(reason.to_string()).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_of_a_move_counts_its_own_part() {
        let one = |from, to, error: Option<&str>, rejected| MoveRecord {
            from,
            to,
            error: error.map(Into::into),
            rejected,
        };
        let check = CheckRecord {
            running: vec![4, 1, 2],
            moves: vec![
                one(0, 1, None, false),
                one(0, 2, Some("no room"), true),
                one(2, 0, Some("digests differ"), false),
            ],
            kv_bytes: 7,
            pause_seconds: 0.5,
            ..CheckRecord::default()
        };
        assert_eq!(check.running_after(), [3, 2, 2]);
        let mut here = Counters::new();
        here.record(0, &check, 4);
        assert_eq!((here.sequences_moved, here.sequences_received), (1, 0));
        assert_eq!((here.moves_rejected, here.moves_rolled_back), (1, 1));
        assert_eq!(
            (here.checks, here.plans, here.kv_bytes_moved, here.gear),
            (1, 1, 7, 4)
        );
        let mut there = Counters::new();
        there.record(1, &check, 4);
        assert_eq!((there.sequences_moved, there.sequences_received), (0, 1));
        assert_eq!((there.moves_rejected, there.moves_rolled_back), (0, 0));
    }
}
