//! Gear, sequences and step time over time.

use serde::Serialize;

/// State of the group at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sample {
    /// Seconds since the start.
    pub seconds: f64,
    /// Steps since the start.
    pub step: u64,
    /// Gear of the group.
    pub gear: u32,
    /// Sequences on the busiest rank.
    pub busiest: u32,
    /// Running sequences of the group.
    pub running: u32,
    /// Waiting requests of the group.
    pub waiting: u32,
    /// Seconds per step, that is, per output token.
    pub tpot_seconds: f64,
}

/// At most [`Timeline::MOST`] samples, evenly thinned, with every change of the
/// gear kept as long as there are few of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Timeline {
    samples: Vec<Sample>,
    #[serde(skip)]
    every: u64,
    #[serde(skip)]
    offered: u64,
}

impl Timeline {
    /// The most samples that are kept.
    pub const MOST: usize = 1000;

    pub(super) fn offer(&mut self, sample: Sample) {
        self.offered += 1;
        let shifted = self
            .samples
            .last()
            .is_none_or(|last| last.gear != sample.gear);
        let due = self.offered.is_multiple_of(self.every.max(1));
        if !shifted && !due {
            return;
        }
        if self.samples.len() == Self::MOST {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
            self.every = self.every.max(1) * 2;
        }
        self.samples.push(sample);
    }

    /// The samples in the order of time.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }
}
