//! Cost of the router's data structures: one acquire and one release, by kind and size.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use seqshift::route::{Request, Router, RouterConfig};

const REPLICAS: usize = 128;
const IN_FLIGHT: usize = 1024;

fn loaded(conversations: usize) -> (Router, Vec<String>) {
    let servers = (0..REPLICAS).map(|i| format!("server-{i}"));
    let mut router = Router::new(servers, RouterConfig::default());
    let ids: Vec<String> = (0..conversations).map(|i| format!("{i:036}")).collect();
    for id in &ids {
        turn(&mut router, id);
    }
    for i in 0..IN_FLIGHT {
        router
            .acquire(Request::new(&format!("background-{i}")))
            .expect("servers");
    }
    (router, ids)
}

fn turn(router: &mut Router, id: &str) {
    let decision = router.acquire(Request::new(id)).expect("servers");
    let server = router.server_id(decision.slot).to_owned();
    router.release(black_box(&server), Some(id));
}

fn benches(criterion: &mut Criterion) {
    for conversations in [10_000, 100_000] {
        let (mut router, ids) = loaded(conversations);
        let mut next = 0;
        criterion.bench_function(&format!("hit/{conversations}"), |bencher| {
            bencher.iter(|| {
                // A stride that visits all, far apart.
                next = (next + 7919) % ids.len();
                turn(&mut router, &ids[next]);
            });
        });
        let mut fresh = 0;
        criterion.bench_function(&format!("miss/{conversations}"), |bencher| {
            bencher.iter_batched(
                || {
                    fresh += 1;
                    format!("fresh-{fresh:030}")
                },
                |id| turn(&mut router, &id),
                BatchSize::SmallInput,
            );
        });
    }
}

criterion_group! {
    name = route;
    config = Criterion::default().measurement_time(std::time::Duration::from_secs(2));
    targets = benches
}
criterion_main!(route);
