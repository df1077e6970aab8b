//! Mutated frames and payloads. `SEQSHIFT_FUZZ_INPUTS` (100,000 unless set) says how many,
//! `SEQSHIFT_FUZZ_SEED` repeats a run; the seed is printed.

use std::time::{SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use seqshift::kv::LayoutDescription;
use seqshift::wire::frame::{self, Kind};
use seqshift::wire::message::{
    Detail, Load, Measured, Meeting, Offer, Outcome, Reply, ShardVotes, Sync,
};
use seqshift::wire::{List, decode, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{bound, memory, messages};

/// Decodes as `T`: whether it is one, and the memory that it took. Whatever is accepted must
/// survive another round trip.
fn probe<T: Serialize + DeserializeOwned>(kind: Kind, bytes: &[u8]) -> (bool, usize) {
    let (result, peak) = memory::peak(|| decode::<T>(kind, bytes));
    assert!(
        peak <= bound::allowed(kind, bytes.len()),
        "{kind}: {peak} bytes held for {}: {bytes:02x?}",
        bytes.len()
    );
    let Ok(message) = result else {
        return (false, peak);
    };
    let again = encode(&message);
    let back = decode::<T>(kind, &again).expect("what was encoded here can be read");
    assert_eq!(encode(&back), again, "{kind}: {bytes:02x?}");
    (true, peak)
}

fn probe_offers(kind: Kind, bytes: &[u8]) -> (bool, usize) {
    if let Ok(List(offers)) = decode::<List<Offer>>(kind, bytes) {
        for offer in offers {
            if let Offer::Manifest(manifest, _) = offer {
                // Only that it does not panic.
                let _ = manifest.validate(16);
            }
        }
    }
    probe::<List<Offer>>(kind, bytes)
}

type Probe = fn(Kind, &[u8]) -> (bool, usize);

/// A kind of message, and encoded ones to begin with.
struct Target {
    kind: Kind,
    probe: Probe,
    corpus: Vec<Vec<u8>>,
}

/// Every message that a frame can carry.
fn targets(seed: u64) -> Vec<Target> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    let runner = &mut runner;
    vec![
        target(Kind::Load, probe::<Load>, messages::load(), runner),
        target(Kind::Detail, probe::<Detail>, messages::detail(), runner),
        target(Kind::Offer, probe_offers, messages::offers(), runner),
        target(
            Kind::Reply,
            probe::<List<Reply>>,
            messages::replies(),
            runner,
        ),
        target(Kind::Outcome, probe::<Outcome>, messages::outcome(), runner),
        target(Kind::Sync, probe::<(bool, Sync)>, messages::sync(), runner),
        target(Kind::Drain, probe::<(bool, Sync)>, messages::sync(), runner),
        target(Kind::Shard, probe::<ShardVotes>, messages::votes(), runner),
        target(
            Kind::Measured,
            probe::<Measured>,
            messages::measured(),
            runner,
        ),
        target(
            Kind::Measured,
            probe::<List<Measured>>,
            messages::all_measured(),
            runner,
        ),
        target(
            Kind::Prepare,
            probe::<List<(u32, u32)>>,
            messages::ranges(),
            runner,
        ),
        target(
            Kind::Prepared,
            probe::<List<bool>>,
            messages::taken(),
            runner,
        ),
        target(
            Kind::Root,
            probe::<Meeting<LayoutDescription>>,
            messages::meeting(),
            runner,
        ),
        target(
            Kind::Leave,
            probe::<(Option<u32>, String)>,
            messages::last_words(),
            runner,
        ),
        target(Kind::Done, probe::<()>, Just(()), runner),
    ]
}

fn target<T: Serialize>(
    kind: Kind,
    probe: Probe,
    messages: impl Strategy<Value = T>,
    runner: &mut TestRunner,
) -> Target {
    const EACH: usize = 24;
    let draw = |_| encode(&messages.new_tree(runner).unwrap().current());
    Target {
        kind,
        probe,
        corpus: (0..EACH).map(draw).collect(),
    }
}

#[test]
fn every_kind_that_carries_a_message_is_mutated() {
    // The secret of a greeting is compared as it is; the others' frames are empty.
    let no_message = [Kind::Hello, Kind::Ack, Kind::Again, Kind::Refused];
    let targets = targets(0);
    for kind in Kind::ALL {
        let mutated = targets.iter().any(|target| target.kind == kind);
        assert_ne!(mutated, no_message.contains(&kind), "{kind}");
    }
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
    let inputs = setting("SEQSHIFT_FUZZ_INPUTS").unwrap_or(100_000);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = setting("SEQSHIFT_FUZZ_SEED").unwrap_or(now.as_nanos() as u64);
    println!("{inputs} inputs, SEQSHIFT_FUZZ_SEED={seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let targets = targets(seed);
    let (mut decoded, mut opened, mut most) = (0u64, 0u64, 0.0_f64);
    for _ in 0..inputs {
        let target = &targets[below(&mut rng, targets.len())];
        let kind = target.kind;
        let donors = &targets[below(&mut rng, targets.len())].corpus;
        let other = &donors[below(&mut rng, donors.len())];
        let mut payload = target.corpus[below(&mut rng, target.corpus.len())].clone();
        for _ in 0..=below(&mut rng, 4) {
            mutate(&mut rng, &mut payload, other);
        }
        // A peer that seals nonsense: only the decoder stands in the way.
        let (is_message, peak) = (target.probe)(kind, &payload);
        decoded += u64::from(is_message);
        if peak > bound::longest_error() {
            most = most.max(peak as f64 / payload.len() as f64);
        }
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
    println!("at most {most:.1} bytes held per byte");
    assert!(decoded > 0 && decoded < inputs);
}
