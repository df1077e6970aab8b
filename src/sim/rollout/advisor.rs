//! Gear advisor: the graph batch sizes that a rollout wants.

use serde::Serialize;

use super::error::SimError;
use super::policy::Policy;
use super::run::simulate;
use super::setup::Setup;

/// What a compiled graph costs.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct GearCost {
    /// Seconds to compile or capture it, charged to the rollout.
    pub seconds: f64,
    /// Memory, MiB.
    pub mib: f64,
    /// Memory for all graphs, MiB; `None`: not a limit.
    pub budget_mib: Option<f64>,
}

/// Suggested gears and what they gain.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Suggestion {
    /// Gears, the largest first.
    pub gears: Vec<u32>,
    /// Expected seconds of a perfectly balanced rollout with them, and what
    /// compiling them takes.
    pub expected_seconds: f64,
    /// Of which compiling.
    pub compile_seconds: f64,
    /// Memory of the graphs, MiB.
    pub graph_mib: f64,
    /// Seconds of the rollout with the adaptive trigger.
    pub adaptive_seconds: f64,
    /// The gears that a comparison was asked for with.
    pub baseline_given: Vec<u32>,
    /// Those compared with: the given ones below `max_num_seqs`, and that itself, since
    /// an engine has a graph for its largest batch. The largest first.
    pub baseline: Vec<u32>,
    /// The same two numbers for them, compiling included in the first.
    pub baseline_expected_seconds: f64,
    /// See `adaptive_seconds`.
    pub baseline_adaptive_seconds: f64,
    /// Fraction of `baseline_expected_seconds` that the suggested gears save; at most 0
    /// when they are no gain, as fewer gears than the baseline's may be.
    pub expected_gain: f64,
}

/// The at most `count` gears, the largest being `max_num_seqs`, with the lowest
/// expected time of a perfectly balanced rollout ([`Policy::Bound`]), by dynamic
/// programming over the numbers of sequences per rank. With a cost per graph fewer
/// may be better. They are compared with `baseline`, see [`Suggestion::baseline`].
///
/// Time: O(max_num_seqs^2 x count) after one simulation.
///
/// # Errors
/// [`SimError`] for an impossible setup, a `count` of 0, or a budget in which not
/// even one graph fits.
pub fn suggest_gears(
    setup: &Setup,
    count: usize,
    cost: GearCost,
    baseline: &[u32],
) -> Result<Suggestion, SimError> {
    setup.check()?;
    if count == 0 {
        return Err(SimError::invalid("suggest_gears", 0, "must be at least 1"));
    }
    for (field, value) in [("graph_seconds", cost.seconds), ("graph_mib", cost.mib)] {
        if !(value.is_finite() && value >= 0.0) {
            return Err(SimError::invalid(field, value, "must be at least 0"));
        }
    }
    let affordable = match cost.budget_mib {
        Some(budget) if budget.is_nan() || budget < cost.mib => {
            let problem = format!("not even one graph of {} MiB fits", cost.mib);
            return Err(SimError::invalid("graph_budget_mib", budget, problem));
        }
        Some(budget) if cost.mib > 0.0 => (budget / cost.mib) as usize,
        _ => count,
    };
    let largest = setup.max_num_seqs;
    // With every number its own gear, how long is each one the busiest rank's?
    let free = Setup {
        gears: Vec::new(),
        ..setup.clone()
    };
    let ideal = simulate(&free, Policy::Bound)?;
    let steps = &ideal.steps_by_busiest;
    let row = setup.step.seconds_per_row;
    // What does not depend on the gears: fixed part, KV, prefill.
    let exact: f64 = rows(steps, |count| count) * row;
    let rest = ideal.wall_seconds - exact;

    let best = partition(steps, largest, count.min(affordable), row, cost.seconds);
    let time = |gears: &[u32]| {
        let gear = |count: u32| {
            gears
                .iter()
                .copied()
                .filter(|&g| g >= count)
                .min()
                .unwrap_or(count)
        };
        rest + rows(steps, gear) * row + cost.seconds * gears.len() as f64
    };
    let adaptive = |gears: &[u32]| {
        let with = Setup {
            gears: gears.to_vec(),
            ..setup.clone()
        };
        simulate(&with, Policy::Adaptive).map(|run| run.wall_seconds)
    };
    let compared = with_largest(baseline, largest);
    let (expected, baseline_expected) = (time(&best), time(&compared));
    Ok(Suggestion {
        expected_seconds: expected,
        compile_seconds: cost.seconds * best.len() as f64,
        graph_mib: cost.mib * best.len() as f64,
        adaptive_seconds: adaptive(&best)?,
        baseline_given: baseline.to_vec(),
        baseline_expected_seconds: baseline_expected,
        baseline_adaptive_seconds: adaptive(&compared)?,
        baseline: compared,
        expected_gain: 1.0 - expected / baseline_expected,
        gears: best,
    })
}

/// `gears` as an engine has them whose largest batch is `largest`, descending. Without
/// that graph larger counts would each be a gear of its own, which costs nothing here.
fn with_largest(gears: &[u32], largest: u32) -> Vec<u32> {
    let mut gears: Vec<u32> = gears.iter().copied().filter(|&g| g < largest).collect();
    gears.push(largest);
    gears.sort_unstable_by(|a, b| b.cmp(a));
    gears.dedup();
    gears
}

/// Rows of all steps together when `count` sequences run in `gear(count)`.
fn rows(steps: &[u64], gear: impl Fn(u32) -> u32) -> f64 {
    (0..)
        .zip(steps)
        .map(|(count, &steps)| steps as f64 * f64::from(gear(count)))
        .sum()
}

/// The best at most `most` gears up to `largest`, largest first.
fn partition(steps: &[u64], largest: u32, most: usize, row: f64, per_graph: f64) -> Vec<u32> {
    let largest = largest as usize;
    // sums[c]: steps with at most c sequences on the busiest rank.
    let mut sums = vec![0.0; largest + 1];
    let mut sum = 0.0;
    for (count, total) in sums.iter_mut().enumerate() {
        sum += steps.get(count).copied().unwrap_or(0) as f64;
        *total = sum;
    }
    // best[gear]: least seconds of all steps with at most `gear` sequences when
    // `gear` is the largest of the gears used; one row per number of gears.
    let mut best: Vec<f64> = (0..=largest)
        .map(|gear| sums[gear] * gear as f64 * row + per_graph)
        .collect();
    let mut before: Vec<Vec<usize>> = vec![vec![0; largest + 1]];
    let mut chosen = (best[largest], 0);
    for used in 1..most.min(largest) {
        let mut next = vec![f64::INFINITY; largest + 1];
        let mut from = vec![0; largest + 1];
        for gear in used + 1..=largest {
            for lower in used..gear {
                let steps = sums[gear] - sums[lower];
                let seconds = best[lower] + steps * gear as f64 * row + per_graph;
                if seconds < next[gear] {
                    (next[gear], from[gear]) = (seconds, lower);
                }
            }
        }
        best = next;
        before.push(from);
        if best[largest] < chosen.0 {
            chosen = (best[largest], used);
        }
    }
    let mut gears = vec![largest as u32];
    let mut gear = largest;
    for used in (1..=chosen.1).rev() {
        gear = before[used][gear];
        gears.push(gear as u32);
    }
    gears
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All subsets of 1..largest, with `largest`.
    fn exhaustive(steps: &[u64], largest: u32, most: usize, per_graph: f64) -> f64 {
        let time = |subset: u32| {
            let has = |gear: u32| gear == largest || subset >> (gear - 1) & 1 == 1;
            let gear = |count: u32| (count.max(1)..=largest).find(|&gear| has(gear)).unwrap();
            let graphs = (1..=largest).filter(|&gear| has(gear)).count();
            let seconds = rows(steps, gear) + per_graph * graphs as f64;
            (graphs <= most).then_some(seconds)
        };
        (0..1u32 << (largest - 1))
            .filter_map(time)
            .fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn the_partition_is_the_best_of_all() {
        for (seed, most, per_graph) in [(1u64, 1, 0.0), (2, 3, 0.0), (3, 4, 0.0), (4, 6, 900.0)] {
            let steps: Vec<u64> = (0..13)
                .map(|i| (seed * 7919 + i * i * 104_729) % 1000)
                .collect();
            let gears = partition(&steps, 12, most, 1.0, per_graph);
            assert!(gears.len() <= most && gears[0] == 12);
            let gear = |count| gears.iter().copied().filter(|&g| g >= count).min().unwrap();
            let seconds = rows(&steps, gear) + per_graph * gears.len() as f64;
            assert!((seconds - exhaustive(&steps, 12, most, per_graph)).abs() < 1e-6);
        }
    }

    #[test]
    fn a_price_per_graph_makes_them_fewer() {
        let steps = [0, 10, 10, 10, 10, 10, 10, 10, 10];
        assert_eq!(partition(&steps, 8, 8, 1.0, 0.0).len(), 8);
        assert!(partition(&steps, 8, 8, 1.0, 50.0).len() < 4);
    }
}
