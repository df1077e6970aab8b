//! Contract of docs/performance.md: its tables are what the schedule and the cost model say, and what
//! its text says of them holds.

use seqshift::kv::cost::{Means, Strategy};
use seqshift::kv::forecast::{
    DEEPSEEK_V3, Forecast, PATHS, Placement, QWEN3_235B, Setting, forecast, tables,
};

const TOKENS: u64 = 32768;
const ALL: Means = Means {
    strided: true,
    kernels: true,
    direct: true,
};

#[test]
fn the_document_holds_the_tables_of_the_model() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/performance.md");
    let text = std::fs::read_to_string(path).expect("the document is there");
    let (begin, end) = ("<!-- forecast -->", "<!-- end of forecast -->");
    let from = text.find(begin).expect("the tables begin") + begin.len();
    let to = text.find(end).expect("the tables end");
    let expected = tables(TOKENS).expect("the caches are possible");
    assert!(
        text[from..to].trim() == expected.trim(),
        "docs/performance.md differs from `cargo run --release --example kv_forecast`:\n{expected}"
    );
}

fn one(
    setting: &Setting,
    path: usize,
    placement: Placement,
    means: Means,
    verify: bool,
) -> Forecast {
    forecast(setting, TOKENS, &PATHS[path], placement, means, verify).expect("it is possible")
}

#[test]
fn bytes_and_blocks_are_those_of_the_models() {
    let deepseek = one(&DEEPSEEK_V3, 0, Placement::Scattered, ALL, false);
    assert_eq!(deepseek.bytes, 61 * 576 * 2 * TOKENS);
    let qwen = one(&QWEN3_235B, 0, Placement::Scattered, ALL, false);
    assert_eq!(qwen.bytes, 94 * 2 * 128 * 2 * TOKENS);
    assert_eq!((deepseek.blocks, qwen.blocks), (256, 256));
}

#[test]
fn what_limits_a_move_is_what_the_document_says() {
    let without = Means {
        kernels: false,
        ..ALL
    };
    for setting in [&DEEPSEEK_V3, &QWEN3_235B] {
        for path in 0..PATHS.len() {
            let kernels = one(setting, path, Placement::Scattered, ALL, false);
            let used: Vec<_> = kernels.strategies.iter().map(|(one, _)| *one).collect();
            assert_eq!(used, [Strategy::Kernels]);
            assert_eq!(kernels.limit(), "link");
            let copies = one(setting, path, Placement::Scattered, without, false);
            assert_ne!(copies.limit(), "link");
            assert!(copies.pause > 2 * kernels.pause);
            let adjacent = one(setting, path, Placement::Adjacent, ALL, false);
            assert_eq!(adjacent.gather + adjacent.scatter, 0);
            assert_eq!(adjacent.pause, adjacent.send);
            assert!(kernels.pause >= adjacent.pause);
        }
        // Within a node and a supernode digests take longest, on slower links they hide.
        let limits: Vec<_> = (0..PATHS.len())
            .map(|path| one(setting, path, Placement::Scattered, ALL, true).limit())
            .collect();
        assert_eq!(limits, ["digest", "digest", "link", "link"]);
    }
}

#[test]
fn a_pause_is_no_shorter_than_its_longest_stage_and_no_longer_than_all() {
    for setting in [&DEEPSEEK_V3, &QWEN3_235B] {
        for path in 0..PATHS.len() {
            for placement in [Placement::Scattered, Placement::Adjacent] {
                for verify in [false, true] {
                    let made = one(setting, path, placement, ALL, verify);
                    let stages = [made.gather, made.send.max(made.digest), made.scatter];
                    assert!(stages.iter().all(|stage| made.pause >= *stage));
                    assert!(made.pause <= made.gather + made.send + made.digest + made.scatter);
                }
            }
        }
    }
}
