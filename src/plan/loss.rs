//! What goes on being lost until a check is made.

/// A loss that grows evenly while the counts stay as they are.
#[derive(Debug, Clone, Default)]
pub(super) struct Loss {
    /// Lost up to the step `since`, and in every step from there on.
    sum: f64,
    since: u64,
    per_step: f64,
}

impl Loss {
    /// From `step` on, this much is lost per step. What was lost before counts for as
    /// long as something is lost.
    pub(super) fn rate(&mut self, step: u64, per_step: f64) {
        self.sum += self.per_step * (step - self.since) as f64;
        (self.since, self.per_step) = (step, per_step);
        if per_step <= 0.0 {
            self.sum = 0.0;
        }
    }

    /// Nothing has been lost up to `step`; the rate stays.
    pub(super) fn reset(&mut self, step: u64) {
        (self.sum, self.since) = (0.0, step);
    }

    /// The step in which `enough` will have been lost; `None` while nothing is.
    pub(super) fn reaches(&self, enough: f64) -> Option<u64> {
        let missing = (enough - self.sum).max(0.0);
        (self.per_step > 0.0).then(|| self.since + (missing / self.per_step).ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_until_nothing_is_lost() {
        let mut loss = Loss::default();
        assert_eq!(loss.reaches(1.0), None);
        loss.rate(10, 2.0);
        assert_eq!(loss.reaches(9.0), Some(15));
        loss.rate(12, 1.0);
        assert_eq!(loss.reaches(9.0), Some(17));
        loss.rate(14, 0.0);
        loss.rate(20, 3.0);
        assert_eq!(loss.reaches(9.0), Some(23));
        loss.reset(21);
        assert_eq!(loss.reaches(9.0), Some(24));
    }
}
