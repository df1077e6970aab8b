//! Measured step times by gear.

/// Fraction of a step's time that is taken as independent of the gear while only
/// one gear has been measured. Decode steps read weights and KV whatever the
/// batch; a prior on the careful side for savings.
const FIXED_SHARE: f64 = 0.5;

/// Seconds per step in each gear that has been seen.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepTimes {
    /// Ascending gears.
    known: Vec<(u32, f64)>,
}

impl StepTimes {
    /// From (gear, seconds) in any order; of a gear given twice the longest time
    /// counts, and times that are not positive are left out.
    pub fn new(measured: impl IntoIterator<Item = (u32, f64)>) -> Self {
        let mut known: Vec<(u32, f64)> = Vec::new();
        for (gear, seconds) in measured {
            if seconds <= 0.0 || !seconds.is_finite() {
                continue;
            }
            match known.binary_search_by_key(&gear, |&(gear, _)| gear) {
                Ok(at) => known[at].1 = known[at].1.max(seconds),
                Err(at) => known.insert(at, (gear, seconds)),
            }
        }
        Self { known }
    }

    /// Whether nothing has been measured.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Seconds per step in `gear`: between two measured gears on the line through
    /// them, outside on the line through the nearest two, and with one measured
    /// gear half fixed and half proportional. `None` without measurements.
    pub fn at(&self, gear: u32) -> Option<f64> {
        let (a, b) = match self.known.as_slice() {
            [] => return None,
            &[(only, seconds)] => {
                let scale = f64::from(gear) / f64::from(only.max(1));
                return Some(seconds * (FIXED_SHARE + (1.0 - FIXED_SHARE) * scale));
            }
            known => {
                let above = known.partition_point(|&(known, _)| known < gear);
                let high = above.clamp(1, known.len() - 1);
                (known[high - 1], known[high])
            }
        };
        let slope = (b.1 - a.1) / f64::from(b.0 - a.0);
        // Noise may make a larger gear look faster: then neither is assumed slower.
        let line = a.1 + slope.max(0.0) * (f64::from(gear) - f64::from(a.0));
        Some(line.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_gear_is_half_fixed() {
        let times = StepTimes::new([(64, 0.1)]);
        assert_eq!(times.at(64), Some(0.1));
        assert!((times.at(32).unwrap() - 0.075).abs() < 1e-12);
        assert_eq!(StepTimes::default().at(4), None);
    }

    #[test]
    fn lines_between_and_beyond() {
        let times = StepTimes::new([(16, 0.04), (32, 0.06), (64, 0.12), (32, 0.05), (8, -1.0)]);
        assert!((times.at(48).unwrap() - 0.09).abs() < 1e-12);
        assert!((times.at(8).unwrap() - 0.03).abs() < 1e-12);
        assert!((times.at(80).unwrap() - 0.15).abs() < 1e-12);
    }

    #[test]
    fn a_faster_larger_gear_is_noise() {
        let times = StepTimes::new([(16, 0.05), (32, 0.04)]);
        assert_eq!(times.at(8), Some(0.05));
    }
}
