//! When a pin is worth keeping: one trait, one policy per file, one factory.

mod dual_threshold;
mod margin;
mod sticky;
mod weighted_margin;

pub use dual_threshold::DualThreshold;
pub use margin::Margin;
pub use sticky::Sticky;
pub use weighted_margin::WeightedMargin;

use super::RouteError;

/// Names that [`PolicyOptions::build`] knows.
pub const POLICY_NAMES: [&str; 4] = ["sticky", "dual_threshold", "margin", "weighted_margin"];

/// What a policy counts as the load of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadUnit {
    /// Requests in flight.
    Requests,
    /// The sum of what the requests in flight declared (tokens or KV blocks).
    Declared,
}

/// Loads at the moment of a decision, before the request itself is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadView {
    /// Load of the server that the conversation is pinned to.
    pub pinned: u64,
    /// Least load in the pool.
    pub min: u64,
    /// Greatest load in the pool.
    pub max: u64,
}

/// Decides whether a conversation stays on its server. Pure: same loads, same answer.
pub trait Policy: std::fmt::Debug + Send + Sync {
    /// The name users select it by.
    fn name(&self) -> &'static str;

    /// What [`LoadView`] is measured in.
    fn unit(&self) -> LoadUnit {
        LoadUnit::Requests
    }

    /// Whether the pin is kept; if not, the conversation goes to a least-loaded server.
    fn keeps(&self, loads: LoadView) -> bool;
}

/// Options of all policies; each policy takes those that concern it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PolicyOptions {
    /// `margin`, `weighted_margin`: tolerated load above the least, inclusive. `None`: pins never
    /// break.
    pub affinity_break_margin: Option<f64>,
    /// `dual_threshold`: tolerated difference of the greatest and the least load; 0 switches the
    /// policy off.
    pub balance_abs_threshold: f64,
    /// `dual_threshold`: tolerated ratio of the greatest and the least load.
    pub balance_rel_threshold: f64,
}

impl Default for PolicyOptions {
    /// Thresholds as in sglang's router.
    fn default() -> Self {
        Self {
            affinity_break_margin: None,
            balance_abs_threshold: 32.0,
            balance_rel_threshold: 1.5,
        }
    }
}

impl PolicyOptions {
    /// Makes the policy called `name`.
    ///
    /// # Errors
    /// [`RouteError::InvalidOption`] for an unknown name and for a negative or NaN value.
    pub fn build(&self, name: &str) -> Result<Box<dyn Policy>, RouteError> {
        let margin = self
            .affinity_break_margin
            .map(|value| non_negative("affinity_break_margin", value))
            .transpose()?;
        let absolute = non_negative("balance_abs_threshold", self.balance_abs_threshold)?;
        let relative = non_negative("balance_rel_threshold", self.balance_rel_threshold)?;
        Ok(match name {
            "sticky" => Box::new(Sticky),
            "dual_threshold" => Box::new(DualThreshold::new(absolute, relative)),
            "margin" => Box::new(Margin::new(margin)),
            "weighted_margin" => Box::new(WeightedMargin::new(margin)),
            _ => {
                return Err(RouteError::InvalidOption {
                    option: "policy",
                    value: name.to_owned(),
                    expected: "one of sticky, dual_threshold, margin, weighted_margin",
                });
            }
        })
    }
}

fn non_negative(option: &'static str, value: f64) -> Result<f64, RouteError> {
    if value >= 0.0 {
        return Ok(value);
    }
    Err(RouteError::InvalidOption {
        option,
        value: value.to_string(),
        expected: "a number that is not negative",
    })
}
