//! The control channel: ranks exchange payloads of any size without waiting for each other in
//! circles; strangers stay outside; nothing waits past its deadline, and no socket is left behind.

mod control_support;

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use control_support::*;
use seqshift::collective::control::{ControlError, Interrupt, Listener, Mesh, SECRET};
use seqshift::wire::frame::{self, Kind};

#[test]
fn any_size_both_ways() {
    let _shared = shared();
    for ranks in 1..=5 {
        everywhere(group(ranks), |rank, mut mesh| {
            assert_eq!((mesh.rank(), mesh.size()), (rank, ranks));
            for length in [0, 1, 65_536, 3 << 20, 5] {
                let payloads = (0..ranks).map(|to| pattern(rank, to, length)).collect();
                let received = mesh.all_to_all(Kind::Offer, payloads, later(LONG)).unwrap();
                for (from, payload) in (0..).zip(received) {
                    assert!(payload.unwrap() == pattern(from, rank, length));
                }
            }
            let received = mesh.all_gather(Kind::Load, &[rank as u8; 40], later(LONG));
            assert_eq!(received.unwrap(), whole(ranks));
        });
    }
}

#[test]
fn payloads_of_different_sizes_cross() {
    let _shared = shared();
    everywhere(group(3), |rank, mut mesh| {
        // Rank 0 sends much and gets little; more than sockets buffer, so it must read as well.
        let length = |from: u32, to: u32| if from == 0 { 6 << 20 } else { to as usize };
        let payloads = (0..3).map(|to| pattern(rank, to, length(rank, to)));
        let received = mesh.all_to_all(Kind::Sync, payloads.collect(), later(LONG));
        for (from, payload) in (0..).zip(received.unwrap()) {
            assert!(payload.unwrap() == pattern(from, rank, length(from, rank)));
        }
    });
}

#[test]
fn strangers_are_not_admitted() {
    let _shared = shared();
    let (mut all, addresses) = listeners(2);
    let hello = |secret: [u8; SECRET], rank: u32| {
        let payload = [secret.as_slice(), &rank.to_le_bytes()].concat();
        frame::seal(Kind::Hello, 0, &payload)
    };
    let mut other_kind = hello(OURS, 1);
    other_kind[6] = Kind::Load as u8;
    let mut other_version = hello(OURS, 1);
    other_version[4] ^= 1;
    let strangers = [
        hello([8; SECRET], 1),
        // The right secret, but no rank that is awaited.
        hello(OURS, 0),
        hello(OURS, 2),
        hello(OURS, u32::MAX),
        other_kind,
        other_version,
        vec![0; 4096],
        Vec::new(),
    ];
    for bytes in strangers {
        TcpStream::connect(&addresses[0])
            .unwrap()
            .write_all(&bytes)
            .unwrap();
    }
    let last = all.pop().unwrap();
    let first = all.pop().unwrap();
    let meshes = thread::scope(|scope| {
        let first = scope.spawn(|| first.connect(0, &addresses, later(LONG), never()));
        let last = scope.spawn(|| last.connect(1, &addresses, later(LONG), never()));
        vec![
            first.join().unwrap().unwrap(),
            last.join().unwrap().unwrap(),
        ]
    });
    for (_, result) in gather(meshes, Kind::Load) {
        assert_eq!(result.unwrap(), whole(2));
    }
}

#[test]
fn missing_rank_is_named_when_connecting() {
    let _shared = shared();
    let (mut all, addresses) = listeners(3);
    all.truncate(2);
    let addresses = &addresses;
    let errors = everywhere(all, |rank, listener| {
        let until = later(Duration::from_millis(1500));
        listener
            .connect(rank, addresses, until, never())
            .unwrap_err()
    });
    for error in errors {
        assert!(
            matches!(&error, ControlError::Timeout { ranks, .. } if ranks == &[2]),
            "{error}"
        );
    }
}

#[test]
fn a_rank_that_nobody_answers_names_whom_it_called() {
    let _shared = shared();
    let (mut all, mut addresses) = listeners(2);
    // A port that was just given back, so that nothing listens there.
    let free = Listener::bind(OURS).unwrap().port().unwrap();
    addresses[0] = format!("127.0.0.1:{free}");
    let until = later(Duration::from_millis(200));
    let error = all.pop().unwrap().connect(1, &addresses, until, never());
    let error = error.unwrap_err();
    assert!(
        matches!(&error, ControlError::Timeout { ranks, .. } if ranks == &[0]),
        "{error}"
    );
}

#[test]
fn peer_that_dies_is_named_at_once() {
    let _shared = shared();
    let began = Instant::now();
    let results = everywhere(group(3), |rank, mut mesh| {
        (rank != 1).then(|| mesh.all_gather(Kind::Outcome, &[0; 1 << 20], later(LONG)))
    });
    assert!(began.elapsed() < SOON);
    for result in results.into_iter().flatten() {
        // The first survivor to notice leaves as well, but says whose fault it is.
        let Err(ControlError::Gone { rank, during, .. }) = result else {
            panic!("{result:?}")
        };
        assert_eq!(rank, 1);
        assert_eq!(during, "Outcome");
    }
}

#[test]
fn deadline_names_who_is_missing() {
    let _shared = shared();
    let mut meshes = group(4);
    let silent = [meshes.remove(3), meshes.remove(1)];
    let both = everywhere(meshes, |_, mut mesh| {
        let began = Instant::now();
        let result = mesh.all_gather(Kind::Reply, b"x", later(Duration::from_millis(1500)));
        // The mesh comes along: while it lives, its peers see no closed connection.
        (mesh, result.unwrap_err(), began.elapsed())
    });
    for (_, error, took) in &both {
        assert!(*took < SOON);
        assert!(
            matches!(error, ControlError::Timeout { ranks, .. } if ranks == &[1, 3]),
            "{error}"
        );
        let text = error.to_string();
        assert!(
            text.contains("rank 1; rank 3") && text.contains("Reply"),
            "{text}"
        );
    }
    drop(silent);
}

#[test]
fn another_exchange_at_the_same_time_is_named() {
    let _shared = shared();
    let results = everywhere(group(2), |rank, mut mesh| {
        let kind = if rank == 0 { Kind::Load } else { Kind::Drain };
        let result = mesh.all_gather(kind, b"x", later(LONG)).unwrap();
        (mesh, result)
    });
    let why = results[0].1[1].as_ref().unwrap_err().to_string();
    assert_eq!(why, "got Drain of check 1, expected Load of check 1");
}

#[test]
fn interrupt_ends_a_wait() {
    let _shared = shared();
    let (all, addresses) = listeners(2);
    let (asked, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let state = Arc::new((asked, stop));
    let addresses = &addresses;
    let meshes = everywhere(all, |rank, listener| {
        let state = state.clone();
        let interrupt: Interrupt = Arc::new(move || {
            state.0.store(rank == 0, Ordering::SeqCst);
            state.1.load(Ordering::SeqCst)
        });
        listener
            .connect(rank, addresses, later(LONG), interrupt)
            .unwrap()
    });
    let mut meshes = meshes.into_iter();
    let (mut first, second) = (meshes.next().unwrap(), meshes.next().unwrap());
    state.0.store(false, Ordering::SeqCst);
    let stopped = Mutex::new(None);
    thread::scope(|scope| {
        let waits = scope.spawn(|| first.all_gather(Kind::Load, b"x", later(LONG)));
        while !state.0.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        *stopped.lock().unwrap() = Some(Instant::now());
        state.1.store(true, Ordering::SeqCst);
        let error = waits.join().unwrap().unwrap_err();
        assert!(matches!(error, ControlError::Interrupted(_)), "{error}");
    });
    let took = stopped.lock().unwrap().unwrap().elapsed();
    // Between two looks pass 100 ms; the rest is for a busy machine.
    assert!(took < Duration::from_secs(2), "{took:?}");
    drop(second);
}

#[test]
fn whoever_is_interrupted_stops_before_the_others_are_through() {
    let _shared = shared();
    let (all, addresses) = listeners(2);
    let stop = AtomicBool::new(false);
    let stop = Arc::new(stop);
    let addresses = &addresses;
    let meshes = everywhere(all, |rank, listener| {
        let stop = stop.clone();
        let interrupt: Interrupt = Arc::new(move || rank == 0 && stop.load(Ordering::SeqCst));
        listener
            .connect(rank, addresses, later(LONG), interrupt)
            .unwrap()
    });
    stop.store(true, Ordering::SeqCst);
    let results = gather(meshes, Kind::Load);
    let error = |rank: usize| results[rank].1.as_ref().unwrap_err();
    assert!(matches!(error(0), ControlError::Interrupted(_)));
    assert!(matches!(error(1), ControlError::Gone { rank: 0, .. }));
}

#[test]
fn an_engine_that_fails_because_of_a_peer_names_it() {
    let _shared = shared();
    // Rank 1 dies without a word; rank 2 notices and says so before rank 0 asks.
    let mut meshes = group(3);
    drop(meshes.remove(1));
    let asked = |mesh: &mut Mesh| mesh.news(LONG).unwrap();
    for at in [1, 0] {
        let error = asked(&mut meshes[at]);
        assert!(
            matches!(error, ControlError::Gone { rank: 1, .. }),
            "{error}"
        );
    }
    // Nobody else has gone: the rank is the culprit itself, and its peers hear why.
    let mut meshes = group(2);
    assert!(meshes[0].news(Duration::ZERO).is_none());
    meshes[0].leave("no memory");
    let error = asked(&mut meshes[1]);
    assert!(
        matches!(error, ControlError::Gone { rank: 0, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("no memory"), "{error}");
}

#[test]
fn rank_that_leaves_is_named_with_its_reason() {
    let _shared = shared();
    let mut meshes = group(3);
    meshes[2].leave("no more work");
    let results = gather(meshes, Kind::Load);
    for (_, result) in &results {
        let error = result.as_ref().unwrap_err();
        assert!(
            matches!(error, ControlError::Gone { rank: 2, .. }),
            "{error}"
        );
        assert!(error.to_string().contains("no more work"), "{error}");
    }
    // Once left is left: the same error again, without a wait.
    let meshes = results.into_iter().map(|(mesh, _)| mesh).collect();
    for (_, result) in gather(meshes, Kind::Load) {
        assert!(matches!(result, Err(ControlError::Gone { rank: 2, .. })));
    }
}

#[test]
fn interrupt_ends_a_connection() {
    let _shared = shared();
    for rank in 0..2 {
        let (mut all, mut addresses) = listeners(2);
        addresses[0] = "127.0.0.1:1".into();
        let listener = all.remove(rank as usize);
        let error = listener.connect(rank, &addresses, later(LONG), Arc::new(|| true));
        let error = error.unwrap_err();
        assert!(matches!(error, ControlError::Interrupted(_)), "{error}");
    }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn no_socket_is_left() {
    let _alone = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    let before = open_files();
    for _ in 0..3 {
        // A group that ends well, one that ends with an error, one that never came to be.
        drop(gather(group(4), Kind::Load));
        drop(gather(
            with_fault(3, "rank=1,kind=Load,action=header"),
            Kind::Load,
        ));
        let (mut all, addresses) = listeners(2);
        let until = later(Duration::from_millis(20));
        all.truncate(1);
        let failed = all.pop().unwrap().connect(0, &addresses, until, never());
        assert!(failed.is_err());
    }
    assert_eq!(open_files(), before);
}
