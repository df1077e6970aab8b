//! Response lengths.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::error::SimError;

/// Names of the presets.
pub const PRESETS: [&str; 3] = ["dapo_32k", "openr1_32k", "longtail_32k"];

/// A distribution of response lengths, in tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Lengths {
    /// exp(N(mu, sigma)), at most `cap`.
    LogNormal {
        /// Mean of the logarithm.
        mu: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// Longest response.
        cap: u32,
    },
    /// Drawn from observed lengths.
    Observed(Vec<u32>),
}

/// A preset: log-normal lengths fitted to published statistics of RL rollouts.
///
/// `dapo_32k`: mean 13.3 k to 13.5 k tokens and 8 % at the cap (DAPO-Math-17k);
/// `openr1_32k`: 75 % below 8 k, 5 % at the cap; `longtail_32k`: mean 3.3 k, 0.3 %
/// at the cap.
pub fn preset(name: &str) -> Option<Lengths> {
    let (mu, sigma) = match name {
        "dapo_32k" => (9.28, 0.8),
        "openr1_32k" => (8.03, 1.46),
        "longtail_32k" => (7.6, 1.0),
        _ => return None,
    };
    Some(Lengths::LogNormal {
        mu,
        sigma,
        cap: 32_768,
    })
}

impl Lengths {
    pub(super) fn check(&self) -> Result<(), SimError> {
        match self {
            Self::LogNormal { mu, sigma, cap } => {
                if !mu.is_finite() {
                    return Err(SimError::invalid("lengths.mu", mu, "must be a number"));
                }
                if !(sigma.is_finite() && *sigma >= 0.0) {
                    return Err(SimError::invalid(
                        "lengths.sigma",
                        sigma,
                        "must be at least 0",
                    ));
                }
                if *cap == 0 {
                    return Err(SimError::invalid("lengths.cap", cap, "must be at least 1"));
                }
            }
            Self::Observed(values) => {
                if values.is_empty() {
                    return Err(SimError::invalid(
                        "lengths",
                        "[]",
                        "give at least one length",
                    ));
                }
                if values.contains(&0) {
                    return Err(SimError::invalid("lengths", 0, "must be at least 1 token"));
                }
            }
        }
        Ok(())
    }

    /// The longest possible response.
    pub fn longest(&self) -> u32 {
        match self {
            Self::LogNormal { cap, .. } => *cap,
            Self::Observed(values) => values.iter().copied().max().unwrap_or(1),
        }
    }

    /// `samples` lengths for each of `prompts`, prompt by prompt. `correlation`
    /// (0..1) is that of the samples of one prompt.
    pub(super) fn draw(&self, prompts: u32, samples: u32, correlation: f64, seed: u64) -> Vec<u32> {
        let mut normal = Normal {
            rng: ChaCha8Rng::seed_from_u64(seed),
            spare: None,
        };
        let (of_prompt, of_sample) = (correlation.sqrt(), (1.0 - correlation).sqrt());
        let sorted = match self {
            Self::Observed(values) => {
                let mut sorted = values.clone();
                sorted.sort_unstable();
                sorted
            }
            Self::LogNormal { .. } => Vec::new(),
        };
        let mut lengths = Vec::with_capacity(prompts as usize * samples as usize);
        for _ in 0..prompts {
            let prompt = of_prompt * normal.next();
            for _ in 0..samples {
                let z = prompt + of_sample * normal.next();
                lengths.push(match self {
                    Self::LogNormal { mu, sigma, cap } => {
                        (mu + sigma * z).exp().clamp(1.0, f64::from(*cap)) as u32
                    }
                    Self::Observed(_) => {
                        let at = (below(z) * sorted.len() as f64) as usize;
                        sorted[at.min(sorted.len() - 1)]
                    }
                });
            }
        }
        lengths
    }
}

/// Standard normal numbers by the polar method.
struct Normal {
    rng: ChaCha8Rng,
    spare: Option<f64>,
}

impl Normal {
    /// Uniform in -1..1.
    fn uniform(&mut self) -> f64 {
        (self.rng.next_u64() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    fn next(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        loop {
            let (x, y) = (self.uniform(), self.uniform());
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                let scale = (-2.0 * square.ln() / square).sqrt();
                self.spare = Some(y * scale);
                return x * scale;
            }
        }
    }
}

/// Probability that a standard normal number is below `z` (Abramowitz and Stegun
/// 26.2.17, error below 1e-7).
fn below(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let series = t
        * (0.319_381_53
            + t * (-0.356_563_782
                + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * series;
    if z >= 0.0 { 1.0 - tail } else { tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(name: &str) -> Vec<u32> {
        let mut lengths = preset(name).unwrap().draw(100_000, 1, 0.0, 5);
        lengths.sort_unstable();
        lengths
    }

    fn near(value: f64, expected: f64, tolerance: f64) {
        assert!(
            (value / expected - 1.0).abs() < tolerance,
            "{value} is not near {expected}"
        );
    }

    fn mean(lengths: &[u32]) -> f64 {
        lengths.iter().map(|&l| f64::from(l)).sum::<f64>() / lengths.len() as f64
    }

    #[test]
    fn presets_have_the_published_statistics() {
        let at = |lengths: &[u32], share: f64| {
            f64::from(lengths[(share * lengths.len() as f64) as usize])
        };
        let capped = |lengths: &[u32]| {
            lengths.iter().filter(|&&l| l == 32_768).count() as f64 / lengths.len() as f64
        };
        let dapo = drawn("dapo_32k");
        near(mean(&dapo), 13_400.0, 0.03);
        near(at(&dapo, 0.5), 10_600.0, 0.03);
        near(capped(&dapo), 0.08, 0.15);
        let openr1 = drawn("openr1_32k");
        near(mean(&openr1), 6_700.0, 0.03);
        near(at(&openr1, 0.9), 19_000.0, 0.1);
        near(capped(&openr1), 0.05, 0.2);
        let tail = drawn("longtail_32k");
        near(mean(&tail), 3_300.0, 0.03);
        near(at(&tail, 0.9), 7_100.0, 0.05);
        near(capped(&tail), 0.003, 0.5);
    }

    #[test]
    fn observed_lengths_keep_their_distribution() {
        let lengths = Lengths::Observed(vec![10, 20, 20, 1000]).draw(20_000, 2, 0.5, 3);
        let share = |value| lengths.iter().filter(|&&l| l == value).count() as f64 / 40_000.0;
        near(share(10), 0.25, 0.05);
        near(share(20), 0.5, 0.05);
        near(share(1000), 0.25, 0.05);
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let lengths = preset("openr1_32k").unwrap();
        assert_eq!(lengths.draw(50, 4, 0.5, 1), lengths.draw(50, 4, 0.5, 1));
        assert_ne!(lengths.draw(50, 4, 0.5, 1), lengths.draw(50, 4, 0.5, 2));
    }
}
