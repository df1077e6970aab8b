//! The margin policy over declared work instead of requests.

use super::margin::within;
use super::{LoadUnit, LoadView, Policy};

/// Keeps a pin while its server has at most `margin` tokens (or KV blocks) more in flight than the
/// server that has least.
#[derive(Debug, Clone, Copy)]
pub struct WeightedMargin {
    margin: Option<f64>,
}

impl WeightedMargin {
    /// `margin` in the unit of the declared load; `None`: pins never break.
    pub fn new(margin: Option<f64>) -> Self {
        Self { margin }
    }
}

impl Policy for WeightedMargin {
    fn name(&self) -> &'static str {
        "weighted_margin"
    }

    fn unit(&self) -> LoadUnit {
        LoadUnit::Declared
    }

    fn keeps(&self, loads: LoadView) -> bool {
        within(self.margin, loads)
    }
}
