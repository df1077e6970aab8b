//! What all ranks hold: the counts that every step carries, and the measured values
//! that a check exchanges.

use super::steps::StepTimes;

/// What a rank tells all others in every step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankCount {
    /// Running sequences.
    pub running: u32,
    /// Waiting requests.
    pub waiting: u32,
}

impl RankCount {
    /// Both counts in one slot of an int32 vector: 16 bits for running, 15 for
    /// waiting; larger counts saturate. Zero exactly when nothing is unfinished,
    /// so the reduce of "anyone unfinished?" can carry it.
    pub fn to_slot(self) -> i32 {
        let running = self.running.min(0xffff) as i32;
        let waiting = self.waiting.min(0x7fff) as i32;
        waiting << 16 | running
    }

    /// Inverse of [`RankCount::to_slot`]; a negative slot counts as 0.
    pub fn from_slot(slot: i32) -> Self {
        let slot = slot.max(0) as u32;
        Self {
            running: slot & 0xffff,
            waiting: slot >> 16,
        }
    }
}

/// Ranks where nothing waits.
#[cfg(test)]
pub(crate) fn counts(running: &[u32]) -> Vec<RankCount> {
    running
        .iter()
        .map(|&running| RankCount {
            running,
            waiting: 0,
        })
        .collect()
}

/// What one rank or TP shard has measured; exchanged in a check.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Measured {
    /// (gear, seconds per step).
    pub step_seconds: Vec<(u32, f64)>,
    /// Seconds of a check with moves, without the KV transfer.
    pub fixed_seconds: Option<f64>,
    /// Seconds per KV block sent or received.
    pub seconds_per_block: Option<f64>,
    /// KV blocks of an average running sequence.
    pub blocks_per_sequence: f64,
    /// The most tokens that a running sequence may still generate.
    pub longest_remaining: Option<u32>,
}

/// What all ranks hold after a check.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Shared {
    pub(super) step_seconds: StepTimes,
    pub(super) fixed_seconds: f64,
    pub(super) seconds_per_block: f64,
    pub(super) blocks_per_sequence: f64,
    pub(super) remaining: Option<f64>,
}

impl Shared {
    /// The values of all ranks and TP shards, in rank order: the longest times,
    /// since the group waits for its slowest, and the largest sizes.
    pub fn merge(measured: &[Measured]) -> Self {
        let largest = |get: fn(&Measured) -> Option<f64>| {
            measured
                .iter()
                .filter_map(get)
                .filter(|v| v.is_finite())
                .reduce(f64::max)
        };
        Self {
            step_seconds: StepTimes::new(measured.iter().flat_map(|m| m.step_seconds.clone())),
            fixed_seconds: largest(|m| m.fixed_seconds).unwrap_or(0.0),
            seconds_per_block: largest(|m| m.seconds_per_block).unwrap_or(0.0),
            blocks_per_sequence: largest(|m| Some(m.blocks_per_sequence)).unwrap_or(0.0),
            remaining: largest(|m| m.longest_remaining.map(f64::from)),
        }
    }

    /// Whether a saving can be predicted.
    pub fn measured(&self) -> bool {
        !self.step_seconds.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_round_trip_and_keep_the_question_of_the_reduce() {
        for (running, waiting) in [(0, 0), (1, 0), (0, 1), (64, 700), (65535, 32767)] {
            let count = RankCount { running, waiting };
            assert_eq!(RankCount::from_slot(count.to_slot()), count);
            assert_eq!(count.to_slot() > 0, running + waiting > 0);
        }
        let many = RankCount {
            running: 1 << 20,
            waiting: 1 << 20,
        };
        assert!(many.to_slot() > 0);
    }

    #[test]
    fn merging_does_not_depend_on_who_measured() {
        let a = Measured {
            step_seconds: vec![(8, 0.1)],
            longest_remaining: Some(5),
            ..Measured::default()
        };
        let b = Measured {
            step_seconds: vec![(8, 0.2)],
            fixed_seconds: Some(1.0),
            ..Measured::default()
        };
        let merged = Shared::merge(&[a.clone(), b.clone()]);
        assert_eq!(merged, Shared::merge(&[b, a]));
        assert_eq!(merged.step_seconds.at(8), Some(0.2));
    }
}
