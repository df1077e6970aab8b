//! Pins hold while the pool as a whole is balanced.

use super::{LoadView, Policy};

/// Lets pins go while the pool is imbalanced: `max - min > absolute` and `max > relative * min`.
#[derive(Debug, Clone, Copy)]
pub struct DualThreshold {
    absolute: f64,
    relative: f64,
}

impl DualThreshold {
    /// `absolute` in requests, 0 switches the policy off; `relative` is a ratio.
    pub fn new(absolute: f64, relative: f64) -> Self {
        Self { absolute, relative }
    }
}

impl Policy for DualThreshold {
    fn name(&self) -> &'static str {
        "dual_threshold"
    }

    /// A conversation that already is on a least-loaded server stays there: moving gains nothing.
    fn keeps(&self, loads: LoadView) -> bool {
        let imbalanced = self.absolute > 0.0
            && (loads.max - loads.min) as f64 > self.absolute
            && loads.max as f64 > self.relative * loads.min as f64;
        !imbalanced || loads.pinned == loads.min
    }
}
