//! The two published rollouts, as setups.
//!
//! `docs/simulator.md` says which constants were fitted to what, which follow from
//! sizes, and how far the predictions are off.

use super::lengths::{Lengths, preset};
use super::setup::{Setup, StepModel, Transfer};

/// A rollout whose time has been published.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// The name of its setup.
    pub name: &'static str,
    /// Group and workload.
    pub setup: Setup,
    /// Published seconds without moving sequences.
    pub without_seconds: f64,
    /// Published seconds with the published method.
    pub with_seconds: f64,
}

/// Seconds per step that any batch costs, per row, and per KV token of the busiest
/// rank: fitted to the published TPOT of the DeepSeek-V3 rollout.
const FIXED_SECONDS: f64 = 0.016;
const SECONDS_PER_ROW: f64 = 0.001_628;
const SECONDS_PER_KV_TOKEN: f64 = 0.144e-6;

/// Layers, KV bytes per token on one die (bf16), activated parameters (1e9), those
/// of them that a rank computes itself (routed experts are spread over all dies),
/// and dies per DP rank.
struct Model {
    layers: f64,
    kv_bytes: f64,
    active: f64,
    own: f64,
    dies: f64,
}

/// MLA: a latent of 512 + 64 values per layer, whole on every TP shard.
const DEEPSEEK_V3: Model = Model {
    layers: 61.0,
    kv_bytes: 576.0 * 2.0 * 61.0,
    active: 37.0,
    own: 16.5,
    dies: 1.0,
};

/// GQA: keys and values of 4 heads of 128 values per layer, over 4 TP shards.
const QWEN3_235B: Model = Model {
    layers: 94.0,
    kv_bytes: 2.0 * 128.0 * 2.0 * 94.0,
    active: 22.0,
    own: 7.3,
    dies: 2.0,
};

/// Seconds per prompt token and billion parameters on one die: two
/// floating-point operations per parameter at 140 TFLOP/s.
const PREFILL_SECONDS: f64 = 2e9 / 140e12;

impl Model {
    /// Fixed time goes with the layers, time per row with the work that it is for a
    /// die, time per KV token with its bytes.
    fn step(&self) -> StepModel {
        let base = &DEEPSEEK_V3;
        StepModel {
            fixed_seconds: FIXED_SECONDS * self.layers / base.layers,
            seconds_per_row: SECONDS_PER_ROW * (self.active / self.dies)
                / (base.active / base.dies),
            seconds_per_kv_token: SECONDS_PER_KV_TOKEN * self.kv_bytes / base.kv_bytes,
            seconds_per_prefill_token: PREFILL_SECONDS * self.own / self.dies,
        }
    }

    /// Between two nodes of a supernode over HCCS: 90 GB/s in blocks of 2 MiB
    /// (HIXL benchmarks), 5.8 us to issue a copy, two sub-caches per layer.
    fn transfer(&self) -> Transfer {
        Transfer {
            bytes_per_token: self.kv_bytes,
            bandwidth: 90e9,
            seconds_per_copy: 5.8e-6,
            copies_per_block: 2.0 * self.layers,
            check_seconds: 0.002,
            moving_seconds: 0.02,
        }
    }

    fn setup(&self, ranks: u32, max_num_seqs: u32, gears: &[u32], lengths: &str) -> Setup {
        Setup {
            ranks,
            prompts: 512,
            samples_per_prompt: 16,
            prompt_tokens: 512,
            lengths: preset(lengths).unwrap_or(Lengths::Observed(Vec::new())),
            prompt_correlation: 0.5,
            max_num_seqs,
            gears: gears.to_vec(),
            kv_capacity_tokens: None,
            block_tokens: 128,
            step: self.step(),
            transfer: self.transfer(),
            check_interval: 1000,
            seed: 1,
        }
    }
}

/// DeepSeek-V3 on 128 dies, TP2 DP128, 512 prompts x 16, responses up to 32 k.
pub fn deepseek_v3() -> Published {
    Published {
        name: "deepseek-v3",
        setup: DEEPSEEK_V3.setup(128, 64, &[64, 32, 16, 8, 4], "openr1_32k"),
        without_seconds: 6200.0,
        with_seconds: 2300.0,
    }
}

/// Qwen3-235B on 64 dies, TP4 DP32, the same workload.
pub fn qwen3_235b() -> Published {
    Published {
        name: "qwen3-235b",
        setup: QWEN3_235B.setup(32, 256, &[256, 128, 64, 32, 16, 8, 4], "dapo_32k"),
        without_seconds: 10_200.0,
        with_seconds: 6100.0,
    }
}
