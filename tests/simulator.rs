//! The rollout simulator: it is right where the answer can be worked out, keeps to
//! its order of policies, and the trigger loses next to nothing.

use seqshift::plan::Gears;
use seqshift::sim::rollout::{
    Comparison, GearCost, Lengths, PRESETS, Policy, Setup, compare, deepseek_v3, preset,
    qwen3_235b, simulate, suggest_gears,
};

/// Two ranks with four sequences each; a step takes as many seconds as its gear.
fn small(lengths: Vec<u32>) -> Setup {
    let mut setup = deepseek_v3().setup;
    setup.ranks = 2;
    setup.prompts = 8;
    setup.samples_per_prompt = 1;
    setup.prompt_correlation = 0.0;
    setup.max_num_seqs = 4;
    setup.gears = vec![4, 2, 1];
    setup.lengths = Lengths::Observed(lengths);
    setup.step.fixed_seconds = 0.0;
    setup.step.seconds_per_row = 1.0;
    setup.step.seconds_per_kv_token = 0.0;
    setup.step.seconds_per_prefill_token = 0.0;
    setup
}

fn seconds(comparison: &Comparison, policy: Policy) -> f64 {
    let found = comparison
        .policies
        .iter()
        .find(|result| result.policy == policy);
    found.expect("the policy was asked for").wall_seconds
}

#[test]
fn equal_lengths_leave_nothing_to_gain() {
    let setup = small(vec![100]);
    for policy in Policy::ALL {
        let run = simulate(&setup, policy).unwrap();
        assert_eq!((run.steps, run.tokens), (100, 800));
        assert!(
            (run.wall_seconds - run.pause_seconds - 400.0).abs() < 1e-9,
            "{policy:?}"
        );
    }
}

#[test]
fn prefill_and_kv_take_their_time() {
    let mut setup = small(vec![1]);
    setup.prompt_tokens = 100;
    setup.step.seconds_per_prefill_token = 0.01;
    setup.step.seconds_per_kv_token = 0.001;
    let run = simulate(&setup, Policy::Gears).unwrap();
    // Four prompts of 100 tokens on each rank: 4 s of prefill, a row each, 0.4 s of KV.
    assert!((run.wall_seconds - 8.4).abs() < 1e-9);
}

#[test]
fn waves_follow_from_the_slots() {
    let mut setup = small(vec![10]);
    setup.prompts = 24;
    let run = simulate(&setup, Policy::Gears).unwrap();
    assert_eq!(run.steps, 30);
}

#[test]
fn too_little_kv_preempts_and_still_finishes() {
    let mut setup = small(vec![1000]);
    setup.prompt_tokens = 24;
    setup.block_tokens = 8;
    setup.kv_capacity_tokens = Some(2500);
    let run = simulate(&setup, Policy::Gears).unwrap();
    assert!(run.preemptions > 0);
    assert_eq!(run.tokens, 8000);
    assert!(run.steps > 1000);
    setup.kv_capacity_tokens = Some(1000);
    let error = simulate(&setup, Policy::Gears).unwrap_err().to_string();
    assert!(error.contains("kv_capacity_tokens = 1000"), "{error}");
}

#[test]
fn the_same_seed_gives_the_same_rollout() {
    let setup = deepseek_v3().setup;
    let run = |seed| {
        simulate(
            &Setup {
                seed,
                ..setup.clone()
            },
            Policy::Adaptive,
        )
        .unwrap()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).wall_seconds, run(2).wall_seconds);
}

/// Both published groups, the three length presets, several seeds.
fn workloads() -> impl Iterator<Item = (String, Setup)> {
    let groups = [deepseek_v3(), qwen3_235b()];
    groups.into_iter().flat_map(|group| {
        PRESETS.into_iter().flat_map(move |name| {
            let setup = group.setup.clone();
            (1..=5).map(move |seed| {
                let lengths = preset(name).expect("a preset");
                let label = format!("{} {name} seed {seed}", group.name);
                (
                    label,
                    Setup {
                        lengths,
                        seed,
                        ..setup.clone()
                    },
                )
            })
        })
    })
}

#[test]
fn the_adaptive_trigger_is_within_one_percent_of_the_oracle() {
    for (label, setup) in workloads() {
        let found = compare(&setup, &[Policy::Interval, Policy::Adaptive]).unwrap();
        let [interval, adaptive] = &found.policies[..] else {
            panic!("two policies");
        };
        let lead = 1.0 - adaptive.wall_seconds / interval.wall_seconds;
        println!(
            "{label}: adaptive {:+.2} % above the oracle, {:+.1} % above the bound, \
             {:.1} % below interval",
            adaptive.gap_to_oracle * 100.0,
            adaptive.gap_to_bound * 100.0,
            lead * 100.0
        );
        assert!(adaptive.gap_to_oracle < 0.01, "{label}");
        assert!(lead > -0.005, "{label}");
        // The oracle is no better than it may be.
        assert!(
            found.bound_holds && found.oracle_seconds >= found.bound_seconds,
            "{label}"
        );
    }
}

/// Where KV takes no time, the oracle's perfect gears are all that there is to gain.
#[test]
fn the_oracle_has_perfect_gears() {
    for (label, mut setup) in workloads() {
        setup.step.seconds_per_kv_token = 0.0;
        let found = compare(&setup, &[]).unwrap();
        let gap = found.oracle_seconds / found.bound_seconds - 1.0;
        println!("{label}: {:.3} %", gap * 100.0);
        assert!(gap.abs() < 0.001, "{label}");
    }
}

#[test]
fn every_policy_is_at_least_as_good_as_doing_less() {
    for (label, setup) in workloads() {
        let found = compare(&setup, &Policy::ALL).unwrap();
        let order = [
            Policy::Static,
            Policy::Gears,
            Policy::Interval,
            Policy::Oracle,
            Policy::Bound,
        ];
        for pair in order.windows(2) {
            let (more, less) = (seconds(&found, pair[0]), seconds(&found, pair[1]));
            assert!(less <= more * 1.001, "{label}: {pair:?}: {more} {less}");
        }
        assert!(
            found
                .policies
                .iter()
                .all(|result| result.gap_to_bound > -1e-9),
            "{label}"
        );
    }
}

#[test]
fn the_published_rollouts_are_predicted_within_fifteen_percent() {
    for published in [deepseek_v3(), qwen3_235b()] {
        let found = compare(&published.setup, &[Policy::Static, Policy::Published]).unwrap();
        let without = seconds(&found, Policy::Static) / published.without_seconds - 1.0;
        let with = seconds(&found, Policy::Published) / published.with_seconds - 1.0;
        println!(
            "{}: {:+.1} % and {:+.1} %",
            published.name,
            without * 100.0,
            with * 100.0
        );
        assert!(without.abs() < 0.15 && with.abs() < 0.15);
    }
}

#[test]
fn suggested_gears_are_better_than_the_usual_ones() {
    let setup = deepseek_v3().setup;
    let usual = [64, 32, 16, 8, 4];
    let found = suggest_gears(&setup, 5, GearCost::default(), &usual).unwrap();
    assert_eq!((found.gears.len(), found.gears[0]), (5, 64));
    assert!(found.expected_seconds < found.baseline_expected_seconds);
    assert!(found.adaptive_seconds < found.baseline_adaptive_seconds);
    let dear = GearCost {
        seconds: 1e6,
        ..GearCost::default()
    };
    assert_eq!(suggest_gears(&setup, 5, dear, &usual).unwrap().gears, [64]);
    let small = GearCost {
        mib: 300.0,
        budget_mib: Some(700.0),
        ..GearCost::default()
    };
    assert_eq!(
        suggest_gears(&setup, 5, small, &usual).unwrap().gears.len(),
        2
    );
    assert!(suggest_gears(&setup, 0, GearCost::default(), &usual).is_err());
}

/// As many graphs as the baseline are never worse than it, and its graphs are all paid for.
#[test]
fn suggested_gears_are_compared_with_the_same_largest_graph() {
    let mut setup = deepseek_v3().setup;
    (setup.ranks, setup.prompts, setup.samples_per_prompt) = (8, 128, 8);
    setup.max_num_seqs = 128;
    let usual = [64, 32, 16, 8, 4];
    let six = suggest_gears(&setup, 6, GearCost::default(), &usual).unwrap();
    assert_eq!(six.baseline_given, usual);
    assert_eq!(six.baseline, [128, 64, 32, 16, 8, 4]);
    assert!(six.expected_gain > 0.0);
    assert!(six.expected_seconds < six.baseline_expected_seconds);
    let dear = GearCost {
        seconds: 10.0,
        ..GearCost::default()
    };
    let paid = suggest_gears(&setup, 6, dear, &usual).unwrap();
    let price = paid.baseline_expected_seconds - six.baseline_expected_seconds;
    assert!((price - 60.0).abs() < 1e-6, "{price}");
    // One graph of 128 rows for everything is no gain, and says so.
    let one = suggest_gears(&setup, 1, GearCost::default(), &usual).unwrap();
    assert_eq!(one.gears, [128]);
    assert!(one.expected_gain < 0.0);
    setup.max_num_seqs = 16;
    let few = suggest_gears(&setup, 3, GearCost::default(), &usual).unwrap();
    assert_eq!(few.baseline, [16, 8, 4]);
}

/// Many more requests than slots, in prompts whose responses are alike.
#[test]
fn with_waiting_requests_the_adaptive_trigger_does_not_lose_either() {
    for seed in 1..=3 {
        let mut setup = deepseek_v3().setup;
        setup.lengths = preset("longtail_32k").expect("a preset");
        (setup.ranks, setup.prompts, setup.seed) = (64, 1000, seed);
        let found = compare(&setup, &[Policy::Interval, Policy::Adaptive]).unwrap();
        let adaptive = seconds(&found, Policy::Adaptive);
        let interval = seconds(&found, Policy::Interval);
        println!("seed {seed}: interval {interval:.0} s, adaptive {adaptive:.0} s");
        assert!(adaptive <= interval * 1.005);
    }
}

/// How much longer `adaptive` takes than `interval`, as a fraction.
fn behind(setup: &Setup, seed: u64) -> f64 {
    let setup = Setup {
        seed,
        ..setup.clone()
    };
    let seconds = |policy| simulate(&setup, policy).unwrap().wall_seconds;
    seconds(Policy::Adaptive) / seconds(Policy::Interval) - 1.0
}

/// The mean over seeds. Which rank is left with the longest sequences, and who is
/// preempted, is luck: a single rollout may come out some percent either way.
fn mean_behind(setup: &Setup, seeds: std::ops::RangeInclusive<u64>) -> f64 {
    let count = seeds.clone().count() as f64;
    seeds.map(|seed| behind(setup, seed)).sum::<f64>() / count
}

/// A small set-up: gears few and many, queues, check intervals; KV that takes no time
/// and is not limited.
fn drawn(seed: u64) -> Setup {
    let mut state = seed;
    let mut next = |choices: usize| {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % choices as u64) as usize
    };
    let mut setup = [deepseek_v3(), qwen3_235b()][next(2)].setup.clone();
    setup.step.seconds_per_kv_token = 0.0;
    setup.lengths = preset(PRESETS[next(3)]).expect("a preset");
    setup.ranks = [2, 4, 8, 16][next(4)];
    setup.samples_per_prompt = [1, 4, 16][next(3)];
    setup.max_num_seqs = [8, 16, 64][next(3)];
    // From half of the slots to twice as many requests as slots.
    let sequences = setup.ranks * setup.max_num_seqs * [1, 2, 4][next(3)] / 2;
    setup.prompts = (sequences / setup.samples_per_prompt).max(1);
    let many = [64, 56, 48, 40, 32, 28, 24, 20, 16, 12, 8, 4, 2, 1];
    let gears: [&[u32]; 6] = [&[64, 32, 16, 8, 4], &[16, 8, 4], &[4], &[], &[64], &many];
    setup.gears = gears[next(6)].to_vec();
    setup.check_interval = [50, 200, 1000][next(3)];
    setup.prompt_correlation = [0.0, 0.5, 0.9][next(3)];
    setup
}

/// Most by which `adaptive` may be slower than `interval`.
const BEHIND: f64 = 0.005;

#[test]
fn little_kv_and_counts_above_the_gears_do_not_starve_the_adaptive_trigger() {
    let deepseek = deepseek_v3().setup;
    let mut cases = Vec::new();
    for (tokens, seeds) in [(200_000, 1..=16), (150_000, 1..=8)] {
        let kv_capacity_tokens = Some(tokens);
        let setup = Setup {
            kv_capacity_tokens,
            ..deepseek.clone()
        };
        cases.push((format!("DP128, {tokens} KV tokens"), setup, seeds));
    }
    let mut setup = deepseek.clone();
    (setup.ranks, setup.prompts, setup.max_num_seqs) = (16, 16, 16);
    setup.kv_capacity_tokens = Some(34_000);
    cases.push(("DP16, 34000 KV tokens".to_owned(), setup, 1..=32));
    let mut setup = deepseek.clone();
    (setup.ranks, setup.prompts, setup.samples_per_prompt) = (8, 128, 4);
    (setup.gears, setup.check_interval) = (vec![4], 200);
    cases.push(("DP8, gear 4".to_owned(), setup, 1..=32));
    let mut setup = deepseek;
    (setup.ranks, setup.prompts, setup.samples_per_prompt) = (16, 1024, 1);
    setup.gears = vec![16, 8, 4];
    cases.push(("DP16, gears to 16".to_owned(), setup.clone(), 1..=32));
    let qwen = qwen3_235b().setup;
    (setup.step, setup.transfer) = (qwen.step, qwen.transfer);
    (setup.max_num_seqs, setup.check_interval) = (64, 200);
    cases.push(("Qwen DP16, gears to 16".to_owned(), setup, 476..=507));
    for (label, setup, seeds) in cases {
        let mean = mean_behind(&setup, seeds.clone());
        println!("{label}, seeds {seeds:?}: {:+.2} %", mean * 100.0);
        assert!(mean <= BEHIND, "{label}");
    }
}

/// Without luck in KV every single rollout keeps the promise.
#[test]
fn adaptive_is_never_behind_interval() {
    let mut worst = (f64::MIN, 0);
    for seed in 1..=200 {
        let setup = drawn(seed);
        let found = behind(&setup, seed);
        assert!(found <= BEHIND, "seed {seed}: {found} with {setup:?}");
        if found > worst.0 {
            worst = (found, seed);
        }
    }
    println!("worst {:+.3} % with seed {}", worst.0 * 100.0, worst.1);
}

/// Seconds of a rollout without those for reading KV, and for prefill: what a trigger
/// decides.
fn seconds_in_gears(setup: &Setup, policy: Policy) -> (f64, f64) {
    let gears = Gears::new(&setup.gears).unwrap();
    let run = simulate(setup, policy).unwrap();
    let steps = (0..).zip(&run.steps_by_busiest);
    let seconds = steps.map(|(busiest, &steps)| {
        let gear = gears.gear_of(busiest);
        steps as f64 * setup.step.seconds(gear, 0.0)
    });
    (seconds.sum::<f64>() + run.pause_seconds, run.wall_seconds)
}

/// With KV that takes time, and a slot for every sequence, every single rollout still
/// keeps the promise in what the trigger decides: time in gears, checks and moves. What
/// is left is luck: with which other sequences the longest ones share a rank.
#[test]
fn in_gears_adaptive_is_never_behind_interval() {
    let (mut rollouts, mut worst) = (0, f64::MIN);
    let (mut behind, mut ahead) = (0, 0);
    for seed in 1..=200 {
        let mut setup = drawn(seed);
        setup.step.seconds_per_kv_token = deepseek_v3().setup.step.seconds_per_kv_token;
        if !setup.bound_holds() {
            continue;
        }
        for seed in 101..=108 {
            setup.seed = seed;
            let interval = seconds_in_gears(&setup, Policy::Interval);
            let adaptive = seconds_in_gears(&setup, Policy::Adaptive);
            let found = adaptive.0 / interval.0 - 1.0;
            assert!(found <= BEHIND, "seed {seed}: {found} with {setup:?}");
            worst = worst.max(found);
            rollouts += 1;
            let all = adaptive.1 / interval.1 - 1.0;
            behind += usize::from(all > BEHIND);
            ahead += usize::from(all < -BEHIND);
        }
    }
    println!(
        "in gears at worst {:+.2} %; of {rollouts} rollouts {behind} are more than 0.5 % \
         behind with their KV, {ahead} ahead",
        worst * 100.0
    );
    assert!(rollouts >= 1000 && behind * 5 < ahead);
}

/// With luck in KV the mean does, over so many seeds that the luck of single ones is small
/// beside the promise: of 24, one mean of 48 was behind by 0.7 %, over 144 others it was ahead.
#[test]
fn with_kv_adaptive_is_not_behind_interval_in_the_mean() {
    let mut worst = (f64::MIN, 0);
    for seed in 1..=48 {
        let mut setup = drawn(seed);
        setup.step.seconds_per_kv_token = deepseek_v3().setup.step.seconds_per_kv_token;
        // From little more than one sequence of the greatest length to several.
        setup.kv_capacity_tokens = [None, Some(36_000), Some(66_000)][seed as usize % 3];
        setup.ranks = setup.ranks.min(8);
        setup.prompts = setup.prompts.min(64);
        let mean = mean_behind(&setup, 1..=96);
        println!("seed {seed}: {:+.2} %", mean * 100.0);
        assert!(mean <= BEHIND, "seed {seed}: {mean} with {setup:?}");
        if mean > worst.0 {
            worst = (mean, seed);
        }
    }
    println!("worst {:+.2} % with seed {}", worst.0 * 100.0, worst.1);
}

/// Where nothing waits, nothing is faster than the bound; elsewhere it is not called one.
#[test]
fn the_bound_is_one_where_it_says_so() {
    let mut held = 0;
    for seed in 1..=100 {
        let mut setup = drawn(seed);
        setup.step.seconds_per_kv_token = 1e-7;
        let found = compare(&setup, &Policy::ALL).unwrap();
        if found.bound_holds {
            held += 1;
            for result in &found.policies {
                let gap = result.gap_to_bound;
                assert!(gap > -1e-6, "seed {seed}: {:?} {gap}", result.policy);
            }
        }
        setup.kv_capacity_tokens = Some(100_000);
        assert!(!setup.bound_holds());
    }
    println!("it held in {held} of 100");
    assert!(held > 30);
}

#[test]
fn a_large_group_is_simulated() {
    let mut setup = deepseek_v3().setup;
    setup.ranks = 4096;
    setup.prompts = 16_384;
    setup.lengths = preset("longtail_32k").expect("a preset");
    let found = compare(&setup, &[Policy::Adaptive]).unwrap();
    assert_eq!(found.sequences, 262_144);
}
