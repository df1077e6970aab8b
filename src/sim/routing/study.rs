//! Policies side by side on the same sessions, over several seeds.

use serde::{Deserialize, Serialize};

use super::cluster::{Outcome, simulate};
use super::replica::ReplicaModel;
use super::workload::{Session, Workload};
use crate::route::{PolicyOptions, RouteError, RouterConfig};

/// Margins that [`Study::suggest_margin`] tries; pins that never break are tried too.
const MARGINS: [f64; 9] = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0];
/// A larger margin is preferred if it costs no more than this share of the generation time: it
/// moves fewer conversations.
const AS_GOOD: f64 = 0.002;

/// A cluster, a workload and the seeds to try it with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Study {
    /// Number of replicas.
    pub replicas: usize,
    /// Each of them.
    pub model: ReplicaModel,
    /// Sessions to generate.
    pub workload: Workload,
    /// Recorded sessions to use instead of generated ones.
    pub trace: Option<Vec<Session>>,
    /// Seeds of sessions and router; all policies see the same ones.
    pub seeds: Vec<u64>,
}

impl Default for Study {
    fn default() -> Self {
        Self {
            replicas: 16,
            model: ReplicaModel::default(),
            workload: Workload::default(),
            trace: None,
            seeds: vec![1, 2, 3, 4, 5],
        }
    }
}

/// Medians over the seeds for one policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyRow {
    /// Label: the policy with its parameters.
    pub policy: String,
    /// Medians of the measures.
    #[serde(flatten)]
    pub median: Outcome,
    /// Median over the seeds of the relative difference of the generation time to the first row's
    /// on the same sessions.
    pub paired_change: f64,
}

/// The table of a study.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StudyReport {
    /// Mean prompt length of the sessions, tokens.
    pub mean_context: f64,
    /// One row per policy; the first is `sticky`.
    pub rows: Vec<PolicyRow>,
}

/// What [`Study::suggest_margin`] found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Suggestion {
    /// The margin; `None`: leave pins alone.
    pub affinity_break_margin: Option<f64>,
    /// What was tried.
    pub report: StudyReport,
}

impl Study {
    /// The policies that the simulator shows side by side.
    ///
    /// # Errors
    /// [`RouteError::InvalidOption`] for a value that the model has no meaning for.
    pub fn compare(&self) -> Result<StudyReport, RouteError> {
        let sessions = self.sessions();
        let mut policies = vec![
            ("sticky".to_owned(), "sticky", PolicyOptions::default()),
            dual_threshold(4.0, 1.1),
            dual_threshold(32.0, 1.5),
        ];
        policies.extend([0.0, 1.0, 2.0, 4.0, 8.0].map(margin));
        // As many tokens as two requests bring on average.
        let tokens = (2.0 * mean_context(&sessions)).round();
        policies.push((
            format!("weighted_margin {tokens:.0} tokens"),
            "weighted_margin",
            PolicyOptions {
                affinity_break_margin: Some(tokens),
                ..PolicyOptions::default()
            },
        ));
        self.table(&sessions, &policies)
    }

    /// One margin beside pins that never break.
    ///
    /// # Errors
    /// [`RouteError::InvalidOption`] for a value that the model has no meaning for.
    pub fn try_margin(&self, value: f64) -> Result<StudyReport, RouteError> {
        let sticky = ("sticky".to_owned(), "sticky", PolicyOptions::default());
        self.table(&self.sessions(), &[sticky, margin(value)])
    }

    /// The margin with the least generation time on this workload.
    ///
    /// # Errors
    /// [`RouteError::InvalidOption`] for a value that the model has no meaning for.
    pub fn suggest_margin(&self) -> Result<Suggestion, RouteError> {
        let sessions = self.sessions();
        let mut policies = vec![("sticky".to_owned(), "sticky", PolicyOptions::default())];
        policies.extend(MARGINS.map(margin));
        let report = self.table(&sessions, &policies)?;
        let least = report
            .rows
            .iter()
            .map(|row| row.paired_change)
            .fold(f64::INFINITY, f64::min);
        let good = |row: &PolicyRow| row.paired_change <= least + AS_GOOD;
        let affinity_break_margin = if good(&report.rows[0]) {
            None
        } else {
            let mut rows = report.rows[1..].iter().zip(MARGINS).rev();
            rows.find(|(row, _)| good(row)).map(|(_, margin)| margin)
        };
        Ok(Suggestion {
            affinity_break_margin,
            report,
        })
    }

    /// Refuses values that the model has no meaning for.
    fn check(&self) -> Result<(), RouteError> {
        let model = &self.model;
        let traced = self.trace.is_some();
        for (option, value, least) in [
            ("replicas", self.replicas as f64, 1.0),
            ("seeds", self.seeds.len() as f64, 1.0),
            (
                "sessions",
                if traced {
                    1.0
                } else {
                    self.workload.sessions as f64
                },
                1.0,
            ),
            ("step_seconds", model.step_seconds, 1e-6),
            (
                "step_seconds_per_sequence",
                model.step_seconds_per_sequence,
                0.0,
            ),
            (
                "step_seconds_per_context_token",
                model.step_seconds_per_context_token,
                0.0,
            ),
            (
                "prefill_tokens_per_second",
                model.prefill_tokens_per_second,
                1.0,
            ),
            ("prefill_chunk", model.prefill_chunk, 1.0),
            ("max_num_seqs", model.max_num_seqs as f64, 1.0),
            ("kv_pool_tokens", model.kv_pool_tokens, 1.0),
            ("block_size", model.block_size, 1.0),
        ] {
            if !(value >= least && value.is_finite()) {
                return Err(RouteError::InvalidOption {
                    option,
                    value: value.to_string(),
                    expected: "a larger number",
                });
            }
        }
        Ok(())
    }

    fn sessions(&self) -> Vec<Vec<Session>> {
        let of_seed = |seed: &u64| match &self.trace {
            Some(trace) => trace.clone(),
            None => self.workload.sample(*seed),
        };
        self.seeds.iter().map(of_seed).collect()
    }

    fn table(
        &self,
        sessions: &[Vec<Session>],
        policies: &[(String, &'static str, PolicyOptions)],
    ) -> Result<StudyReport, RouteError> {
        self.check()?;
        let mut rows: Vec<PolicyRow> = Vec::new();
        let mut baseline: Vec<f64> = Vec::new();
        for (label, name, options) in policies {
            let mut outcomes = Vec::new();
            for (seed, sessions) in self.seeds.iter().zip(sessions) {
                let policy = options.build(name)?;
                let config = RouterConfig {
                    policy,
                    seed: *seed,
                    ..RouterConfig::default()
                };
                let shared = if self.trace.is_some() {
                    0.0
                } else {
                    self.workload.shared_prefix
                };
                outcomes.push(simulate(
                    self.replicas,
                    self.model,
                    sessions,
                    shared,
                    config,
                )?);
            }
            let seconds: Vec<f64> = outcomes.iter().map(|o| o.generation_seconds).collect();
            if rows.is_empty() {
                baseline.clone_from(&seconds);
            }
            let change = seconds
                .iter()
                .zip(&baseline)
                .map(|(s, base)| s / base - 1.0);
            rows.push(PolicyRow {
                policy: label.clone(),
                median: medians(&outcomes),
                paired_change: median(change.collect()),
            });
        }
        Ok(StudyReport {
            mean_context: mean_context(sessions),
            rows,
        })
    }
}

fn margin(value: f64) -> (String, &'static str, PolicyOptions) {
    let options = PolicyOptions {
        affinity_break_margin: Some(value),
        ..PolicyOptions::default()
    };
    (format!("margin {value}"), "margin", options)
}

fn dual_threshold(absolute: f64, relative: f64) -> (String, &'static str, PolicyOptions) {
    let options = PolicyOptions {
        balance_abs_threshold: absolute,
        balance_rel_threshold: relative,
        ..PolicyOptions::default()
    };
    (
        format!("dual_threshold {absolute}/{relative}"),
        "dual_threshold",
        options,
    )
}

fn mean_context(sessions: &[Vec<Session>]) -> f64 {
    let turns = || sessions.iter().flatten().flat_map(|session| &session.turns);
    turns().map(|turn| turn.context).sum::<f64>() / turns().count().max(1) as f64
}

fn medians(outcomes: &[Outcome]) -> Outcome {
    let of = |field: fn(&Outcome) -> f64| median(outcomes.iter().map(field).collect());
    Outcome {
        generation_seconds: of(|o| o.generation_seconds),
        prefix_hit_rate: of(|o| o.prefix_hit_rate),
        kept: of(|o| o.kept as f64) as u64,
        broken: of(|o| o.broken as f64) as u64,
        queue_skew: of(|o| o.queue_skew),
        starvation: of(|o| o.starvation),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}
