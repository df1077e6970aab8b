//! The most memory that decoding may hold, from the sizes of what the messages are made of.

use seqshift::kv::SubCacheDescription;
use seqshift::wire::encode;
use seqshift::wire::frame::Kind;
use seqshift::wire::manifest::{Manifest, SequenceKey, Tokens};
use seqshift::wire::message::{
    Finish, LogprobRow, Measured, MoveOutcome, Offer, Reply, Return, SequenceDetail, Standing,
    TokenOutput, Vote,
};
use serde::Serialize;

/// A list has room for half as many elements more than have arrived.
const ROOM: f64 = 1.5;

/// The most memory that `bytes` of one kind may hold. Every element of a list has been read from
/// bytes of its own, so it is the largest quotient of an element's memory and its shortest
/// encoding, among those that the kind is made of; or an error's text, once all is given back.
pub fn allowed(kind: Kind, bytes: usize) -> usize {
    let (per_byte, constant) = match kind {
        Kind::Root => layout(),
        kind => (per_byte(kind), 0),
    };
    (per_byte * bytes as f64) as usize + constant.max(longest_error())
}

/// Bytes of the longest text of an error.
pub fn longest_error() -> usize {
    postcard::Error::DeserializeBadVarint.to_string().len()
}

/// Memory per byte of lists of `T`, of which `shortest` has the shortest encoding and holds
/// `boxed` bytes elsewhere.
fn element<T: Serialize>(shortest: &T, boxed: usize) -> f64 {
    (ROOM * size_of::<T>() as f64 + boxed as f64) / encode(shortest).len() as f64
}

fn per_byte(kind: Kind) -> f64 {
    let rates: &[f64] = match kind {
        Kind::Leave => &[1.0],
        Kind::Detail => &[
            element(&sequence(), 0),
            element(&Standing::Running(0), 0),
            element(&0_u32, 0),
        ],
        Kind::Offer => &[
            element(&Offer::Withdrawn(String::new()), 0),
            element(
                &Offer::Manifest(Box::new(manifest()), 0),
                size_of::<Manifest>(),
            ),
        ],
        Kind::Reply => &[element(&Reply::Accept(0), 0)],
        Kind::Outcome => &[element(&outcome(), 0)],
        Kind::Sync | Kind::Drain => &[
            element(&KEY, 0),
            element(&returned(), 0),
            element(&output(None), 0),
            element(&output(Some(finish())), size_of::<Finish>()),
            element(&row(), 0),
            element(&0_i64, 0),
        ],
        Kind::Shard => &[element(&Vote::default(), 0)],
        Kind::Measured => &[element(&Measured::default(), 0), element(&(0_u32, 0.0), 0)],
        Kind::Prepare => &[element(&(0_u32, 0_u32), 0)],
        Kind::Prepared => &[element(&false, 0)],
        _ => &[],
    };
    rates.iter().copied().fold(0.0, f64::max)
}

const KEY: SequenceKey = SequenceKey {
    origin: 0,
    serial: 0,
};

fn sequence() -> SequenceDetail {
    SequenceDetail {
        key: None,
        kv_blocks: 0,
        movable: false,
    }
}

fn manifest() -> Manifest {
    Manifest {
        key: KEY,
        request_id: String::new(),
        hops: 0,
        prompt: Tokens::default(),
        output: Tokens::default(),
        sampling_params: Vec::new(),
        eos_token_id: None,
        cache_salt: None,
        num_computed_tokens: 0,
        num_cached_tokens: 0,
        generator_state: None,
        kv_blocks: 0,
    }
}

fn outcome() -> MoveOutcome {
    MoveOutcome {
        index: 0,
        digest: None,
        error: None,
        rejected: false,
    }
}

pub fn returned() -> Return {
    Return {
        key: KEY,
        outputs: Vec::new(),
        done: false,
    }
}

pub fn output(finish: Option<Finish>) -> TokenOutput {
    TokenOutput {
        token_ids: Vec::new(),
        logprobs: None,
        finish: finish.map(Box::new),
        num_cached_tokens: 0,
    }
}

fn finish() -> Finish {
    Finish {
        reason: String::new(),
        stop_token: None,
    }
}

pub fn row() -> LogprobRow {
    LogprobRow {
        token_ids: Vec::new(),
        values: Vec::new(),
        sampled_rank: 0,
    }
}

/// Per byte, and besides. serde's own lists, one within the other: each reserves what it claims,
/// if as many bytes are left, or else doubles from four elements on.
fn layout() -> (f64, usize) {
    let both = size_of::<Vec<SubCacheDescription>>() + size_of::<SubCacheDescription>();
    (both as f64, 4 * both)
}
