//! Contract of an exchange beside an engine that still computes: nothing is read from the cache or
//! written into it before what the engine has enqueued is done, also on a stream that replaces one
//! that failed.

mod support;

use seqshift::device::{CopyKind, DeviceBuffer, Stream};
use seqshift::ffi;
use seqshift::kv::{Move, Strategy as Way, Transfer, TransferOptions};
use support::cache::Cache;
use support::fault::{Fault, Faults};
use support::{LONG, deadline, group, pattern};

/// The engine's kernel is a copy into block 0 that the mock holds back until the exchange waits.
/// The engine of the sender has enqueued the kernel that writes the block, the engine of the
/// receiver one that still reads where it will go; both are slow.
#[test]
fn an_exchange_starts_after_what_the_engines_have_enqueued() {
    for (length, way) in [(4096, None), (1 << 20, Some(Way::Direct))] {
        engines_are_waited_for(length, way);
    }
}

fn engines_are_waited_for(length: usize, way: Option<Way>) {
    let faults = Faults::begin();
    let rules = faults.rules();
    let meet = std::sync::Barrier::new(2);
    group(2, |rank| {
        let stream = Stream::new(&rank.runtime).expect("a stream");
        let engine = Stream::new(&rank.runtime).expect("a stream");
        let cache = Cache::new(&stream, rank.rank, 8, &[length as u64], 0);
        let old = cache.blocks(&cache.read(&stream), &[5]);
        let mut other = DeviceBuffer::new(&rank.runtime, length).expect("memory");
        other
            .write(0, &pattern(77, length), &stream, LONG)
            .expect("the copy is possible");
        let options = TransferOptions {
            chunk_bytes: 2 << 20,
            ..TransferOptions::new(&rank.runtime, 4 << 20, false)
        };
        // SAFETY: the cache outlives the transfer.
        let mut transfer =
            unsafe { Transfer::new(&rank.runtime, cache.layout.clone(), 2, options) }
                .expect("there is room");
        transfer.set_strategy(way);
        let peer = 1 - rank.rank;
        rank.barrier.wait();
        if rank.rank == 0 {
            rules.arm("aclrtMemcpyAsync", 1, 2, Fault::Stall);
        }
        rank.barrier.wait();
        let block = cache.buffers[0].as_ptr();
        let (to, from) = match rank.rank {
            0 => (block, other.as_ptr()),
            _ => (other.as_ptr(), block.wrapping_add(5 * length)),
        };
        // SAFETY: both buffers outlive the exchange, which waits for the engine.
        unsafe { engine.copy(to, from, length, CopyKind::DeviceToDevice) }.expect("enqueued");
        // SAFETY: `engine` outlives the transfer.
        let producer = unsafe { Stream::from_raw(&rank.runtime, engine.raw()) };
        transfer.set_producer(Some(producer));
        let release = (rank.rank == 0).then(|| rules.release_after("aclrtStreamWaitEvent", 4));
        meet.wait();
        let out = [Move { peer, blocks: &[0] }];
        let into = [Move { peer, blocks: &[5] }];
        let (out, into): (&[_], &[_]) = match rank.rank {
            0 => (&out, &[]),
            _ => (&[], &into),
        };
        let report = transfer.exchange(&rank.communicator, out, into, deadline());
        let outcomes = [&report.outbound[..], &report.inbound[..]].concat();
        assert_eq!((report.broken, &outcomes[0].error), (None, &None));
        assert_eq!(report.direct, way.map_or(0, |_| length as u64));
        if let Some(release) = release {
            release.join().expect("the stalls were released");
        } else {
            let got = cache.blocks(&cache.read(&stream), &[5]);
            assert!(
                got == pattern(77, length),
                "the block was read before the engine wrote it"
            );
            let read = other.read(0, length, &stream, LONG).expect("readable");
            assert!(
                read == old,
                "the block was overwritten before the engine had read it"
            );
        }
        rank.barrier.wait();
    });
}

/// The engine of one rank writes all its blocks, slowly; the first mark of that rank's copies is
/// refused, or its copies' wait for the engine fails. What is well at both ends has the right bytes.
#[test]
fn a_stream_that_replaces_another_waits_for_the_engine_too() {
    for verify in [true, false] {
        // The engine's record is the first; then the waits of two streams, and that of a third.
        let refused = Fault::Return(i64::from(ffi::CANN_RT_INTERNAL));
        replaced_while_an_engine_writes(verify, 0, ("aclrtRecordEvent", 2, refused), 3);
        // The scatter's comes after the gather's; a call that meets a rule is not counted by others.
        let fails = || Fault::FailTask(i64::from(ffi::CANN_RT_INTERNAL));
        replaced_while_an_engine_writes(verify, 1, ("aclrtStreamWaitEvent", 2, fails()), 2);
        replaced_while_an_engine_writes(verify, 0, ("aclrtStreamWaitEvent", 1, fails()), 2);
    }
}

/// `fault` is a symbol, the number of its call, and what happens there; the engine goes on after so
/// many `waits` for it.
fn replaced_while_an_engine_writes(
    verify: bool,
    writer: u32,
    fault: (&str, u64, Fault),
    waits: u64,
) {
    const BLOCK: usize = 4096;
    const MOVES: u32 = 6;
    let faults = Faults::begin();
    let rules = faults.rules();
    let armed = std::sync::Mutex::new(Some(fault));
    let all = group(2, |rank| {
        let stream = Stream::new(&rank.runtime).expect("a stream");
        let engine = Stream::new(&rank.runtime).expect("a stream");
        let cache = Cache::new(&stream, rank.rank, 16, &[BLOCK as u64], 0);
        let before = cache.read(&stream);
        let mut other = DeviceBuffer::new(&rank.runtime, 16 * BLOCK).expect("memory");
        let written = pattern(77, 16 * BLOCK);
        (other.write(0, &written, &stream, LONG)).expect("the copy is possible");
        // Each move is a round.
        let options = TransferOptions {
            staging_bytes: 4 * BLOCK as u64,
            chunk_bytes: BLOCK as u64,
            verify,
        };
        // SAFETY: the cache outlives the transfer.
        let mut transfer =
            unsafe { Transfer::new(&rank.runtime, cache.layout.clone(), 2, options) }
                .expect("there is room");
        rank.barrier.wait();
        let release = (rank.rank == writer).then(|| {
            rules.arm("aclrtMemcpyAsync", 1, 1, Fault::Stall);
            let (to, from, length) = (cache.buffers[0].as_ptr(), other.as_ptr(), 16 * BLOCK);
            // SAFETY: both buffers outlive the exchange, which waits for the engine.
            unsafe { engine.copy(to, from, length, CopyKind::DeviceToDevice) }.expect("enqueued");
            // SAFETY: `engine` outlives the transfer.
            let producer = unsafe { Stream::from_raw(&rank.runtime, engine.raw()) };
            transfer.set_producer(Some(producer));
            let fault = armed.lock().expect("nobody has panicked").take();
            let (symbol, call, fault) = fault.expect("one rank is the writer");
            rules.arm(symbol, call, 1, fault);
            rules.release_after("aclrtStreamWaitEvent", waits)
        });
        rank.barrier.wait();
        // Calls of both ranks are counted: the other one comes after the fault.
        if rank.rank != writer {
            rules.await_hits(2);
        }
        let blocks: Vec<u32> = (0..MOVES).map(|i| 8 * rank.rank + i).collect();
        let moves: Vec<_> = blocks
            .chunks(1)
            .map(|blocks| Move {
                peer: 1 - rank.rank,
                blocks,
            })
            .collect();
        let (out, into): (&[_], &[_]) = match rank.rank {
            0 => (&moves, &[]),
            _ => (&[], &moves),
        };
        let report = transfer.exchange(&rank.communicator, out, into, deadline());
        assert_eq!(report.broken, None);
        if let Some(release) = release {
            release.join().expect("the stall was released");
        }
        engine.wait(LONG).expect("the engine is done");
        rank.barrier.wait();
        let sent = match rank.rank == writer {
            true => cache.blocks(std::slice::from_ref(&written), &blocks),
            false => cache.blocks(&before, &blocks),
        };
        let outcomes = [report.outbound, report.inbound].concat();
        (outcomes, sent, cache.blocks(&cache.read(&stream), &blocks))
    });
    let [source, target] = &all[..] else {
        panic!("two ranks")
    };
    let mut well = 0;
    for index in 0..MOVES as usize {
        let (sent, got) = (&source.0[index], &target.0[index]);
        if sent.error.is_none() && got.error.is_none() && sent.digest == got.digest {
            let bytes = index * BLOCK..(index + 1) * BLOCK;
            let same = source.1[bytes.clone()] == target.2[bytes];
            assert!(same, "move {index}, verify {verify}, writer {writer}");
            well += 1;
        }
    }
    assert!(
        well > 0 && well < MOVES,
        "{well} of {MOVES} moves were well"
    );
}
