//! What a migration should take on NPUs, by the published figures: the schedule and the strategies
//! are those of the real code, only time is computed. Nothing here was measured on an NPU;
//! `docs/performance.md` holds the tables and says what they rest on.

use std::fmt::Write as _;

use super::cost::{self, Means, Strategy};
use super::parts::parts;
use super::runs;
use super::schedule::{Chunk, Cut, Move, rounds};
use super::{DType, Format, KvLayout, LayoutError, SubCache};

/// Tokens of a block on NPUs.
const BLOCK_TOKENS: u64 = 128;
/// Bytes of a chunk between devices: as in `TransferOptions::new`, well within the default of
/// `staging_mib`.
const CHUNK: u64 = 8 << 20;
/// Host time of one call of HCCL with one item, ns: what A2's RoCE path in a communicator's domain
/// takes per block in HIXL's tables (16 KiB to 64 KiB).
const CALL_NS: u64 = 23_000;
/// Copies from the device to pinned host memory, bytes per second: at most 54 GB/s in HIXL's tables
/// (A3, FabricMem).
const HOST_RATE: u64 = 54_000_000_000;
/// xxh3-64 on one core, bytes per second: 28 GB/s, as fast as memory is read, by xxHash's own
/// README.
const DIGEST_RATE: u64 = 28_000_000_000;

/// A model as one rank holds it.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Model and parallelism.
    pub name: &'static str,
    /// Layers.
    pub layers: u64,
    /// The sub-caches of a layer: name, and bytes of one token on one rank.
    pub caches: &'static [(&'static str, u64)],
}

/// 61 layers of MLA: 512 and 64 elements of bf16 per token, the same on all TP ranks.
pub const DEEPSEEK_V3: Setting = Setting {
    name: "DeepSeek-V3, TP2 DP128",
    layers: 61,
    caches: &[("nope", 512 * 2), ("rope", 64 * 2)],
};
/// 94 layers of 4 KV heads of 128 elements of bf16, one head per TP rank.
pub const QWEN3_235B: Setting = Setting {
    name: "Qwen3-235B, TP4 DP32",
    layers: 94,
    caches: &[("keys", 128 * 2), ("values", 128 * 2)],
};

/// A link between two ranks.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Its name.
    pub name: &'static str,
    /// Bytes per second of large messages, from device to remote device.
    pub rate: u64,
}

/// HIXL's tables (hicann/hixl, `benchmarks/performance_en.md`), 2 MiB blocks.
pub const PATHS: [Path; 4] = [
    Path {
        name: "HCCS, A3, one node",
        rate: 164_600_000_000,
    },
    Path {
        name: "HCCS, A3, two nodes of a supernode",
        rate: 90_000_000_000,
    },
    Path {
        name: "RoCE, A2 and A3",
        rate: 23_900_000_000,
    },
    Path {
        name: "HCCS, A2, one node",
        rate: 20_300_000_000,
    },
];

/// How the blocks of a sequence lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In no order that a copy could use: a cache that has been in use.
    Scattered,
    /// All adjacent: a fresh cache.
    Adjacent,
}

/// What one sequence takes from one rank to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Bytes.
    pub bytes: u64,
    /// Blocks, in each sub-cache.
    pub blocks: u64,
    /// Parts that are gathered at once, and as many that are scattered.
    pub parts: u64,
    /// The strategies that are chosen, with the number of parts.
    pub strategies: Vec<(Strategy, u64)>,
    /// All gathers, ns.
    pub gather: u64,
    /// All sends, ns.
    pub send: u64,
    /// All scatters, ns.
    pub scatter: u64,
    /// All digests at one end, ns.
    pub digest: u64,
    /// From the beginning to the end of the exchange, ns.
    pub pause: u64,
}

impl Forecast {
    /// The stage that takes longest.
    pub fn limit(&self) -> &'static str {
        let stages = [
            (self.send, "link"),
            (self.gather, "gather"),
            (self.scatter, "scatter"),
            (self.digest, "digest"),
        ];
        stages
            .into_iter()
            .max_by_key(|(nanos, _)| *nanos)
            .map_or("link", |(_, name)| name)
    }
}

/// A cache with twice as many blocks as the sequence needs.
fn layout(setting: &Setting, blocks: u64) -> Result<KvLayout, LayoutError> {
    let mut base = 1 << 21;
    let mut layer = || {
        let sub_cache = |(_, token): &(&str, u64)| {
            let length = BLOCK_TOKENS * token;
            let extent = 2 * blocks * length;
            let one = SubCache {
                base,
                extent,
                blocks: 2 * blocks,
                stride: length,
                length,
                dtype: DType::BFloat16,
                format: Format::Nd,
            };
            base += extent.next_multiple_of(1 << 21);
            one
        };
        setting.caches.iter().map(sub_cache).collect()
    };
    KvLayout::new((0..setting.layers).map(|_| layer()).collect())
}

fn ids(placement: Placement, blocks: u64) -> Vec<u32> {
    let id = |index: u64| match placement {
        Placement::Adjacent => index,
        // Each below the one before: no copy takes two of them.
        Placement::Scattered => 2 * (blocks - 1 - index),
    };
    (0..blocks).map(|index| id(index) as u32).collect()
}

/// One sequence of so many tokens.
///
/// # Errors
/// [`LayoutError`] if its cache is larger than any memory.
pub fn forecast(
    setting: &Setting,
    tokens: u64,
    path: &Path,
    placement: Placement,
    means: Means,
    verify: bool,
) -> Result<Forecast, LayoutError> {
    let blocks = tokens.div_ceil(BLOCK_TOKENS);
    let layout = layout(setting, blocks)?;
    let ids = ids(placement, blocks);
    let moves = [Move {
        peer: 1,
        blocks: &ids,
    }];
    let cut = Cut {
        lanes: 1,
        chunk: CHUNK,
    };
    let mut made = Forecast {
        bytes: blocks * layout.block_bytes(),
        blocks,
        parts: 0,
        strategies: Vec::new(),
        gather: 0,
        send: 0,
        scatter: 0,
        digest: 0,
        pause: 0,
    };
    let mut stages = Vec::new();
    for round in rounds(&layout, cut, 2, 0, &moves, &[]) {
        for chunk in &round.sends {
            let copied = copies(&layout, chunk, &moves, means, &mut made);
            let fetched = if verify {
                cost::transfer(chunk.length, HOST_RATE)
            } else {
                0
            };
            let digest = if verify {
                cost::transfer(chunk.length, DIGEST_RATE)
            } else {
                0
            };
            let items = chunk.items().count() as u64;
            let send = items * CALL_NS + cost::transfer(chunk.length, path.rate);
            made.gather += copied + fetched;
            made.scatter += copied + fetched;
            made.send += send;
            made.digest += digest;
            // The host computes the digest of one chunk while the link is busy with it.
            stages.push([copied + fetched, send.max(digest), copied + fetched]);
        }
    }
    made.pause = pipeline(&stages);
    Ok(made)
}

/// Time to copy a chunk between cache and staging memory, by the strategies that are chosen.
fn copies(
    layout: &KvLayout,
    chunk: &Chunk,
    moves: &[Move<'_>],
    means: Means,
    made: &mut Forecast,
) -> u64 {
    let mut nanos = 0;
    let pieces: Vec<_> = chunk.pieces.iter().collect();
    for part in parts(layout, &pieces, moves) {
        let choice = cost::choose(&runs::job(&part.blocks()), means);
        nanos += choice.nanos;
        made.parts += 1;
        let known = made
            .strategies
            .iter_mut()
            .find(|(strategy, _)| *strategy == choice.strategy);
        match known {
            Some((_, count)) => *count += 1,
            None => made.strategies.push((choice.strategy, 1)),
        }
    }
    nanos
}

/// The end of the last stage of the last chunk, when each stage has room for two chunks.
fn pipeline(chunks: &[[u64; 3]]) -> u64 {
    let mut ends: Vec<[u64; 3]> = Vec::new();
    for (index, [gather, send, scatter]) in chunks.iter().enumerate() {
        let before = index.checked_sub(1).map_or([0; 3], |at| ends[at]);
        let older = index.checked_sub(2).map_or([0; 3], |at| ends[at]);
        let gathered = before[0].max(older[1]) + gather;
        let sent = gathered.max(before[1]).max(older[2]) + send;
        ends.push([gathered, sent, sent.max(before[2]) + scatter]);
    }
    ends.last().map_or(0, |ends| ends[2])
}

/// The tables of `docs/performance.md`, for sequences of so many tokens.
///
/// # Errors
/// As [`forecast`].
pub fn tables(tokens: u64) -> Result<String, LayoutError> {
    let all = Means {
        strided: true,
        kernels: true,
        direct: true,
    };
    let old = Means {
        kernels: false,
        ..all
    };
    let mut text = String::new();
    for setting in [DEEPSEEK_V3, QWEN3_235B] {
        let blocks = tokens.div_ceil(BLOCK_TOKENS);
        let sizes: Vec<_> = setting
            .caches
            .iter()
            .map(|(name, token)| format!("{name} {} KiB", (token * BLOCK_TOKENS) >> 10))
            .collect();
        let one = forecast(
            &setting,
            tokens,
            &PATHS[0],
            Placement::Scattered,
            all,
            false,
        )?;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "**{}**: {:.2} GB per sequence of {tokens} tokens and rank; {} layers x {blocks} blocks of {} \
             = {} blocks\n",
            setting.name,
            one.bytes as f64 / 1e9,
            setting.layers,
            sizes.join(" and "),
            blocks * setting.layers * setting.caches.len() as u64
        );
        text += "| path | blocks | kernels | strategies (parts) | gather ms | link ms | pause ms | limit \
                 | pause with digests ms | limit |\n|---|---|---|---|---|---|---|---|---|---|\n";
        for path in &PATHS {
            for (placement, means) in [
                (Placement::Scattered, all),
                (Placement::Scattered, old),
                (Placement::Adjacent, all),
            ] {
                let plain = forecast(&setting, tokens, path, placement, means, false)?;
                let checked = forecast(&setting, tokens, path, placement, means, true)?;
                let strategies: Vec<_> = plain
                    .strategies
                    .iter()
                    .map(|(strategy, parts)| format!("{strategy} {parts}"))
                    .collect();
                let ms = |nanos: u64| format!("{:.1}", nanos as f64 / 1e6);
                let _ = writeln!(
                    text,
                    "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                    path.name,
                    match placement {
                        Placement::Scattered => "scattered",
                        Placement::Adjacent => "adjacent",
                    },
                    if means.kernels { "yes" } else { "no" },
                    strategies.join(", "),
                    ms(plain.gather),
                    ms(plain.send),
                    ms(plain.pause),
                    plain.limit(),
                    ms(checked.pause),
                    checked.limit()
                );
            }
        }
        text.push('\n');
    }
    Ok(text)
}
