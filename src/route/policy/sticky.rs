//! Pins never break.

use super::{LoadView, Policy};

/// Keeps every pin, whatever the load: verl's published behaviour.
#[derive(Debug, Clone, Copy)]
pub struct Sticky;

impl Policy for Sticky {
    fn name(&self) -> &'static str {
        "sticky"
    }

    fn keeps(&self, _: LoadView) -> bool {
        true
    }
}
