//! The wire format takes any bytes: a message comes out as it went in, and everything else is an
//! error that says what is wrong. Never a panic, never bytes left over, and never more memory than
//! what arrived can hold once it is decoded, and half as much again, whatever lengths it claims.

#[path = "wire/bound.rs"]
mod bound;
#[path = "wire/fuzz.rs"]
mod fuzz;
#[path = "wire/memory.rs"]
mod memory;
#[path = "wire/messages.rs"]
mod messages;

use std::fmt::Debug;

use proptest::prelude::*;
use seqshift::kv::LayoutDescription;
use seqshift::wire::frame::{self, HEADER, Header, Kind, MAX_PAYLOAD};
use seqshift::wire::manifest::{Manifest, SequenceKey, Tokens};
use seqshift::wire::message::{Detail, Meeting, Offer, Outcome, Reply, ShardVotes, Sync, Vote};
use seqshift::wire::{List, VERSION, WireError, decode, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

const CHECK: u64 = 41;

/// Everything that must hold for one message of one kind.
fn holds<T>(kind: Kind, message: &T) -> Result<(), TestCaseError>
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let payload = encode(message);
    let sealed = frame::seal(kind, CHECK, &payload);
    prop_assert_eq!(sealed.len(), HEADER + payload.len());
    let opened = frame::open(&sealed, kind, CHECK).unwrap();
    prop_assert_eq!(&decode::<T>(kind, opened).unwrap(), message);

    for length in 0..sealed.len() {
        let error = frame::open(&sealed[..length], kind, CHECK).unwrap_err();
        prop_assert!(
            matches!(error, WireError::Truncated { have, .. } if have == length),
            "{error}"
        );
    }
    for length in 0..payload.len() {
        let error = decode::<T>(kind, &payload[..length]).unwrap_err();
        prop_assert!(
            matches!(error, WireError::Malformed { kind: k, .. } if k == kind),
            "{error}"
        );
    }
    let mut longer = payload.clone();
    longer.push(0);
    let error = decode::<T>(kind, &longer).unwrap_err().to_string();
    prop_assert!(error.ends_with("1 bytes left over"), "{error}");

    let mut damaged = sealed;
    for bit in 0..damaged.len() * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        let error = frame::open(&damaged, kind, CHECK).expect_err("a flipped bit was not noticed");
        prop_assert!(names_field(&error, bit / 8), "byte {}: {error}", bit / 8);
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
    Ok(())
}

/// Whether an error blames the field of the header (or the payload) that holds this byte.
fn names_field(error: &WireError, byte: usize) -> bool {
    match byte {
        0..4 => matches!(error, WireError::Magic(_)),
        4..6 => matches!(error, WireError::Version { theirs } if *theirs != VERSION),
        6..8 => matches!(error, WireError::Kind(_) | WireError::Unexpected { .. }),
        8..16 => matches!(error, WireError::Unexpected { got_check, .. } if *got_check != CHECK),
        16..24 => matches!(error, WireError::Truncated { .. } | WireError::TooLarge(_)),
        _ => matches!(error, WireError::Checksum { .. }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn load(message in messages::load()) { holds(Kind::Load, &message)?; }

    #[test]
    fn detail(message in messages::detail()) { holds(Kind::Detail, &message)?; }

    #[test]
    fn offers(message in messages::offers()) { holds(Kind::Offer, &message)?; }

    #[test]
    fn replies(message in messages::replies()) { holds(Kind::Reply, &message)?; }

    #[test]
    fn outcome(message in messages::outcome()) { holds(Kind::Outcome, &message)?; }

    #[test]
    fn sync(message in messages::sync()) { holds(Kind::Sync, &message)?; }

    #[test]
    fn votes(message in messages::votes()) { holds(Kind::Shard, &message)?; }

    #[test]
    fn ranges(message in messages::ranges()) { holds(Kind::Prepare, &message)?; }

    #[test]
    fn taken(message in messages::taken()) { holds(Kind::Prepared, &message)?; }

    #[test]
    fn measured(message in messages::measured()) { holds(Kind::Measured, &message)?; }

    #[test]
    fn all_measured(message in messages::all_measured()) { holds(Kind::Measured, &message)?; }

    #[test]
    fn meeting(message in messages::meeting()) { holds(Kind::Root, &message)?; }

    #[test]
    fn last_words(message in messages::last_words()) { holds(Kind::Leave, &message)?; }
}

#[test]
fn load_record_is_small_whatever_it_holds() {
    use seqshift::wire::message::Load;
    let largest = Load {
        step: u64::MAX,
        running: u32::MAX,
        waiting: u32::MAX,
        free_kv_blocks: u32::MAX,
        max_num_seqs: u32::MAX,
        healthy: true,
        has_sync: true,
        communicator_broken: true,
        copying: true,
        layout: u64::MAX,
    };
    assert!(encode(&largest).len() <= 44);
}

#[test]
fn wrong_kind_and_number_are_both_named() {
    let sealed = frame::seal(Kind::Reply, 7, b"abc");
    let error = frame::open(&sealed, Kind::Offer, 8).unwrap_err();
    assert_eq!(
        error.to_string(),
        "got Reply of check 7, expected Offer of check 8"
    );
}

#[test]
fn other_version_says_what_to_do() {
    let mut sealed = frame::seal(Kind::Hello, 0, b"");
    sealed[4..6].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let error = Header::parse(&sealed).unwrap_err();
    assert_eq!(
        error,
        WireError::Version {
            theirs: VERSION + 1
        }
    );
    assert!(
        error.to_string().contains("run one seqshift version"),
        "{error}"
    );
}

#[test]
fn announced_length_is_refused_above_the_limit_and_not_believed_below() {
    let mut sealed = frame::seal(Kind::Offer, 1, b"payload");
    sealed[16..24].copy_from_slice(&(MAX_PAYLOAD + 1).to_le_bytes());
    assert_eq!(
        Header::parse(&sealed),
        Err(WireError::TooLarge(MAX_PAYLOAD + 1))
    );
    sealed[16..24].copy_from_slice(&MAX_PAYLOAD.to_le_bytes());
    let (result, peak) = memory::peak(|| frame::open(&sealed, Kind::Offer, 1).map(<[u8]>::len));
    assert_eq!(
        result,
        Err(WireError::Truncated {
            have: HEADER + 7,
            want: HEADER + MAX_PAYLOAD as usize
        })
    );
    assert_eq!(peak, 0);
}

/// Decodes bytes that claim `length` elements; the memory that it took.
fn claimed<T: DeserializeOwned>(kind: Kind, before: &[u8], length: u64, after: &[u8]) -> usize {
    let mut bytes = before.to_vec();
    bytes.extend(encode(&length));
    bytes.extend(after);
    let (result, peak) = memory::peak(|| decode::<T>(kind, &bytes).is_ok());
    assert!(
        !result,
        "{kind}: {length} elements in {} bytes",
        bytes.len()
    );
    assert!(
        peak <= bound::allowed(kind, bytes.len()),
        "{kind}: {peak} bytes held for {} that claim {length} elements",
        bytes.len()
    );
    peak
}

#[test]
fn claimed_lengths_cost_no_memory() {
    let filling = [0; 3000];
    for bits in 12..64 {
        let length = 1u64 << bits;
        for after in [&filling[..0], &filling[..100], &filling] {
            claimed::<List<Offer>>(Kind::Offer, &[], length, after);
            claimed::<List<Reply>>(Kind::Reply, &[], length, after);
            claimed::<Detail>(Kind::Detail, &[], length, after);
            claimed::<Detail>(Kind::Detail, &[0], length, after);
            claimed::<Outcome>(Kind::Outcome, &[], length, after);
            claimed::<ShardVotes>(Kind::Shard, &[0], length, after);
            // Returns; the outputs of one return; the token ids and logprob rows of one output.
            claimed::<(bool, Sync)>(Kind::Sync, &[1], length, after);
            claimed::<(bool, Sync)>(Kind::Sync, &[1, 1, 0, 0], length, after);
            claimed::<(bool, Sync)>(Kind::Sync, &[1, 1, 0, 0, 1], length, after);
            claimed::<(bool, Sync)>(Kind::Sync, &[1, 1, 0, 0, 1, 0, 1], length, after);
            // A manifest's request id, prompt, and sampling parameters.
            claimed::<List<Offer>>(Kind::Offer, &[1, 0, 0, 0], length, after);
            claimed::<List<Offer>>(Kind::Offer, &[1, 0, 0, 0, 0, 0], length, after);
            claimed::<List<Offer>>(Kind::Offer, &[1, 0, 0, 0, 0, 0, 0, 0], length, after);
        }
    }
}

/// Lists of the elements that take the most memory per byte, which end just after their memory
/// has grown.
#[test]
fn bound_is_nearly_reached() {
    const GROWN: usize = 210;
    let nearly = |kind: Kind, peak: usize, bytes: usize| {
        let allowed = bound::allowed(kind, bytes);
        assert!(peak >= allowed / 10 * 9, "{kind}: {peak} of {allowed}");
    };
    let lists = encode(&bound::row()).repeat(GROWN);
    let before = [1, 1, 0, 0, 1, 0, 1];
    let peak = claimed::<(bool, Sync)>(Kind::Sync, &before, 999, &lists);
    nearly(Kind::Sync, peak, before.len() + 2 + lists.len());
    let lists = encode(&Vote::default()).repeat(GROWN);
    let peak = claimed::<ShardVotes>(Kind::Shard, &[0], 999, &lists);
    nearly(Kind::Shard, peak, 3 + lists.len());
    // One layer of as many as there are bytes left claims as many sub-caches.
    let layer = [encode(&998_u64), vec![0xff; 998]].concat();
    let peak = claimed::<Meeting<LayoutDescription>>(Kind::Root, &[0, 1], 1000, &layer);
    nearly(Kind::Root, peak, 4 + layer.len());
}

#[test]
fn token_bytes_that_are_no_multiple_of_four_are_refused() {
    let error = decode::<Tokens>(Kind::Offer, &[3, 1, 2, 3]).unwrap_err();
    assert!(matches!(error, WireError::Malformed { .. }), "{error}");
}

fn decoding(prompt: usize, output: usize, blocks: u32) -> Manifest {
    Manifest {
        key: SequenceKey {
            origin: 0,
            serial: 1,
        },
        request_id: "0".into(),
        hops: 0,
        prompt: Tokens(vec![5; prompt]),
        output: Tokens(vec![6; output]),
        sampling_params: Vec::new(),
        eos_token_id: None,
        cache_salt: None,
        num_computed_tokens: (prompt + output).saturating_sub(1) as u32,
        num_cached_tokens: 0,
        generator_state: None,
        kv_blocks: blocks,
    }
}

#[test]
fn manifest_names_the_field_that_contradicts() {
    assert_eq!(decoding(30, 3, 2).validate(16), Ok(()));
    assert_eq!(decoding(30, 4, 3).validate(16), Ok(()));
    let waiting = Manifest {
        num_computed_tokens: 0,
        ..decoding(30, 0, 0)
    };
    assert_eq!(waiting.validate(16), Ok(()));
    let preempted = Manifest {
        num_computed_tokens: 0,
        ..decoding(30, 3, 0)
    };
    assert_eq!(preempted.validate(16), Ok(()));

    let of = |m: &Manifest| m.validate(16).unwrap_err();
    assert!(of(&decoding(0, 3, 1)).starts_with("prompt: "));
    assert!(of(&decoding(30, 3, 3)).starts_with("kv_blocks: 3"));
    assert!(of(&decoding(30, 0, 2)).starts_with("num_computed_tokens: 29 of 30"));
    let half = Manifest {
        num_computed_tokens: 16,
        ..decoding(30, 3, 1)
    };
    assert!(of(&half).starts_with("num_computed_tokens: 16 of 33"));
    let claims = Manifest {
        kv_blocks: 2,
        ..waiting.clone()
    };
    assert!(of(&claims).starts_with("num_computed_tokens: 0 with 2 KV blocks"));
    let most = Manifest {
        num_computed_tokens: u32::MAX,
        kv_blocks: u32::MAX,
        ..decoding(30, 3, 2)
    };
    assert!(of(&most).starts_with("num_computed_tokens: 4294967295"));
}
