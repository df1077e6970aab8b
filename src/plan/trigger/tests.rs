//! When the trigger asks for a check, and when it does not.

use super::*;
use crate::plan::{Measured, counts};

fn adaptive() -> Trigger {
    Trigger::new(Mode::Adaptive, 1000, Gears::new(&[16, 8, 4]).unwrap(), 16)
}

fn shared(fixed_seconds: f64) -> Shared {
    Shared::merge(&[Measured {
        step_seconds: vec![(16, 0.04), (8, 0.02)],
        fixed_seconds: Some(fixed_seconds),
        seconds_per_block: Some(0.001),
        blocks_per_sequence: 10.0,
        longest_remaining: Some(2000),
    }])
}

#[test]
fn interval_is_an_interval() {
    let mut trigger = Trigger::new(Mode::Interval, 100, Gears::new(&[4]).unwrap(), 4);
    let group = counts(&[4, 0]);
    let mut checks = Vec::new();
    for step in 1..=350 {
        if trigger.observe(step, &group) == Some(Cause::Interval) {
            checks.push(step);
            trigger.checked(step, Outcome::Nothing, None);
        }
    }
    assert_eq!(checks, [100, 200, 300]);
}

#[test]
fn adaptive_makes_the_checks_of_interval_too() {
    let mut trigger = Trigger::new(Mode::Adaptive, 100, Gears::new(&[8]).unwrap(), 8);
    // One rank waits for KV blocks, which counts do not show.
    let mut group = counts(&[4, 4]);
    group[0].waiting = 2;
    let mut checks = Vec::new();
    for step in 1..=450 {
        if let Some(cause) = trigger.observe(step, &group) {
            checks.push((step, cause));
            trigger.checked(step, Outcome::Blocked, Some(shared(0.1)));
        }
    }
    let [(FIRST_INTERVAL, Cause::Unmeasured), grid @ ..] = &checks[..] else {
        panic!("{checks:?}");
    };
    assert_eq!(grid, [100, 200, 300, 400].map(|at| (at, Cause::Interval)));
}

#[test]
fn above_the_largest_gear_it_checks_when_the_cost_has_been_lost() {
    let mut trigger = Trigger::new(Mode::Adaptive, 1000, Gears::new(&[4]).unwrap(), 64);
    trigger.checked(1, Outcome::Moved, Some(shared(0.095)));
    // A row takes 2.5 ms, 4 rows too many are 10 ms; the cost is 0.095 + 4 x 10 x 0.001 s.
    let group = counts(&[24, 16]);
    let first = (10..).find_map(|step| trigger.observe(step, &group).map(|c| (step, c)));
    assert_eq!(first, Some((24, Cause::LowerGear)));
}

#[test]
fn unmeasured_it_checks_soon() {
    let mut trigger = adaptive();
    let group = counts(&[12, 2]);
    let first = (1..).find_map(|step| trigger.observe(step, &group).map(|c| (step, c)));
    assert_eq!(first, Some((FIRST_INTERVAL, Cause::Unmeasured)));
}

#[test]
fn it_acts_in_the_step_in_which_a_lower_gear_is_reachable() {
    let mut trigger = adaptive();
    trigger.checked(1, Outcome::Nothing, Some(shared(0.1)));
    trigger.not_before = 0;
    assert_eq!(trigger.observe(10, &counts(&[12, 5])), None);
    assert_eq!(
        trigger.observe(11, &counts(&[12, 4])),
        Some(Cause::LowerGear)
    );
    trigger.checked(11, Outcome::Moved, None);
    assert_eq!(trigger.observe(40, &counts(&[8, 8])), None);
}

#[test]
fn a_move_that_does_not_pay_is_not_made() {
    let mut trigger = adaptive();
    trigger.checked(1, Outcome::Moved, Some(shared(30.0)));
    assert_eq!(trigger.observe(10, &counts(&[12, 4])), None);
    trigger.checked(10, Outcome::Moved, Some(shared(20.0)));
    assert_eq!(
        trigger.observe(20, &counts(&[12, 4])),
        Some(Cause::LowerGear)
    );
}

#[test]
fn a_group_that_comes_down_by_itself_is_left_alone() {
    let mut trigger = adaptive();
    trigger.checked(1, Outcome::Moved, Some(shared(2.0)));
    // Both ranks lose a tenth of their sequences per step.
    assert_eq!(trigger.observe(5, &counts(&[16, 16])), None);
    assert_eq!(trigger.observe(6, &counts(&[14, 14])), None);
    assert_eq!(trigger.observe(7, &counts(&[12, 4])), None);
}

#[test]
fn blocked_it_backs_off_until_a_lower_gear_comes_up() {
    let mut trigger = adaptive();
    trigger.checked(1, Outcome::Moved, Some(shared(0.1)));
    let mut checks = Vec::new();
    let group = counts(&[12, 2]);
    for step in 5..400 {
        if trigger.observe(step, &group).is_some() {
            checks.push(step);
            trigger.checked(step, Outcome::Blocked, None);
            assert!(trigger.next_due(step) > Some(step));
        }
    }
    assert_eq!(checks, [5, 37, 101, 229]);
    // A lower gear than the blocked one does not wait for the back-off.
    assert_eq!(trigger.observe(400, &counts(&[9, 0])), None);
    assert_eq!(
        trigger.observe(401, &counts(&[8, 0])),
        Some(Cause::LowerGear)
    );
}

#[test]
fn waiting_requests_get_a_check_when_enough_is_lost() {
    let mut trigger = adaptive();
    trigger.checked(1, Outcome::Moved, Some(shared(0.1)));
    let mut group = counts(&[16, 15]);
    group[0].waiting = 3;
    let first = (6..).find_map(|step| trigger.observe(step, &group).map(|c| (step, c)));
    assert_eq!(first, Some((6 + WASTED_STEPS * 32, Cause::Waiting)));
}
