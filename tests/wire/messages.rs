//! Every message that can travel, as proptest draws it.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use seqshift::kv::{DType, Format, LayoutDescription, SubCacheDescription};
use seqshift::wire::List;
use seqshift::wire::manifest::{Manifest, SequenceKey, Tokens};
use seqshift::wire::message::{
    Detail, Finish, Load, LogprobRow, Measured, Meeting, MoveOutcome, Offer, Outcome, Reply,
    Return, SequenceDetail, ShardVotes, Speeds, Standing, Sync, TokenOutput, Vote,
};

/// Text of several alphabets, empty text included.
fn text() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..12).prop_map(String::from_iter)
}

fn tokens() -> impl Strategy<Value = Tokens> {
    vec(any::<u32>(), 0..40).prop_map(Tokens)
}

pub fn key() -> impl Strategy<Value = SequenceKey> {
    (any::<u32>(), any::<u64>()).prop_map(|(origin, serial)| SequenceKey { origin, serial })
}

pub fn manifest() -> impl Strategy<Value = Manifest> {
    let engine = (
        vec(any::<u8>(), 0..60),
        option::of(any::<u32>()),
        option::of(text()),
        option::of(vec(any::<u8>(), 0..20)),
    );
    let counts = (any::<u32>(), any::<u32>(), any::<i64>(), any::<u32>());
    (key(), text(), tokens(), tokens(), engine, counts).prop_map(
        |(key, request_id, prompt, output, engine, counts)| Manifest {
            key,
            request_id,
            hops: counts.0,
            prompt,
            output,
            sampling_params: engine.0,
            eos_token_id: engine.1,
            cache_salt: engine.2,
            num_computed_tokens: counts.1,
            num_cached_tokens: counts.2,
            generator_state: engine.3,
            kv_blocks: counts.3,
        },
    )
}

pub fn load() -> impl Strategy<Value = Load> {
    let parts = (any::<[u64; 2]>(), any::<[u32; 4]>(), any::<[bool; 4]>());
    parts.prop_map(|([step, layout], counts, flags)| Load {
        step,
        running: counts[0],
        waiting: counts[1],
        free_kv_blocks: counts[2],
        max_num_seqs: counts[3],
        healthy: flags[0],
        has_sync: flags[1],
        communicator_broken: flags[2],
        copying: flags[3],
        layout,
    })
}

pub fn detail() -> impl Strategy<Value = Detail> {
    let sequence =
        (option::of(key()), any::<u32>(), any::<bool>()).prop_map(|(key, kv_blocks, movable)| {
            SequenceDetail {
                key,
                kv_blocks,
                movable,
            }
        });
    let standing = prop_oneof![
        any::<u32>().prop_map(Standing::Running),
        text().prop_map(Standing::Gone)
    ];
    (
        vec(sequence, 0..20),
        any::<[Vec<u32>; 2]>(),
        any::<u32>(),
        any::<[bool; 2]>(),
        any::<(Option<u64>, Option<u64>, Option<u32>)>(),
        vec(standing, 0..4),
    )
        .prop_map(
            |(running, [waiting, pinned], free_kv_blocks, flags, speeds, standing)| Detail {
                running,
                waiting_blocks: waiting,
                pinned_waiting_blocks: pinned,
                free_kv_blocks,
                healthy: flags[0],
                kv_ready: flags[1],
                speeds: Speeds {
                    step_nanos: speeds.0,
                    block_nanos: speeds.1,
                    remaining: speeds.2,
                },
                standing,
            },
        )
}

pub fn offers() -> impl Strategy<Value = List<Offer>> {
    let offer = prop_oneof![
        (manifest(), any::<u32>()).prop_map(|(m, copied)| Offer::Manifest(Box::new(m), copied)),
        text().prop_map(Offer::Withdrawn),
    ];
    vec(offer, 0..4).prop_map(List)
}

pub fn replies() -> impl Strategy<Value = List<Reply>> {
    let reply = prop_oneof![
        any::<u32>().prop_map(Reply::Accept),
        text().prop_map(Reply::Reject)
    ];
    vec(reply, 0..10).prop_map(List)
}

pub fn outcome() -> impl Strategy<Value = Outcome> {
    let one = (
        any::<u32>(),
        option::of(any::<u64>()),
        option::of(text()),
        any::<bool>(),
    )
        .prop_map(|(index, digest, error, rejected)| MoveOutcome {
            index,
            digest,
            error,
            rejected,
        });
    (vec(one, 0..10), any::<bool>()).prop_map(|(moves, communicator_broken)| Outcome {
        moves,
        communicator_broken,
    })
}

/// What travels in step 7: whether anybody gets something, and the receiver's part.
pub fn sync() -> impl Strategy<Value = (bool, Sync)> {
    let row = (vec(any::<i64>(), 0..4), vec(-1e9..0.0, 0..4), any::<i64>()).prop_map(
        |(token_ids, values, sampled_rank)| LogprobRow {
            token_ids,
            values,
            sampled_rank,
        },
    );
    let finish = (text(), option::of(any::<i64>()))
        .prop_map(|(reason, stop_token)| Box::new(Finish { reason, stop_token }));
    let output = (
        vec(any::<u32>(), 0..4),
        option::of(vec(row, 0..3)),
        option::of(finish),
        any::<i64>(),
    )
        .prop_map(
            |(token_ids, logprobs, finish, num_cached_tokens)| TokenOutput {
                token_ids,
                logprobs,
                finish,
                num_cached_tokens,
            },
        );
    let one = (key(), vec(output, 0..4), any::<bool>()).prop_map(|(key, outputs, done)| Return {
        key,
        outputs,
        done,
    });
    (any::<bool>(), vec(one, 0..3), vec(key(), 0..4))
        .prop_map(|(any, returns, aborts)| (any, Sync { returns, aborts }))
}

pub fn votes() -> impl Strategy<Value = ShardVotes> {
    let vote =
        (option::of(text()), any::<bool>()).prop_map(|(error, rejected)| Vote { error, rejected });
    (any::<u64>(), vec(vote, 0..10)).prop_map(|(plan, votes)| ShardVotes { plan, votes })
}

/// What a source offers to copy in the background, and what its destination takes.
pub fn ranges() -> impl Strategy<Value = List<(u32, u32)>> {
    vec(any::<(u32, u32)>(), 0..10).prop_map(List)
}

pub fn taken() -> impl Strategy<Value = List<bool>> {
    vec(any::<bool>(), 0..10).prop_map(List)
}

pub fn measured() -> impl Strategy<Value = Measured> {
    (
        vec((any::<u32>(), 0.0..1e3), 0..6),
        option::of(0.0..1e3),
        option::of(0.0..1e3),
        0.0..1e6,
        option::of(any::<u32>()),
    )
        .prop_map(
            |(steps, fixed_seconds, seconds_per_block, blocks, longest_remaining)| Measured {
                step_seconds: steps,
                fixed_seconds,
                seconds_per_block,
                blocks_per_sequence: blocks,
                longest_remaining,
            },
        )
}

/// What the TP shards of a rank tell each other of all ranks.
pub fn all_measured() -> impl Strategy<Value = List<Measured>> {
    vec(measured(), 0..4).prop_map(List)
}

pub fn meeting() -> impl Strategy<Value = Meeting<LayoutDescription>> {
    let dtypes = [DType::BFloat16, DType::Float8E4M3, DType::Int64];
    let format = prop_oneof![
        Just(Format::Nd),
        Just(Format::FractalNz),
        any::<i32>().prop_map(Format::Other),
    ];
    let sub_cache =
        (any::<u64>(), select(dtypes.to_vec()), format).prop_map(|(length, dtype, format)| {
            SubCacheDescription {
                length,
                dtype,
                format,
            }
        });
    let layout = vec(vec(sub_cache, 0..4), 0..6).prop_map(|layers| LayoutDescription { layers });
    (vec(any::<u8>(), 0..80), option::of(layout))
        .prop_map(|(root, layout)| Meeting { root, layout })
}

/// A rank's last words: whose fault it is, and why.
pub fn last_words() -> impl Strategy<Value = (Option<u32>, String)> {
    (option::of(any::<u32>()), text())
}
