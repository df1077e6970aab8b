//! A pin holds within a band above the least load.

use super::{LoadView, Policy};

/// Keeps a pin while its server has at most `margin` requests more than the least-loaded one.
#[derive(Debug, Clone, Copy)]
pub struct Margin {
    margin: Option<f64>,
}

impl Margin {
    /// `None`: pins never break. 0: a pin holds only on a least-loaded server.
    pub fn new(margin: Option<f64>) -> Self {
        Self { margin }
    }
}

impl Policy for Margin {
    fn name(&self) -> &'static str {
        "margin"
    }

    fn keeps(&self, loads: LoadView) -> bool {
        within(self.margin, loads)
    }
}

/// `pinned <= min + margin`, the boundary included.
pub(super) fn within(margin: Option<f64>, loads: LoadView) -> bool {
    margin.is_none_or(|margin| (loads.pinned - loads.min) as f64 <= margin)
}
