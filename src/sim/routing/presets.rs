//! Named studies, and what was published for some of them.

use serde::Serialize;

use super::replica::ReplicaModel;
use super::study::Study;
use super::workload::{LogNormal, Workload};

/// A study with a name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// The study.
    pub study: Study,
    /// What was measured on real replicas.
    pub published: Option<Published>,
}

/// Paired medians for margin 2 against pins that never break, on 16 replicas: the description of
/// verl's pull request 7435.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Published {
    /// Relative difference of the generation time.
    pub change: f64,
    /// Prefix hit rate without and with the margin, where it was given.
    pub hit_rates: Option<(f64, f64)>,
}

/// All presets.
pub fn presets() -> Vec<Preset> {
    let rollout = |name, about, mu: f64, sigma| {
        let lengths = LogNormal {
            median: mu.exp(),
            sigma,
            cap: 32_768.0,
        };
        let workload = Workload {
            session_output: Some(lengths),
            ..Workload::default()
        };
        Preset {
            name,
            about,
            study: Study {
                workload,
                ..Study::default()
            },
            published: None,
        }
    };
    vec![
        Preset {
            name: "tau",
            about: "agent sessions with the turns and lengths of tau-bench's airline domain",
            study: Study::default(),
            published: None,
        },
        rollout(
            "dapo_32k",
            "tau's turns; tokens per session: mean 13.4 k, 8 % at 32 k",
            9.28,
            0.8,
        ),
        rollout(
            "openr1_32k",
            "tau's turns; tokens per session: 75 % below 8 k",
            8.03,
            1.46,
        ),
        rollout(
            "longtail_32k",
            "tau's turns; tokens per session: mean 3.3 k",
            7.6,
            1.0,
        ),
        published(
            "published-2.2k",
            "mean context 2.2 k",
            2_200.0,
            SMALL_POOL,
            -0.038,
            None,
        ),
        published(
            "published-8.7k",
            "mean context 8.7 k",
            8_700.0,
            SMALL_POOL,
            -0.086,
            None,
        ),
        published(
            "published-19.8k",
            "mean context 19.8 k",
            19_800.0,
            SMALL_POOL,
            -0.101,
            None,
        ),
        published(
            "published-8.7k-large-pool",
            "mean context 8.7 k, a KV pool that holds all of it",
            8_700.0,
            LARGE_POOL,
            -0.054,
            Some((0.997, 0.976)),
        ),
    ]
}

/// Tokens. With 12 sessions per replica the contexts of 8.7 k nearly fill the smaller one.
const SMALL_POOL: f64 = 100_000.0;
const LARGE_POOL: f64 = 2_000_000.0;

/// One of the published settings. What was not published (sessions per replica, lengths of turns,
/// speed of the engine, size of the pool) is one set of values for all four, chosen so that the
/// changes come out near the published ones.
fn published(
    name: &'static str,
    about: &'static str,
    mean_context: f64,
    kv_pool_tokens: f64,
    change: f64,
    hit_rates: Option<(f64, f64)>,
) -> Preset {
    let workload = Workload {
        sessions: 192,
        first_prompt: LogNormal {
            median: 256.0,
            sigma: 0.5,
            cap: 1_024.0,
        },
        output: LogNormal {
            median: 100.0,
            sigma: 0.6,
            cap: f64::MAX,
        },
        added: LogNormal {
            median: 16.0,
            sigma: 0.5,
            cap: 64.0,
        },
        mean_context: Some(mean_context),
        shared_prefix: 0.0,
        ..Workload::default()
    };
    let model = ReplicaModel {
        step_seconds: 0.006,
        step_seconds_per_sequence: 0.002,
        kv_pool_tokens,
        ..ReplicaModel::default()
    };
    let study = Study {
        workload,
        model,
        ..Study::default()
    };
    Preset {
        name,
        about,
        study,
        published: Some(Published { change, hit_rates }),
    }
}
