//! Time of the simulator for 1,000,000 sequences on 4096 ranks, all policies.
//! Writes `results/simulator.json`.

use std::path::Path;
use std::time::Instant;

use seqshift::sim::rollout::{Policy, compare, deepseek_v3, preset};
use serde_json::json;

/// Seconds that it may take on two idle cores.
const LIMIT: f64 = 30.0;

fn main() -> std::io::Result<()> {
    let mut setup = deepseek_v3().setup;
    setup.ranks = 4096;
    setup.prompts = 62_500;
    setup.lengths = preset("longtail_32k").expect("a preset");
    let start = Instant::now();
    let found = compare(&setup, &Policy::ALL).expect("the setup is valid");
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "simulate/dp4096/{}: {seconds:.1} s for {} policies (limit {LIMIT} s)",
        found.sequences,
        Policy::ALL.len()
    );
    let result =
        json!({ "sequences": found.sequences, "seconds": seconds, "limit_seconds": LIMIT });
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("simulator.json"), format!("{result:#}\n"))
}
