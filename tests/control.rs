//! The control channel: ranks exchange payloads of any size without waiting for each other in
//! circles; strangers stay outside; damage is repaired where it can be and else bears the name of
//! the rank that it came from; nothing waits past its deadline, and no socket is left behind.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::thread;
use std::time::{Duration, Instant};

use seqshift::collective::control::{
    ControlError, Interrupt, Listener, Mesh, Received, SECRET, Tamper,
};
use seqshift::collective::fault::{Action, Fault};
use seqshift::wire::WireError;
use seqshift::wire::frame::{self, Kind};

const OURS: [u8; SECRET] = [7; SECRET];
const LONG: Duration = Duration::from_secs(60);
/// What "at once" may take on a machine with better things to do.
const SOON: Duration = Duration::from_secs(10);

/// Held for reading by every test, for writing by the one that counts sockets.
static SOCKETS: RwLock<()> = RwLock::new(());

fn shared() -> RwLockReadGuard<'static, ()> {
    SOCKETS.read().unwrap_or_else(PoisonError::into_inner)
}

fn later(time: Duration) -> Instant {
    Instant::now() + time
}

fn never() -> Interrupt {
    Arc::new(|| false)
}

/// Listeners and their addresses, by rank.
fn listeners(ranks: u32) -> (Vec<Listener>, Vec<String>) {
    let all: Vec<_> = (0..ranks).map(|_| Listener::bind(OURS).unwrap()).collect();
    let addresses = all
        .iter()
        .map(|l| format!("127.0.0.1:{}", l.port().unwrap()))
        .collect();
    (all, addresses)
}

/// Runs `act` on every item in a thread of its own; results in order.
fn everywhere<T: Send, R: Send>(items: Vec<T>, act: impl Fn(u32, T) -> R + Copy + Send) -> Vec<R> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(items)
            .map(|(rank, item)| scope.spawn(move || act(rank, item)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn group(ranks: u32) -> Vec<Mesh> {
    let (all, addresses) = listeners(ranks);
    let addresses = &addresses;
    everywhere(all, |rank, listener| {
        listener
            .connect(rank, addresses, later(LONG), never())
            .unwrap()
    })
}

fn pattern(from: u32, to: u32, length: usize) -> Vec<u8> {
    let start = from * 31 + to * 7;
    (start..).take(length).map(|i| (i % 251) as u8).collect()
}

/// One gather of the ranks' own numbers; the meshes can go on afterwards.
fn gather(meshes: Vec<Mesh>, kind: Kind) -> Vec<(Mesh, Result<Vec<Received>, ControlError>)> {
    everywhere(meshes, |rank, mut mesh| {
        let result = mesh.all_gather(kind, &[rank as u8; 40], later(LONG));
        (mesh, result)
    })
}

fn whole(ranks: u32) -> Vec<Received> {
    (0..ranks).map(|r| Ok(vec![r as u8; 40])).collect()
}

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

fn with_fault(ranks: u32, text: &str) -> Vec<Mesh> {
    let fault: Fault = text.parse().unwrap();
    let mut meshes = group(ranks);
    for (rank, mesh) in (0..).zip(&mut meshes) {
        if let Some(tamper) = fault.clone().on(rank) {
            mesh.set_tamper(tamper);
        }
    }
    meshes
}

#[test]
fn damaged_stale_and_doubled_frames_change_nothing() {
    let _shared = shared();
    for fault in [
        "action=corrupt",
        "action=corrupt,times=3",
        "action=corrupt,nth=2,peer=0",
        "action=truncate",
        "action=version",
        "action=duplicate,times=9",
        "action=stale,nth=2,times=9",
        "action=reorder,nth=2,times=9",
        "action=delay,milliseconds=120",
    ] {
        let mut meshes = with_fault(3, &format!("rank=1,kind=Offer,{fault}"));
        for kind in [
            Kind::Load,
            Kind::Offer,
            Kind::Reply,
            Kind::Offer,
            Kind::Load,
        ] {
            let results = gather(meshes, kind);
            for (_, result) in &results {
                assert_eq!(*result.as_ref().unwrap(), whole(3), "{fault}");
            }
            meshes = results.into_iter().map(|(mesh, _)| mesh).collect();
        }
    }
}

#[test]
fn lasting_damage_is_the_entry_of_its_rank() {
    let _shared = shared();
    let results = gather(
        with_fault(3, "rank=1,kind=Offer,peer=2,action=corrupt,times=4"),
        Kind::Offer,
    );
    for (rank, (mesh, result)) in results.iter().enumerate() {
        let entries = result.as_ref().unwrap();
        let damaged = entries.iter().position(Result::is_err);
        assert_eq!(damaged, (rank == 2).then_some(1));
        // The sender knows it too.
        let refused: &[u32] = if rank == 1 { &[2] } else { &[] };
        assert_eq!(mesh.refused(), refused);
        if let Some(from) = damaged {
            assert!(matches!(entries[from], Err(WireError::Checksum { .. })));
        }
    }
    let meshes = results.into_iter().map(|(mesh, _)| mesh).collect();
    for (mesh, result) in gather(meshes, Kind::Offer) {
        assert_eq!(result.unwrap(), whole(3));
        assert!(mesh.refused().is_empty());
    }
}

#[test]
fn damaged_answers_change_nothing() {
    let _shared = shared();
    let answers = [
        "action=corrupt,times=9",
        "action=version",
        "action=drop",
        "action=duplicate,times=9",
        "action=stale,nth=2,times=9",
        "action=reorder,nth=2,times=9",
        "action=delay,milliseconds=120",
    ];
    for action in answers {
        for (kind, damage) in [("Ack", 0), ("Again", 2), ("Refused", 4)] {
            if kind == "Again" && action == "action=drop" {
                continue;
            }
            // What rank 1 sends is damaged so often, and so are the answers of rank 0.
            let mut meshes = with_fault(3, &format!("rank=0,kind={kind},{action}"));
            if damage > 0 {
                let text = format!("rank=1,kind=Offer,action=corrupt,times={damage}");
                let fault: Fault = text.parse().unwrap();
                meshes[1].set_tamper(fault.on(1).unwrap());
            }
            for round in [Kind::Offer, Kind::Load, Kind::Offer] {
                let results = gather(meshes, round);
                let lost = damage > 3
                    && round == Kind::Offer
                    && results[0].1.as_ref().unwrap()[1].is_err();
                for (rank, (mesh, result)) in results.iter().enumerate() {
                    let mut entries = result.as_ref().unwrap().clone();
                    if lost && rank != 1 {
                        entries[1] = whole(3).remove(1);
                    }
                    assert_eq!(entries, whole(3), "{kind}: {action}");
                    let refused: &[u32] = if lost && rank == 1 { &[0, 2] } else { &[] };
                    assert_eq!(mesh.refused(), refused, "{kind}: {action}");
                }
                meshes = results.into_iter().map(|(mesh, _)| mesh).collect();
            }
        }
    }
}

#[test]
fn answers_that_are_lost_for_good_end_at_the_deadline() {
    let _shared = shared();
    // Both copies; and a question, whose sender waits for the answer.
    for (fault, damage) in [
        ("Ack,action=drop,times=2", ""),
        ("Again,action=drop", "corrupt"),
    ] {
        let mut meshes = with_fault(2, &format!("rank=0,kind={fault}"));
        if !damage.is_empty() {
            let fault: Fault = format!("rank=1,kind=Load,action={damage}").parse().unwrap();
            meshes[1].set_tamper(fault.on(1).unwrap());
        }
        let results = everywhere(meshes, |rank, mut mesh| {
            mesh.all_gather(
                Kind::Load,
                &pattern(rank, 0, 9),
                later(Duration::from_secs(1)),
            )
        });
        let text = results[1].as_ref().unwrap_err().to_string();
        assert!(text.contains("rank 0"), "{fault}: {text}");
    }
}

/// Sets the exchange number of the next frame to a later one.
struct Early;

impl Tamper for Early {
    fn outgoing(&mut self, _: Kind, _: u32, mut frame: Vec<u8>) -> Vec<u8> {
        frame[8] += 1;
        frame
    }
}

#[test]
fn damaged_header_and_frames_from_the_future_end_the_exchange() {
    let _shared = shared();
    for header in [true, false] {
        let mut meshes = with_fault(2, "rank=1,kind=Offer,action=header");
        if !header {
            meshes[1].set_tamper(Box::new(Early));
        }
        let results = gather(meshes, Kind::Offer);
        let error = results[0].1.as_ref().unwrap_err();
        assert!(
            matches!(error, ControlError::Gone { rank: 1, .. }),
            "{error}"
        );
        let why = if header {
            "not a seqshift frame"
        } else {
            "exchange 2 in 1"
        };
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn lost_frame_ends_at_the_deadline() {
    let _shared = shared();
    let meshes = with_fault(2, "rank=1,kind=Load,action=drop");
    let results = everywhere(meshes, |_, mut mesh| {
        let result = mesh.all_gather(Kind::Load, b"x", later(Duration::from_millis(200)));
        (mesh, result)
    });
    for (rank, (_, result)) in (0..).zip(&results) {
        let error = result.as_ref().unwrap_err();
        assert!(
            matches!(error, ControlError::Timeout { ranks, .. } if ranks == &[1 - rank]),
            "{error}"
        );
    }
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

#[test]
fn faults_are_read_from_text() {
    let text = "rank=1,kind=offer,action=delay,milliseconds=250,nth=2,times=3,peer=0";
    let fault = Fault {
        rank: 1,
        kind: Kind::Offer,
        peer: Some(0),
        action: Action::Delay(Duration::from_millis(250)),
        nth: 2,
        times: 3,
    };
    assert_eq!(text.parse(), Ok(fault));
    for (text, blamed) in [
        ("rank=1,kind=Offer", "action is missing"),
        ("kind=Offer,action=drop", "rank is missing"),
        ("rank=1,action=drop", "kind is missing"),
        ("rank=x,kind=Offer,action=drop", "rank: \"x\" is no number"),
        (
            "rank=1,kind=Offers,action=drop",
            "kind: \"Offers\" is none of",
        ),
        (
            "rank=1,kind=Offer,action=lose",
            "action: \"lose\" is none of",
        ),
        (
            "rank=1,kind=Offer,action=drop,when=2",
            "unknown key \"when\"",
        ),
        ("rank", "\"rank\" is no key=value"),
    ] {
        let error = text.parse::<Fault>().unwrap_err();
        assert!(error.contains(blamed), "{error}");
    }
}
