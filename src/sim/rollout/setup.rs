//! What is simulated.

use serde::{Deserialize, Serialize};

use super::error::SimError;
use super::lengths::Lengths;

/// Seconds of a decode step: fixed + per row of the graph + per KV token of the
/// busiest rank, and per prompt token that the busiest rank prefills in it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepModel {
    /// Seconds of any step: launches, collectives, reading the weights.
    pub fixed_seconds: f64,
    /// Seconds per row of the padded batch.
    pub seconds_per_row: f64,
    /// Seconds per KV token that the busiest rank reads.
    pub seconds_per_kv_token: f64,
    /// Seconds per prompt token.
    pub seconds_per_prefill_token: f64,
}

impl StepModel {
    /// Seconds of a step without prefill.
    pub fn seconds(&self, gear: u32, kv_tokens: f64) -> f64 {
        self.fixed_seconds
            + self.seconds_per_row * f64::from(gear)
            + self.seconds_per_kv_token * kv_tokens
    }
}

/// Cost of checks and of moving KV.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// KV bytes per token on one die.
    pub bytes_per_token: f64,
    /// Bytes per second, each way, of one die.
    pub bandwidth: f64,
    /// Seconds to issue one copy.
    pub seconds_per_copy: f64,
    /// Copies per KV block on each side (layers times sub-caches).
    pub copies_per_block: f64,
    /// Seconds of a check that moves nothing.
    pub check_seconds: f64,
    /// Further seconds of one that moves something: offers, answers, commit.
    pub moving_seconds: f64,
}

impl Transfer {
    /// Seconds of the transfer for a rank that sends or receives these.
    pub(super) fn seconds(&self, tokens: f64, blocks: f64) -> f64 {
        tokens * self.bytes_per_token / self.bandwidth
            + blocks * self.copies_per_block * self.seconds_per_copy
    }
}

/// A group of ranks and a rollout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// DP ranks, up to 4096.
    pub ranks: u32,
    /// Prompts of the rollout, spread over the ranks in equal runs.
    pub prompts: u32,
    /// Responses per prompt; they start on the same rank.
    pub samples_per_prompt: u32,
    /// Tokens of a prompt.
    pub prompt_tokens: u32,
    /// Lengths of the responses.
    pub lengths: Lengths,
    /// Correlation (0..1) of the log-lengths of one prompt's responses.
    pub prompt_correlation: f64,
    /// Most running sequences per rank.
    pub max_num_seqs: u32,
    /// Graph batch sizes.
    pub gears: Vec<u32>,
    /// KV tokens that a rank can hold; `None`: not a limit.
    pub kv_capacity_tokens: Option<u64>,
    /// Tokens per KV block.
    pub block_tokens: u32,
    /// Step time.
    pub step: StepModel,
    /// Cost of moving.
    pub transfer: Transfer,
    /// Steps between checks of the interval trigger.
    pub check_interval: u32,
    /// Seed of the lengths.
    pub seed: u64,
}

/// Limits that keep a simulation within seconds and a few GiB.
const MOST_RANKS: u32 = 4096;
const MOST_SEQUENCES: u64 = 4_000_000;

impl Setup {
    /// Number of sequences.
    pub fn sequences(&self) -> u64 {
        u64::from(self.prompts) * u64::from(self.samples_per_prompt)
    }

    /// Whether [`Policy::Bound`](super::Policy::Bound) is below everything: KV is not
    /// limited and there is a slot for every sequence at once. In a queue the order
    /// matters, and with little KV whom one preempts; the bound admits in the order of
    /// the prompts and preempts the youngest, like everyone, which need not be best.
    pub fn bound_holds(&self) -> bool {
        let slots = u64::from(self.ranks) * u64::from(self.max_num_seqs);
        self.kv_capacity_tokens.is_none() && self.sequences() <= slots
    }

    /// Whether all fields are possible.
    ///
    /// # Errors
    /// [`SimError`] that names the first field that is not.
    pub fn check(&self) -> Result<(), SimError> {
        let counts = [
            ("ranks", self.ranks, MOST_RANKS),
            ("prompts", self.prompts, u32::MAX),
            ("samples_per_prompt", self.samples_per_prompt, u32::MAX),
            ("prompt_tokens", self.prompt_tokens, 1 << 24),
            ("max_num_seqs", self.max_num_seqs, 65_535),
            ("block_tokens", self.block_tokens, 1 << 16),
            ("check_interval", self.check_interval, u32::MAX),
        ];
        for (field, value, most) in counts {
            if value == 0 || value > most {
                return Err(SimError::invalid(
                    field,
                    value,
                    format!("must be in 1..{most}"),
                ));
            }
        }
        if self.sequences() > MOST_SEQUENCES {
            let problem = format!("with samples_per_prompt, at most {MOST_SEQUENCES} sequences");
            return Err(SimError::invalid("prompts", self.prompts, problem));
        }
        if !(0.0..=1.0).contains(&self.prompt_correlation) {
            let value = self.prompt_correlation;
            return Err(SimError::invalid(
                "prompt_correlation",
                value,
                "must be in 0..1",
            ));
        }
        if self.gears.contains(&0) {
            return Err(SimError::invalid("gears", 0, "must be at least 1"));
        }
        self.lengths.check()?;
        self.check_costs()?;
        let tokens = u64::from(self.prompt_tokens) + u64::from(self.lengths.longest());
        match self.kv_capacity_tokens {
            Some(capacity) if capacity < tokens => Err(SimError::NeverFits { tokens, capacity }),
            _ => Ok(()),
        }
    }

    fn check_costs(&self) -> Result<(), SimError> {
        let (step, transfer) = (&self.step, &self.transfer);
        let costs = [
            ("step.fixed_seconds", step.fixed_seconds),
            ("step.seconds_per_row", step.seconds_per_row),
            ("step.seconds_per_kv_token", step.seconds_per_kv_token),
            (
                "step.seconds_per_prefill_token",
                step.seconds_per_prefill_token,
            ),
            ("transfer.bytes_per_token", transfer.bytes_per_token),
            ("transfer.seconds_per_copy", transfer.seconds_per_copy),
            ("transfer.copies_per_block", transfer.copies_per_block),
            ("transfer.check_seconds", transfer.check_seconds),
            ("transfer.moving_seconds", transfer.moving_seconds),
        ];
        for (field, value) in costs {
            if !(value.is_finite() && value >= 0.0) {
                return Err(SimError::invalid(field, value, "must be at least 0"));
            }
        }
        if transfer.bandwidth.is_nan() || transfer.bandwidth <= 0.0 {
            let value = transfer.bandwidth;
            return Err(SimError::invalid(
                "transfer.bandwidth",
                value,
                "must be above 0",
            ));
        }
        if step.seconds(1, 1.0) <= 0.0 {
            return Err(SimError::invalid("step", 0, "a step must take time"));
        }
        Ok(())
    }
}
