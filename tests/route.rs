//! The router agrees with a plain model of its contract, whatever the order of calls.

use std::collections::BTreeMap;

use proptest::prelude::*;
use seqshift::route::{PolicyOptions, Reason, Request, RouteError, Router, RouterConfig};

const SERVERS: [&str; 4] = ["s0", "s1", "s2", "s3"];

#[derive(Debug, Clone)]
enum Step {
    Acquire(u8),
    /// Releases the nth request of those that were ever acquired and not released.
    Release(usize),
    /// Releases something that is not in flight.
    Surplus(usize, u8),
    Add(usize),
    Remove(usize),
    Clear,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u8..6).prop_map(Step::Acquire),
        5 => any::<usize>().prop_map(Step::Release),
        1 => (0usize..4, 6u8..9).prop_map(|(server, id)| Step::Surplus(server, id)),
        1 => (0usize..4).prop_map(Step::Add),
        1 => (0usize..4).prop_map(Step::Remove),
        1 => Just(Step::Clear),
    ];
    prop::collection::vec(step, 1..300)
}

#[derive(Debug, Default)]
struct Model {
    /// Life and load of each server in the pool.
    pool: BTreeMap<&'static str, (u64, u64)>,
    pins: BTreeMap<u8, (&'static str, u64)>,
    /// Conversation, server and life of the server, in order of acquisition.
    flying: Vec<(u8, &'static str, u64)>,
    lives: u64,
}

impl Model {
    fn add(&mut self, id: &'static str) -> bool {
        self.lives += 1;
        let lives = self.lives;
        let absent = !self.pool.contains_key(id);
        self.pool.entry(id).or_insert((lives, 0));
        absent
    }

    /// The reason and the servers that are right for the next turn.
    fn expect(&self, conversation: u8, margin: Option<f64>) -> (Reason, Vec<&'static str>) {
        let min = self.pool.values().map(|(_, load)| *load).min().unwrap_or(0);
        let least = || {
            let equal = self.pool.iter().filter(|(_, (_, load))| *load == min);
            equal.map(|(id, _)| *id).collect()
        };
        let Some((id, life)) = self.pins.get(&conversation) else {
            return (Reason::New, least());
        };
        match self.pool.get(id) {
            Some((present, load)) if present == life => {
                if margin.is_none_or(|m| *load as f64 <= min as f64 + m) {
                    (Reason::Kept, vec![id])
                } else {
                    (Reason::Broken, least())
                }
            }
            _ => (Reason::ServerGone, least()),
        }
    }

    fn acquired(&mut self, conversation: u8, id: &'static str) {
        let (life, load) = self.pool.get_mut(id).expect("in the pool");
        *load += 1;
        self.pins.insert(conversation, (id, *life));
        self.flying.push((conversation, id, *life));
    }

    /// The oldest request of the conversation on the server comes back.
    fn released(&mut self, conversation: u8, id: &str) {
        let Some(place) = self
            .flying
            .iter()
            .position(|(c, s, _)| *c == conversation && *s == id)
        else {
            return;
        };
        let (_, _, life) = self.flying.remove(place);
        if let Some((present, load)) = self.pool.get_mut(id)
            && *present == life
        {
            *load -= 1;
        }
    }
}

fn check(steps: Vec<Step>, margin: Option<f64>, seed: u64) -> Result<(), TestCaseError> {
    let options = PolicyOptions {
        affinity_break_margin: margin,
        ..Default::default()
    };
    let policy = options.build("margin").expect("valid");
    let mut router = Router::new(
        SERVERS,
        RouterConfig {
            policy,
            seed,
            ..Default::default()
        },
    );
    let mut model = Model::default();
    SERVERS.iter().for_each(|id| assert!(model.add(id)));
    for step in steps {
        match step {
            Step::Acquire(conversation) => {
                let name = format!("conversation-{conversation}");
                let decision = router.acquire(Request::new(&name));
                if model.pool.is_empty() {
                    prop_assert_eq!(decision, Err(RouteError::NoServers));
                    continue;
                }
                let decision = decision.expect("there are servers");
                let (reason, candidates) = model.expect(conversation, margin);
                prop_assert_eq!(decision.reason, reason);
                let chosen = router.server_id(decision.slot);
                let chosen = candidates.iter().find(|id| **id == chosen);
                prop_assert!(chosen.is_some(), "{:?} not in {:?}", decision, candidates);
                model.acquired(conversation, chosen.expect("checked"));
            }
            Step::Release(nth) if !model.flying.is_empty() => {
                let (conversation, id, _) = model.flying[nth % model.flying.len()];
                router.release(id, Some(&format!("conversation-{conversation}")));
                model.released(conversation, id);
            }
            Step::Release(nth) => router.release(SERVERS[nth % SERVERS.len()], Some("nobody")),
            Step::Surplus(server, id) => {
                router.release(SERVERS[server], Some(&format!("conversation-{id}")));
            }
            Step::Add(server) => {
                prop_assert_eq!(
                    router.add_server(SERVERS[server]),
                    model.add(SERVERS[server])
                );
            }
            Step::Remove(server) => {
                let present = model.pool.remove(SERVERS[server]).is_some();
                prop_assert_eq!(router.remove_server(SERVERS[server]), present);
            }
            Step::Clear => {
                prop_assert_eq!(router.clear_pins(), model.pins.len());
                model.pins.clear();
            }
        }
        for id in SERVERS {
            prop_assert_eq!(
                router.inflight(id),
                model.pool.get(id).map(|(_, load)| *load)
            );
        }
        prop_assert_eq!(router.pinned(), model.pins.len());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn pins_that_never_break(steps in steps(), seed in any::<u64>()) {
        check(steps, None, seed)?;
    }

    #[test]
    fn pins_that_break_by_margin(steps in steps(), seed in any::<u64>(), margin in 0u8..3) {
        check(steps, Some(f64::from(margin)), seed)?;
    }

    /// Without ids counts can be wrong about which request came back, never about how many.
    #[test]
    fn anonymous_releases_settle_exactly(turns in prop::collection::vec(0u8..6, 1..60)) {
        let mut router = Router::new(SERVERS, RouterConfig::default());
        let mut flying = Vec::new();
        for turn in &turns {
            let decision = router.acquire(Request::new(&turn.to_string())).expect("servers");
            flying.push(router.server_id(decision.slot).to_owned());
        }
        for (left, id) in flying.iter().enumerate().map(|(i, id)| (flying.len() - i - 1, id)) {
            router.release(id, None);
            prop_assert_eq!(router.total_inflight(), left as u64);
        }
    }
}

#[test]
fn options_are_refused_by_name() {
    for (options, name, text) in [
        (
            PolicyOptions {
                affinity_break_margin: Some(-1.0),
                ..Default::default()
            },
            "margin",
            "affinity_break_margin=-1",
        ),
        (
            PolicyOptions {
                balance_abs_threshold: f64::NAN,
                ..Default::default()
            },
            "dual_threshold",
            "balance_abs_threshold=NaN",
        ),
        (PolicyOptions::default(), "fastest", "policy=fastest"),
    ] {
        let error = options.build(name).expect_err("refused");
        assert!(error.to_string().contains(text), "{error}");
    }
}
