//! Contract of the cost model: it never chooses what CANN lacks or what rows do not allow, its
//! choice is the least of all predictions, more runs never cost less, and the choice changes where
//! the published figures say that it must.

mod support;

use proptest::prelude::*;
use seqshift::kv::cost::{
    COPY_NS, DIRECT_BYTES, Job, KERNEL_NS, Means, Reason, Strategy as Way, choose, nanos,
};
use support::runner;

const ALL: Means = Means {
    strided: true,
    kernels: true,
    direct: true,
};

/// Blocks of one length, scattered in so many runs.
fn scattered(blocks: u64, length: u64, runs: u64) -> Job {
    Job {
        bytes: blocks * length,
        runs,
        singles: runs,
        spaced: 0,
        rows: 0,
        unit: length,
    }
}

fn jobs() -> impl Strategy<Value = (Job, Means)> {
    let job = (
        1_u64..5000,
        1_u64..(4 << 20),
        0_u64..200,
        0_u64..1000,
        1_u64..5000,
    );
    let means = (any::<bool>(), any::<bool>(), any::<bool>());
    (job, means).prop_map(|((singles, unit, spaced, rows, blocks), means)| {
        let rows = rows.max(4 * spaced) * spaced.min(1);
        let job = Job {
            bytes: blocks * unit,
            runs: singles + rows,
            singles,
            spaced,
            rows,
            unit,
        };
        let (strided, kernels, direct) = means;
        (
            job,
            Means {
                strided,
                kernels,
                direct,
            },
        )
    })
}

#[test]
fn the_choice_is_possible_and_the_least() {
    let run = |(job, means): (Job, Means)| {
        let choice = choose(&job, means);
        prop_assert_eq!(nanos(choice.strategy, &job, means), Some(choice.nanos));
        for other in Way::ALL {
            if let Some(nanos) = nanos(other, &job, means) {
                prop_assert!(choice.nanos <= nanos, "{other} takes less than {choice:?}");
            }
        }
        match choice.strategy {
            Way::Copies => {}
            Way::Strided => prop_assert!(means.strided && job.spaced > 0),
            Way::Kernels => prop_assert!(means.kernels && job.unit % 32 == 0),
            Way::Direct => prop_assert!(means.direct && job.runs == 1),
        }
        let worse = Job {
            runs: job.runs + 1,
            singles: job.singles + 1,
            ..job
        };
        let staged = Means {
            direct: false,
            ..means
        };
        prop_assert!(choose(&worse, staged).nanos >= choose(&job, staged).nanos);
        Ok(())
    };
    runner(2000)
        .run(&jobs(), run)
        .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_kernel_pays_from_the_number_of_runs_on_that_its_launch_takes() {
    let staged = Means {
        direct: false,
        ..ALL
    };
    let least = (KERNEL_NS + COPY_NS).div_ceil(COPY_NS);
    for runs in 1..200 {
        let choice = choose(&scattered(200, 32 << 10, runs), staged);
        let expected = if runs > least {
            Way::Kernels
        } else {
            Way::Copies
        };
        // Near the break-even point bandwidth decides.
        if runs.abs_diff(least) > 3 {
            assert_eq!(choice.strategy, expected, "{runs} runs");
        }
    }
}

#[test]
fn without_kernels_evenly_spaced_blocks_are_strided_and_the_rest_copied() {
    let spaced = Job {
        spaced: 1,
        rows: 200,
        singles: 0,
        ..scattered(200, 32 << 10, 200)
    };
    let none = Means {
        kernels: false,
        ..ALL
    };
    let choice = choose(&spaced, none);
    assert_eq!(
        (choice.strategy, choice.reason),
        (Way::Strided, Reason::Cheapest)
    );
    let choice = choose(&scattered(200, 32 << 10, 200), none);
    assert_eq!(
        (choice.strategy, choice.reason),
        (Way::Copies, Reason::OnlyWay)
    );
}

#[test]
fn rows_that_an_ai_core_cannot_address_are_not_given_to_kernels() {
    for (length, expected) in [(1000, Way::Copies), (1024, Way::Kernels)] {
        assert_eq!(
            choose(&scattered(200, length, 200), ALL).strategy,
            expected,
            "{length}"
        );
    }
}

#[test]
fn one_long_run_is_not_copied_at_all() {
    let choice = choose(&scattered(64, DIRECT_BYTES / 64, 1), ALL);
    assert_eq!(
        (choice.strategy, choice.reason),
        (Way::Direct, Reason::OneLongRun)
    );
    assert_eq!(choice.nanos, 0);
    let short = choose(&scattered(1, DIRECT_BYTES - 64, 1), ALL);
    assert_ne!(short.strategy, Way::Direct);
}

#[test]
fn names_are_read_back_and_others_refused() {
    for one in Way::ALL {
        assert_eq!(one.name().parse(), Ok(one));
    }
    let error = "kernel".parse::<Way>().expect_err("no such strategy");
    assert!(
        error.to_string().starts_with("\"kernel\" is no strategy"),
        "{error}"
    );
}
