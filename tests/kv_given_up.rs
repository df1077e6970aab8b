//! Contract of what is given up in the middle: a wait for an engine that hangs ends with the
//! exchange; a stream that was aborted takes nothing with it that later exchanges need, and none
//! uses it again.

mod support;

use std::time::{Duration, Instant};

use seqshift::device::{CopyKind, DeviceBuffer, Stream};
use seqshift::ffi;
use seqshift::kv::Strategy;
use support::fault::{Fault, Faults};
use support::pair::{Pair, all_is_well, errors};
use support::{LONG, deadline, group};

/// More failures than indices of kernels are kept, each with an index in use.
#[test]
fn kernels_go_on_after_streams_were_aborted() {
    let faults = Faults::begin();
    group(2, |mut rank| {
        let mut pair = Pair::new(&rank, false);
        pair.transfer.set_strategy(Some(Strategy::Kernels));
        for _ in 0..10 {
            rank.barrier.wait();
            if rank.rank == 0 {
                faults.rules().clear();
                faults.rules().arm("aclnnIndexSelect", 1, 1, Fault::Stall);
            }
            rank.reconnect();
            let report = pair.exchange(&rank, Instant::now() + Duration::from_millis(100));
            assert!(report.broken.is_some());
        }
        rank.barrier.wait();
        faults.rules().clear();
        rank.reconnect();
        let before = pair.transfer.counts();
        all_is_well(&rank, &mut pair);
        let after = pair.transfer.counts();
        assert!(after.kernels > before.kernels && after.copies == before.copies);
    });
}

#[test]
fn without_a_new_stream_moves_fail_and_the_next_exchange_is_well() {
    let faults = Faults::begin();
    group(2, |rank| {
        let mut pair = Pair::in_rounds(&rank, false);
        rank.barrier.wait();
        if rank.rank == 0 {
            let code = i64::from(ffi::CANN_RT_INTERNAL);
            faults
                .rules()
                .arm("aclrtMemcpyAsync", 1, 1, Fault::FailTask(code));
            let refused = Fault::Return(code);
            faults
                .rules()
                .arm("aclrtCreateStreamWithConfig", 1, 1, refused);
        }
        rank.barrier.wait();
        if rank.rank == 1 {
            faults.rules().await_hits(1);
        }
        let report = pair.exchange(&rank, deadline());
        assert_eq!(report.broken, None);
        if rank.rank == 0 {
            let [Some(first), Some(second)] = errors(&report)[..] else {
                panic!("{report:?}")
            };
            assert!(first.starts_with("gather: "), "{first}");
            assert!(
                second.starts_with("gather: ") || second.starts_with("no stream "),
                "{second}"
            );
        }
        all_is_well(&rank, &mut pair);
    });
}

/// What is received into the cache waits for the engine on the host.
#[test]
fn a_wait_for_an_engine_that_hangs_ends_when_the_exchange_is_given_up() {
    let faults = Faults::begin();
    let rules = faults.rules();
    group(2, |rank| {
        let mut pair = Pair::direct(&rank);
        rank.barrier.wait();
        if rank.rank == 0 {
            return;
        }
        let engine = Stream::new(&rank.runtime).expect("a stream");
        let block = DeviceBuffer::new(&rank.runtime, 4096).expect("memory");
        rules.arm("aclrtMemcpyAsync", 1, 1, Fault::Stall);
        let (to, from) = (block.as_ptr(), block.as_ptr().wrapping_add(2048));
        // SAFETY: the buffer outlives the engine's work, which is waited for.
        unsafe { engine.copy(to, from, 2048, CopyKind::DeviceToDevice) }.expect("enqueued");
        // SAFETY: `engine` outlives the transfer's last exchange.
        let producer = unsafe { Stream::from_raw(&rank.runtime, engine.raw()) };
        pair.transfer.set_producer(Some(producer));
        let breaker = rank.communicator.breaker();
        let given_up = rules.after("aclrtStreamWaitEvent", 2, move || breaker.give_up());
        let start = Instant::now();
        let report = pair.exchange(&rank, deadline());
        assert!(report.broken.is_some() && errors(&report).iter().all(Option::is_some));
        assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
        given_up.join().expect("it was given up");
        rules.clear();
        engine.wait(LONG).expect("the engine is done");
        pair.transfer.set_producer(None);
    });
}
