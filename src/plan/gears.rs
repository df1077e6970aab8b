//! Gears: the graph batch sizes that the engine really has.

use super::error::PlanError;

/// The *effective* graph batch sizes of an engine, that is, after its own
/// rounding and resampling.
///
/// A count above the largest gear is its own gear: such a batch runs without a
/// graph, and fewer rows are still cheaper there. With an empty list every
/// count is its own gear.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gears {
    /// Ascending, without repeats.
    sizes: Vec<u32>,
}

impl Gears {
    /// Gears from batch sizes in any order, repeats allowed.
    ///
    /// # Errors
    /// [`PlanError::ZeroGear`] when one of them is 0.
    pub fn new(sizes: &[u32]) -> Result<Self, PlanError> {
        let mut sizes = sizes.to_vec();
        sizes.sort_unstable();
        sizes.dedup();
        if sizes.first() == Some(&0) {
            return Err(PlanError::ZeroGear);
        }
        Ok(Self { sizes })
    }

    /// Ascending batch sizes.
    pub fn sizes(&self) -> &[u32] {
        &self.sizes
    }

    /// The largest gear; 0 when there is none.
    pub fn largest(&self) -> u32 {
        self.sizes.last().copied().unwrap_or(0)
    }

    /// The gear in which `count` sequences run. An idle group runs dummy
    /// batches in the smallest gear.
    pub fn gear_of(&self, count: u32) -> u32 {
        if self.sizes.is_empty() {
            count
        } else {
            self.size_at(self.step_of(count))
        }
    }

    /// Whether a group with these counts could run in a lower gear if nothing
    /// but the counts limited it. It is the cheap test before a full plan.
    ///
    /// ```
    /// let gears = seqshift::plan::Gears::new(&[16, 8, 4]).unwrap();
    /// assert!(gears.lower_possible(&[12, 2]));
    /// assert!(!gears.lower_possible(&[8, 7]));
    /// ```
    pub fn lower_possible(&self, counts: &[u32]) -> bool {
        let Some(&largest) = counts.iter().max() else {
            return false;
        };
        let total: u64 = counts.iter().map(|&c| u64::from(c)).sum();
        let even = total.div_ceil(counts.len() as u64) as u32;
        self.gear_of(even) < self.gear_of(largest)
    }

    /// Position of the gear of `count` in the ascending list that goes on with
    /// one step per integer above the largest gear.
    pub(super) fn step_of(&self, count: u32) -> usize {
        let largest = self.largest();
        if count <= largest {
            self.sizes.partition_point(|&gear| gear < count)
        } else {
            self.sizes.len() + (count - largest - 1) as usize
        }
    }

    /// Inverse of [`Gears::step_of`].
    pub(super) fn size_at(&self, step: usize) -> u32 {
        match self.sizes.get(step) {
            Some(&gear) => gear,
            None => self.largest() + (step - self.sizes.len()) as u32 + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_order_and_repeats_are_sorted() {
        let gears = Gears::new(&[8, 512, 1, 8, 408]).unwrap();
        assert_eq!(gears.sizes(), [1, 8, 408, 512]);
        assert_eq!(gears.gear_of(0), 1);
        assert_eq!(gears.gear_of(9), 408);
        assert_eq!(gears.gear_of(513), 513);
    }

    #[test]
    fn steps_and_sizes_are_inverse() {
        let gears = Gears::new(&[2, 4]).unwrap();
        for count in 1..20 {
            assert_eq!(
                gears.step_of(gears.size_at(gears.step_of(count))),
                gears.step_of(count)
            );
            assert_eq!(gears.size_at(gears.step_of(count)), gears.gear_of(count));
        }
        let none = Gears::new(&[]).unwrap();
        assert_eq!((none.gear_of(0), none.gear_of(7)), (0, 7));
    }

    #[test]
    fn zero_is_refused() {
        assert_eq!(Gears::new(&[4, 0]), Err(PlanError::ZeroGear));
    }
}
