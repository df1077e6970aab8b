//! Contract of the communicator: each collective moves the bytes it says, over any device memory; a
//! rank that does not take part costs the others no more than their limit; what is broken stays so
//! until it is made anew.

mod support;

use std::time::{Duration, Instant};

use seqshift::collective::{
    CollectiveError, Communicator, CommunicatorOptions, RootInfo, SendRecv,
};
use seqshift::device::{DeviceBuffer, Stream};
use support::fault::Faults;
use support::{LONG, Rank, group, pattern, runtime};

fn filled(rank: &Rank, stream: &Stream, bytes: &[u8]) -> DeviceBuffer {
    let mut buffer = DeviceBuffer::new(&rank.runtime, bytes.len()).expect("memory");
    buffer
        .write(0, bytes, stream, LONG)
        .expect("the copy is possible");
    buffer
}

#[test]
fn all_gather_collects_every_ranks_bytes_in_order() {
    let _faults = Faults::begin();
    group(3, |rank| {
        let stream = Stream::new(&rank.runtime).expect("a stream");
        let send = filled(&rank, &stream, &pattern(u64::from(rank.rank), 1000));
        let mut receive = DeviceBuffer::new(&rank.runtime, 3000).expect("memory");
        let gather = |receive: &mut DeviceBuffer, length| {
            rank.communicator
                .all_gather(&send, receive, length, &stream, LONG)
        };
        gather(&mut receive, 1000).expect("all ranks take part");
        let expected: Vec<u8> = (0..3).flat_map(|from| pattern(from, 1000)).collect();
        assert_eq!(
            receive.read(0, 3000, &stream, LONG).expect("readable"),
            expected
        );
        assert!(matches!(
            gather(&mut receive, 1001),
            Err(CollectiveError::Device(_))
        ));
        rank.communicator
            .barrier(&stream, LONG)
            .expect("all ranks take part");
        rank.communicator.async_error().expect("all is well");
    });
}

#[test]
fn all_to_all_v_takes_any_counts() {
    let _faults = Faults::begin();
    let count = |from: u32, to: u32| u64::from((from * 7 + to * 3) % 5) * 100;
    let part = |from: u32, to: u32| {
        pattern(
            u64::from(from * 10 + to),
            usize::try_from(count(from, to)).expect("small"),
        )
    };
    group(3, |rank| {
        let stream = Stream::new(&rank.runtime).expect("a stream");
        let bytes: Vec<u8> = (0..3).flat_map(|to| part(rank.rank, to)).collect();
        let expected: Vec<u8> = (0..3).flat_map(|from| part(from, rank.rank)).collect();
        let send = filled(&rank, &stream, &bytes);
        let mut receive = DeviceBuffer::new(&rank.runtime, expected.len()).expect("memory");
        let send_counts: Vec<u64> = (0..3).map(|to| count(rank.rank, to)).collect();
        let receive_counts: Vec<u64> = (0..3).map(|from| count(from, rank.rank)).collect();
        let mut exchange = |counts: &[u64]| {
            let theirs = &receive_counts;
            rank.communicator
                .all_to_all_v(&send, counts, &mut receive, theirs, &stream, LONG)
        };
        let error = exchange(&[0, 1 << 40, 0]).expect_err("the buffer is smaller");
        assert!(
            error
                .to_string()
                .starts_with("send_counts is [0, 1099511627776, 0]"),
            "{error}"
        );
        exchange(&send_counts).expect("all ranks take part");
        let length = expected.len();
        assert_eq!(
            receive.read(0, length, &stream, LONG).expect("readable"),
            expected
        );
    });
}

#[test]
fn batched_sends_and_receives_run_together() {
    let _faults = Faults::begin();
    let length = 3 << 20;
    group(3, |rank| {
        let stream = Stream::new(&rank.runtime).expect("a stream");
        let peers: Vec<u32> = (0..3).filter(|peer| *peer != rank.rank).collect();
        let send = filled(&rank, &stream, &pattern(u64::from(rank.rank), length));
        let receive = DeviceBuffer::new(&rank.runtime, 2 * length).expect("memory");
        // Sends first everywhere: they must not block.
        let sends = peers.iter().map(|peer| SendRecv::Send {
            peer: *peer,
            pointer: send.as_ptr(),
            length,
        });
        let receives = peers
            .iter()
            .enumerate()
            .map(|(index, peer)| SendRecv::Recv {
                peer: *peer,
                pointer: receive.as_ptr().wrapping_add(index * length),
                length,
            });
        let items: Vec<_> = sends.chain(receives).collect();
        // SAFETY: both buffers outlive the wait.
        unsafe { rank.communicator.batch_send_recv(&items, &stream) }.expect("enqueued");
        rank.communicator
            .wait("the batch", &stream, LONG)
            .expect("all peers take part");
        for (index, peer) in peers.iter().enumerate() {
            let got = receive
                .read(index * length, length, &stream, LONG)
                .expect("readable");
            assert!(got == pattern(u64::from(*peer), length), "from rank {peer}");
        }
    });
}

#[test]
fn an_absent_peer_costs_no_more_than_the_limit_and_breaks_the_communicator() {
    let _faults = Faults::begin();
    group(2, |rank| {
        if rank.rank == 0 {
            let stream = Stream::new(&rank.runtime).expect("a stream");
            let start = Instant::now();
            let limit = Duration::from_millis(300);
            let error = rank
                .communicator
                .barrier(&stream, limit)
                .expect_err("rank 1 is absent");
            assert!(
                matches!(
                    error,
                    CollectiveError::Timeout {
                        what: "a barrier",
                        ..
                    }
                ),
                "{error}"
            );
            assert!(start.elapsed() >= limit && start.elapsed() < LONG / 2);
            assert!(rank.communicator.is_broken());
            let stream = Stream::new(&rank.runtime).expect("a stream");
            let again = rank.communicator.barrier(&stream, LONG);
            assert!(matches!(again, Err(CollectiveError::Broken)));
        }
        rank.barrier.wait();
    });
}

#[test]
fn joining_without_the_others_ends_with_the_limit() {
    let _faults = Faults::begin();
    let runtime = runtime(0);
    let root = RootInfo::create(&runtime).expect("a root info can be made");
    let options = CommunicatorOptions {
        ranks: 2,
        rank: 0,
        buffer_mib: 1,
        name: "alone".into(),
    };
    let start = Instant::now();
    let limit = Duration::from_millis(300);
    let error = Communicator::connect(&runtime, &root, &options, limit).expect_err("nobody comes");
    assert!(
        matches!(
            error,
            CollectiveError::Timeout {
                what: "joining",
                ..
            }
        ),
        "{error}"
    );
    assert!(start.elapsed() < LONG / 2);
}

#[test]
fn impossible_options_are_named() {
    let _faults = Faults::begin();
    let runtime = runtime(0);
    let root = RootInfo::create(&runtime).expect("a root info can be made");
    let good = CommunicatorOptions {
        ranks: 2,
        rank: 0,
        buffer_mib: 1,
        name: "x".into(),
    };
    let cases = [
        (
            CommunicatorOptions {
                ranks: 0,
                ..good.clone()
            },
            "ranks is 0",
        ),
        (
            CommunicatorOptions {
                rank: 2,
                ..good.clone()
            },
            "rank is 2",
        ),
        (
            CommunicatorOptions {
                buffer_mib: 0,
                ..good.clone()
            },
            "buffer_mib is 0",
        ),
        (
            CommunicatorOptions {
                name: "n".repeat(128),
                ..good.clone()
            },
            "name is nnnn",
        ),
        (
            CommunicatorOptions {
                name: "a\0b".into(),
                ..good
            },
            "name is a",
        ),
    ];
    for (options, expected) in cases {
        let error = Communicator::connect(&runtime, &root, &options, LONG).expect_err(expected);
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    let error = RootInfo::try_from(&[0_u8; 100][..]).expect_err("too short");
    assert!(
        error.to_string().contains("100") && error.to_string().contains("4108"),
        "{error}"
    );
}
