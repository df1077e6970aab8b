//! A peer that knows the group's secret and floods it costs an exchange neither more than its deadline
//! nor much memory: frames are repeated a few times only, whatever it asks for, and what is dropped is
//! dropped as fast as it comes.

mod control_support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use control_support::*;
use seqshift::collective::control::ControlError;
use seqshift::wire::frame::{self, Kind};

const DEADLINE: Duration = Duration::from_secs(1);

/// Rank 0 sends `payload` bytes in its first exchange, while rank 1 sends the frame again and again,
/// until the connection ends or it has been sent so many `times`. Returns how many bytes rank 1 got.
fn flooded(payload: usize, frame: &[u8], times: usize) -> usize {
    let _shared = shared();
    let (mut all, addresses) = listeners(2);
    let listener = all.remove(0);
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let mut stream = TcpStream::connect(&addresses[0]).expect("rank 0 listens");
            let hello = [&OURS[..], &1_u32.to_le_bytes()].concat();
            stream
                .write_all(&frame::seal(Kind::Hello, 0, &hello))
                .expect("rank 0 is there");
            let mut reading = stream.try_clone().expect("one more handle");
            let got = scope.spawn(move || {
                let (mut buffer, mut got) = (vec![0; 1 << 20], 0);
                while let Ok(count @ 1..) = reading.read(&mut buffer) {
                    got += count;
                }
                got
            });
            let some = frame.repeat(1000);
            for _ in 0..times.div_ceil(1000) {
                if stream.write_all(&some).is_err() {
                    break;
                }
            }
            // Rank 0 closes.
            let got = got.join().expect("it only counts");
            let _ = stream.shutdown(Shutdown::Both);
            got
        });
        let mesh = listener.connect(0, &addresses, later(LONG), never());
        let mut mesh = mesh.expect("rank 1 has said hello");
        let start = Instant::now();
        let result = mesh.all_gather(Kind::Load, &vec![1; payload], start + DEADLINE);
        let took = start.elapsed();
        let Err(ControlError::Timeout { ranks, .. }) = result else {
            panic!("{:?}", result.map(|_| "something was received"))
        };
        assert_eq!(ranks, [1]);
        assert!(took < SOON / 2, "{took:?}");
        drop(mesh);
        peer.join().expect("it has not panicked")
    })
}

#[test]
fn a_frame_is_repeated_a_few_times_only() {
    const PAYLOAD: usize = 1 << 20;
    let got = flooded(PAYLOAD, &frame::seal(Kind::Again, 1, &[]), 2000);
    assert!((PAYLOAD..10 * PAYLOAD).contains(&got), "{got} bytes");
}

#[test]
fn frames_that_are_dropped_do_not_hold_up_the_deadline() {
    // Of an exchange before the first one; more than can be dropped within the deadline.
    flooded(40, &frame::seal(Kind::Load, 0, &[]), usize::MAX - 1000);
}
