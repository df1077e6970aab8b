//! Sessions: how many turns, how long, and how much is added between them.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// One turn: the model writes, then a tool or a user answers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Tokens in the prompt.
    pub context: f64,
    /// Tokens that the model generates.
    pub output: f64,
    /// Seconds until the next turn is submitted.
    pub think_seconds: f64,
}

/// One session: turns in order.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Session {
    /// Its turns; a session without one never starts.
    pub turns: Vec<Turn>,
}

/// A log-normal quantity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogNormal {
    /// Its median.
    pub median: f64,
    /// Standard deviation of its logarithm.
    pub sigma: f64,
    /// Values above are set to this.
    pub cap: f64,
}

/// Seeded sessions. All of them are submitted at once, as in an RL rollout.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workload {
    /// Number of sessions.
    pub sessions: usize,
    /// Turns per session.
    pub turns: LogNormal,
    /// Tokens of the first prompt, at least those of the shared prefix.
    pub first_prompt: LogNormal,
    /// Tokens generated per turn.
    pub output: LogNormal,
    /// Tokens generated per session: its turns are scaled to them. `None`: they stay as drawn.
    pub session_output: Option<LogNormal>,
    /// Tokens that a tool or a user adds between two turns.
    pub added: LogNormal,
    /// Mean prompt length over all turns, tokens: outputs are scaled until it holds. `None`: they
    /// stay as drawn.
    pub mean_context: Option<f64>,
    /// Tokens at the start of each prompt that all sessions share.
    pub shared_prefix: f64,
    /// Seconds between two turns.
    pub think_seconds: LogNormal,
}

impl Default for Workload {
    /// Agent sessions with the turn counts of tau-bench (mean 12.3, median 11, p90 20, at most 30)
    /// and the lengths of its airline sessions at four characters per token.
    fn default() -> Self {
        Self {
            sessions: 512,
            turns: LogNormal {
                median: 11.0,
                sigma: 0.4665,
                cap: 30.0,
            },
            first_prompt: LogNormal {
                median: 1_560.0,
                sigma: 0.01,
                cap: 2_048.0,
            },
            output: LogNormal {
                median: 49.0,
                sigma: 0.7,
                cap: 1_024.0,
            },
            session_output: None,
            added: LogNormal {
                median: 33.0,
                sigma: 1.45,
                cap: 2_048.0,
            },
            mean_context: None,
            shared_prefix: 1_540.0,
            think_seconds: LogNormal {
                median: 1.0,
                sigma: 0.8,
                cap: 30.0,
            },
        }
    }
}

impl Workload {
    /// Draws the sessions.
    pub fn sample(&self, seed: u64) -> Vec<Session> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut sessions: Vec<Session> =
            (0..self.sessions).map(|_| self.session(&mut rng)).collect();
        let scale = self
            .mean_context
            .map_or(1.0, |mean| scale_for(&sessions, mean));
        for session in &mut sessions {
            let mut generated = 0.0;
            for turn in &mut session.turns {
                turn.output = (turn.output * scale).round().max(1.0);
                turn.context += generated;
                generated += turn.output;
            }
        }
        sessions
    }

    /// A session whose contexts leave out what the model generates.
    fn session(&self, rng: &mut ChaCha8Rng) -> Session {
        let count = self.turns.draw(rng).round().max(1.0) as usize;
        let mut context = self
            .first_prompt
            .draw(rng)
            .max(self.shared_prefix + 1.0)
            .round();
        let drawn = (0..count).map(|_| {
            let output = self.output.draw(rng);
            let turn = Turn {
                context,
                output,
                think_seconds: self.think_seconds.draw(rng),
            };
            context += self.added.draw(rng).round();
            turn
        });
        let mut turns: Vec<Turn> = drawn.collect();
        if let Some(tokens) = self.session_output {
            let scale = tokens.draw(rng) / turns.iter().map(|turn| turn.output).sum::<f64>();
            turns.iter_mut().for_each(|turn| turn.output *= scale);
        }
        Session { turns }
    }
}

/// The factor on outputs that brings the mean prompt length to `mean`; contexts are linear in it.
fn scale_for(sessions: &[Session], mean: f64) -> f64 {
    let (mut turns, mut fixed, mut generated) = (0.0, 0.0, 0.0);
    for session in sessions {
        let mut before = 0.0;
        for turn in &session.turns {
            turns += 1.0;
            fixed += turn.context;
            generated += before;
            before += turn.output;
        }
    }
    if generated > 0.0 {
        ((mean * turns - fixed) / generated).max(0.0)
    } else {
        1.0
    }
}

impl LogNormal {
    fn draw(&self, rng: &mut ChaCha8Rng) -> f64 {
        (self.median * (self.sigma * normal(rng)).exp()).min(self.cap)
    }
}

/// A standard normal number (Box and Muller).
fn normal(rng: &mut ChaCha8Rng) -> f64 {
    // In (0, 1], so that the logarithm is finite.
    let unit = |rng: &mut ChaCha8Rng| ((rng.next_u64() >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
    let radius = (-2.0 * unit(rng).ln()).sqrt();
    radius * (std::f64::consts::TAU * unit(rng)).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_have_the_published_turn_counts_and_the_wanted_context() {
        let workload = Workload {
            sessions: 20_000,
            mean_context: Some(8_700.0),
            ..Workload::default()
        };
        let sessions = workload.sample(7);
        let mut counts: Vec<usize> = sessions.iter().map(|session| session.turns.len()).collect();
        counts.sort_unstable();
        let mean = counts.iter().sum::<usize>() as f64 / counts.len() as f64;
        assert!((mean - 12.3).abs() < 0.3, "{mean}");
        assert_eq!(
            (counts[10_000], counts[18_000], counts[19_999]),
            (11, 20, 30)
        );
        let contexts: Vec<f64> = sessions
            .iter()
            .flat_map(|s| &s.turns)
            .map(|turn| turn.context)
            .collect();
        let mean = contexts.iter().sum::<f64>() / contexts.len() as f64;
        assert!((mean - 8_700.0).abs() < 2.0, "{mean}");
    }

    #[test]
    fn the_seed_decides() {
        let workload = Workload::default();
        assert_eq!(workload.sample(1), workload.sample(1));
        assert_ne!(workload.sample(1), workload.sample(2));
    }
}
