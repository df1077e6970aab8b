//! Time of a plan, beside a plain-Python planner on the same groups.
//!
//! Prints the ratio and writes `results/planner.json`. The Python interpreter is
//! `.venv/bin/python`, else `python3`.

use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use criterion::Criterion;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use seqshift::plan::{
    Gears, Measured, Mode, Options, Outcome, Plan, RankCount, RankLoad, SequenceLoad, Shared,
    Trigger, plan,
};
use serde_json::{Value, json};

const SEED: u64 = 7;
const GEARS: [u32; 12] = [512, 256, 192, 128, 96, 80, 72, 64, 48, 32, 16, 8];

/// Ranks, sequences, the most seconds a plan may take on an idle core, and the
/// repeats of the Python planner.
const GROUPS: [(u32, u32, f64, u32); 3] = [
    (128, 8192, 60e-6, 9),
    (1024, 40_000, 1e-3, 5),
    (4096, 262_144, 10e-3, 3),
];

/// What a kind of group is like.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    /// Most blocks of a sequence.
    blocks: u32,
    /// Most free blocks of a rank: from none to this many, or always plenty.
    free: Option<u32>,
    /// Most waiting requests of a rank besides those above its slots, and most blocks
    /// of each. Without any, nothing waits.
    waiting: u32,
    prompt: u32,
    slots: u32,
}

const EQUAL: Kind = Kind {
    name: "equal",
    blocks: 1,
    free: None,
    waiting: 0,
    prompt: 1,
    slots: 512,
};
const KINDS: [Kind; 6] = [
    EQUAL,
    Kind {
        name: "different",
        blocks: 256,
        ..EQUAL
    },
    Kind {
        name: "equal, little KV",
        free: Some(24),
        ..EQUAL
    },
    Kind {
        name: "different, little KV",
        blocks: 256,
        free: Some(1500),
        ..EQUAL
    },
    Kind {
        name: "waiting",
        waiting: 12,
        slots: 96,
        ..EQUAL
    },
    Kind {
        name: "waiting, different, little KV",
        blocks: 256,
        free: Some(1500),
        waiting: 12,
        prompt: 64,
        slots: 96,
    },
];

/// Sequences on random ranks, some of which are drawn far more often than others;
/// one in twenty cannot move.
fn group(ranks: u32, sequences: u32, kind: Kind) -> Vec<RankLoad> {
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let mut below = |n: u32| ((u64::from(rng.next_u32()) * u64::from(n)) >> 32) as u32;
    let weights: Vec<u32> = (0..ranks).map(|_| 1 + below(3)).collect();
    let urn: Vec<u32> = (0..ranks)
        .flat_map(|rank| std::iter::repeat_n(rank, weights[rank as usize] as usize))
        .collect();
    let mut held = vec![Vec::new(); ranks as usize];
    for _ in 0..sequences {
        let rank = urn[below(urn.len() as u32) as usize];
        let sequence = SequenceLoad {
            kv_blocks: 1 + below(kind.blocks),
            movable: below(20) > 0,
        };
        held[rank as usize].push(sequence);
    }
    let load = |(rank, mut listed): (u32, Vec<SequenceLoad>)| {
        let above = listed.len().saturating_sub(kind.slots as usize);
        listed.truncate(kind.slots as usize);
        let waiting = above as u32 + below(kind.waiting + 1);
        let prompts = (0..waiting).map(|_| 1 + below(kind.prompt)).collect();
        RankLoad {
            free_kv_blocks: Some(kind.free.map_or(10_000, |free| below(free + 1).into())),
            waiting_kv_blocks: Some(prompts),
            max_num_seqs: Some(kind.slots),
            running: listed.len() as u32,
            sequences: Some(listed),
            ..RankLoad::counts(rank, 0, waiting)
        }
    };
    (0..).zip(held).map(load).collect()
}

fn run(loads: &[RankLoad], gears: &Gears, options: &Options) -> Plan {
    plan(loads, gears, options).expect("the group is valid")
}

/// Median seconds of 51 plans.
fn median(loads: &[RankLoad], gears: &Gears, options: &Options) -> f64 {
    let mut seconds: Vec<f64> = (0..51)
        .map(|_| {
            let start = Instant::now();
            black_box(run(black_box(loads), gears, options));
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// The same group for the Python planner.
fn as_json(loads: &[RankLoad], repeats: u32) -> Value {
    let rank = |load: &RankLoad| {
        let listed = load.sequences.as_deref().unwrap_or_default();
        json!({
            "blocks": listed.iter().map(|s| s.kv_blocks).collect::<Vec<_>>(),
            "movable": listed.iter().map(|s| s.movable).collect::<Vec<_>>(),
            "free": load.free_kv_blocks,
        })
    };
    let group: Vec<Value> = loads.iter().map(rank).collect();
    json!({ "group": group, "gears": GEARS, "slots": EQUAL.slots, "repeats": repeats })
}

/// Seconds and gear of the Python planner, for each case that it knows.
fn in_python(cases: &[Option<Value>]) -> std::io::Result<Vec<Option<Value>>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let venv = root.join(".venv/bin/python");
    let python = if venv.exists() {
        venv
    } else {
        "python3".into()
    };
    let mut child = Command::new(python)
        .arg(root.join("benches/plain_planner.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = child.stdin.take().expect("piped");
    let output = BufReader::new(child.stdout.take().expect("piped"));
    let mut answers = Vec::new();
    let mut lines = output.lines();
    for case in cases {
        let Some(case) = case else {
            answers.push(None);
            continue;
        };
        writeln!(input, "{case}")?;
        let line = lines.next().expect("one answer per group")?;
        answers.push(Some(serde_json::from_str(&line)?));
    }
    drop(input);
    child.wait()?;
    Ok(answers)
}

fn main() -> std::io::Result<()> {
    let gears = Gears::new(&GEARS).expect("the gears are valid");
    let options = Options::default();
    let mut criterion = Criterion::default().sample_size(20).configure_from_args();
    let mut rows = Vec::new();
    let mut cases = Vec::new();
    for (ranks, sequences, limit, repeats) in GROUPS {
        for kind in KINDS {
            let loads = group(ranks, sequences, kind);
            let name = format!("plan/dp{ranks}/{sequences}/{}", kind.name);
            criterion.bench_function(&name, |bench| {
                bench.iter(|| run(black_box(&loads), &gears, &options));
            });
            let found = run(&loads, &gears, &options);
            rows.push((name, found, median(&loads, &gears, &options), limit));
            // The Python planner knows no queues, and takes minutes where KV is short.
            let comparable = kind.waiting == 0 && kind.free.is_none();
            cases.push(comparable.then(|| as_json(&loads, repeats)));
        }
    }
    let ranks: Vec<RankCount> = (0..128)
        .map(|rank| RankCount {
            running: 40 + rank % 20,
            waiting: 0,
        })
        .collect();
    criterion.bench_function("trigger/observe/dp128", |bench| {
        let mut trigger = Trigger::new(Mode::Adaptive, 1000, gears.clone(), EQUAL.slots);
        trigger.checked(
            0,
            Outcome::Nothing,
            Some(Shared::merge(&[Measured {
                step_seconds: vec![(64, 0.1), (32, 0.06)],
                ..Measured::default()
            }])),
        );
        let mut step = 0;
        bench.iter(|| {
            step += 1;
            trigger.observe(step, black_box(&ranks))
        });
    });
    criterion.final_summary();

    println!(
        "\n{:52} {:>10} {:>10} {:>10} {:>8}",
        "group", "Rust us", "limit us", "Python us", "ratio"
    );
    let mut results = Vec::new();
    for ((name, found, seconds, limit), python) in rows.iter().zip(in_python(&cases)?) {
        let (mut shown, mut other) = (["-".to_owned(), "-".to_owned()], None);
        if let Some(python) = python {
            let after = python["after"].as_u64().expect("a number");
            assert!(u64::from(found.gear_after) <= after, "{name}");
            let python = python["seconds"].as_f64().expect("a number");
            shown = [python * 1e6, python / seconds].map(|number| format!("{number:.0}"));
            other = Some(python);
        }
        println!(
            "{name:52} {:10.1} {:10.0} {:>10} {:>8}  gear {} -> {}, {} moved",
            seconds * 1e6,
            limit * 1e6,
            shown[0],
            shown[1],
            found.gear_before,
            found.gear_after,
            found.moved(),
        );
        results.push(json!({
            "group": name,
            "rust_seconds": seconds,
            "limit_seconds": limit,
            "python_seconds": other,
            "ratio": other.map(|other| other / seconds),
            "gear_before": found.gear_before,
            "gear_after": found.gear_after,
            "moved": found.moved(),
            "reasons": found.reasons.iter().map(|reason| reason.as_str()).collect::<Vec<_>>(),
        }));
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(
        folder.join("planner.json"),
        format!("{:#}\n", Value::from(results)),
    )
}
