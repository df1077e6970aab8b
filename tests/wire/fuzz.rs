//! Mutated frames and payloads. `SEQSHIFT_FUZZ_INPUTS` (20,000 unless set) says how many,
//! `SEQSHIFT_FUZZ_SEED` repeats a run; the seed is printed.

use std::time::{SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use seqshift::wire::frame::{self, Kind};
use seqshift::wire::message::{Detail, Load, Measured, Offer, Outcome, Reply, ShardVotes, Sync};
use seqshift::wire::{decode, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{memory, messages};

/// The most memory that decoding this many bytes may hold. A byte can claim one element of each
/// of the lists nested in a message; the structs of all those take less than 256 bytes. The
/// constant is for the text of an error.
pub fn allowed(bytes: usize) -> usize {
    256 * bytes + 512
}

/// Decodes as `T`; true when it is one. Whatever is accepted must survive another round trip.
fn probe<T: Serialize + DeserializeOwned>(kind: Kind, bytes: &[u8]) -> bool {
    let (result, peak) = memory::peak(|| decode::<T>(kind, bytes));
    assert!(
        peak <= allowed(bytes.len()),
        "{kind}: {peak} bytes held for {}: {bytes:02x?}",
        bytes.len()
    );
    let Ok(message) = result else { return false };
    let again = encode(&message);
    let back = decode::<T>(kind, &again).expect("what was encoded here can be read");
    assert_eq!(encode(&back), again, "{kind}: {bytes:02x?}");
    true
}

fn probe_offers(kind: Kind, bytes: &[u8]) -> bool {
    for offer in decode::<Vec<Offer>>(kind, bytes).into_iter().flatten() {
        if let Offer::Manifest(manifest, _) = offer {
            // Only that it does not panic.
            let _ = manifest.validate(16);
        }
    }
    probe::<Vec<Offer>>(kind, bytes)
}

type Probe = fn(Kind, &[u8]) -> bool;
const PROBES: [(Kind, Probe); 10] = [
    (Kind::Load, probe::<Load>),
    (Kind::Detail, probe::<Detail>),
    (Kind::Offer, probe_offers),
    (Kind::Reply, probe::<Vec<Reply>>),
    (Kind::Outcome, probe::<Outcome>),
    (Kind::Sync, probe::<(bool, Sync)>),
    (Kind::Shard, probe::<ShardVotes>),
    (Kind::Measured, probe::<Measured>),
    (Kind::Prepare, probe::<Vec<(u32, u32)>>),
    (Kind::Prepared, probe::<Vec<bool>>),
];

/// Encoded messages of each kind, in the order of [`PROBES`].
fn corpus(seed: u64) -> Vec<Vec<Vec<u8>>> {
    const EACH: usize = 24;
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    let mut draw = |strategy: BoxedStrategy<Vec<u8>>| -> Vec<Vec<u8>> {
        (0..EACH)
            .map(|_| strategy.new_tree(&mut runner).unwrap().current())
            .collect()
    };
    vec![
        draw(messages::load().prop_map(|m| encode(&m)).boxed()),
        draw(messages::detail().prop_map(|m| encode(&m)).boxed()),
        draw(messages::offers().prop_map(|m| encode(&m)).boxed()),
        draw(messages::replies().prop_map(|m| encode(&m)).boxed()),
        draw(messages::outcome().prop_map(|m| encode(&m)).boxed()),
        draw(messages::sync().prop_map(|m| encode(&m)).boxed()),
        draw(messages::votes().prop_map(|m| encode(&m)).boxed()),
        draw(messages::measured().prop_map(|m| encode(&m)).boxed()),
        draw(messages::ranges().prop_map(|m| encode(&m)).boxed()),
        draw(messages::taken().prop_map(|m| encode(&m)).boxed()),
    ]
}

/// A number below `bound`.
fn below(rng: &mut ChaCha8Rng, bound: usize) -> usize {
    (rng.next_u64() % bound.max(1) as u64) as usize
}

/// Changes bytes in one of the ways in which a decoder is led astray.
fn mutate(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    let at = below(rng, bytes.len());
    match below(rng, 7) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << below(rng, 8),
        1 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][below(rng, 5)],
        2 => bytes.truncate(at),
        3 => {
            let length = encode(&(rng.next_u64() >> below(rng, 64)));
            bytes.splice(at..at, length);
        }
        4 => {
            let from = below(rng, other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        5 => {
            let end = (at + below(rng, 40)).min(bytes.len());
            let piece = bytes[at..end].to_vec();
            bytes.splice(at..at, piece);
        }
        _ => {
            let end = (at + below(rng, 9)).min(bytes.len());
            bytes.drain(at..end);
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}: {value:?} is no number")),
    )
}

#[test]
fn mutated_inputs() {
    let inputs = setting("SEQSHIFT_FUZZ_INPUTS").unwrap_or(20_000);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = setting("SEQSHIFT_FUZZ_SEED").unwrap_or(now.as_nanos() as u64);
    println!("{inputs} inputs, SEQSHIFT_FUZZ_SEED={seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let corpus = corpus(seed);
    let (mut decoded, mut opened) = (0u64, 0u64);
    for _ in 0..inputs {
        let which = below(&mut rng, PROBES.len());
        let (kind, probe) = PROBES[which];
        let pick = below(&mut rng, corpus[which].len());
        let donors = &corpus[below(&mut rng, corpus.len())];
        let other = &donors[below(&mut rng, donors.len())];
        let mut payload = corpus[which][pick].clone();
        for _ in 0..=below(&mut rng, 4) {
            mutate(&mut rng, &mut payload, other);
        }
        // A peer that seals nonsense: only the decoder stands in the way.
        decoded += u64::from(probe(kind, &payload));
        // Damage on the way: the frame itself must notice.
        let mut sealed = frame::seal(kind, 3, &payload);
        let whole = sealed.clone();
        for _ in 0..=below(&mut rng, 3) {
            mutate(&mut rng, &mut sealed, other);
        }
        let (result, peak) = memory::peak(|| frame::open(&sealed, kind, 3).is_ok());
        assert_eq!(peak, 0, "{sealed:02x?}");
        assert!(!result || sealed == whole, "accepted: {sealed:02x?}");
        opened += u64::from(result);
    }
    println!("{decoded} payloads still decoded, {opened} frames were left whole");
    assert!(decoded > 0 && decoded < inputs);
}
