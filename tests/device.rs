//! Contract of the device layer: what is enqueued on a stream runs in order and asynchronously;
//! every wait keeps its limit; errors carry the symbol, the raw code and CANN's own message; a
//! runtime in a process where CANN runs already is no owner; nothing that is dropped is left
//! behind.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use seqshift::device::{
    CopyKind, DeviceBuffer, DeviceError, Event, HostBuffer, Registration, Runtime, Stream,
};
use seqshift::ffi;
use support::fault::{Fault, Faults};
use support::{LONG, pattern, runtime};

#[test]
fn bytes_come_back_from_the_device_and_ranges_are_checked() {
    let _faults = Faults::begin();
    let runtime = runtime(0);
    let stream = Stream::new(&runtime).expect("a stream");
    let mut buffer = DeviceBuffer::new(&runtime, 1000).expect("memory");
    let bytes = pattern(1, 500);
    buffer
        .write(100, &bytes, &stream, LONG)
        .expect("the copy is possible");
    assert_eq!(
        buffer
            .read(100, 500, &stream, LONG)
            .expect("the copy is possible"),
        bytes
    );
    assert_eq!(
        buffer
            .read(1000, 0, &stream, LONG)
            .expect("nothing to copy"),
        Vec::<u8>::new()
    );
    let error = buffer
        .read(600, 401, &stream, LONG)
        .expect_err("beyond the end");
    assert!(
        matches!(
            error,
            DeviceError::Range {
                offset: 600,
                length: 401,
                capacity: 1000
            }
        ),
        "{error}"
    );
    assert!(buffer.write(usize::MAX, &bytes, &stream, LONG).is_err());
    assert!(buffer.slice(0..1001).is_err());
}

#[test]
fn streams_wait_for_events_of_others_and_keep_order() {
    let _faults = Faults::begin();
    let runtime = runtime(0);
    let (first, second) = (
        Stream::new(&runtime).expect("one"),
        Stream::new(&runtime).expect("two"),
    );
    let length = 1 << 20;
    let mut source = DeviceBuffer::new(&runtime, length).expect("memory");
    let bytes = pattern(2, length);
    source
        .write(0, &bytes, &first, LONG)
        .expect("the copy is possible");
    let middle = DeviceBuffer::new(&runtime, length).expect("memory");
    let host = HostBuffer::new(&runtime, length).expect("memory");
    let (start, copied) = (
        Event::timed(&runtime).expect("one"),
        Event::timed(&runtime).expect("two"),
    );
    first.record(&start).expect("recorded");
    // SAFETY: all buffers outlive the wait below.
    unsafe {
        let on = CopyKind::DeviceToDevice;
        first
            .copy(middle.as_ptr(), source.as_ptr(), length, on)
            .expect("enqueued");
        first.record(&copied).expect("recorded");
        second.wait_event(&copied).expect("enqueued");
        let back = CopyKind::DeviceToHost;
        second
            .copy(host.as_ptr(), middle.as_ptr(), length, back)
            .expect("enqueued");
    }
    second.wait(LONG).expect("both copies are done");
    assert_eq!(host.as_slice(), bytes);
    first.wait(LONG).expect("it has nothing left to do");
    assert!(copied.is_complete().expect("it can be asked") && first.is_idle().expect("likewise"));
    assert!(copied.since(&start).expect("both are complete") < LONG);
}

#[test]
fn waits_keep_their_limit_and_a_stream_can_be_aborted() {
    let faults = Faults::begin();
    let runtime = runtime(0);
    let stream = Stream::new(&runtime).expect("a stream");
    let event = Event::new(&runtime).expect("an event");
    let buffer = DeviceBuffer::new(&runtime, 64).expect("memory");
    faults.arm("aclrtMemcpyAsync", 1, 1, Fault::Stall);
    // SAFETY: both halves are in a buffer that outlives the abort.
    unsafe {
        let to = buffer.as_ptr().wrapping_add(32);
        stream
            .copy(to, buffer.as_ptr(), 32, CopyKind::DeviceToDevice)
            .expect("enqueued");
    }
    stream.record(&event).expect("enqueued");
    let limit = Duration::from_millis(50);
    for wait in [stream.wait(limit), event.wait(limit)] {
        let start = Instant::now();
        let error = wait.expect_err("the copy is stalled");
        assert!(error.is_timeout(), "{error}");
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    assert!(!event.is_complete().expect("it can be asked"));
    assert!(!stream.is_idle().expect("it can be asked"));
    stream.abort().expect("the stream can be aborted");
}

#[test]
fn errors_carry_symbol_code_and_message() {
    let faults = Faults::begin();
    let runtime = runtime(0);
    let huge = DeviceBuffer::new(&runtime, 1 << 50).expect_err("there is not so much memory");
    assert!(huge.is_out_of_memory(), "{huge}");
    assert!(
        huge.to_string()
            .starts_with("aclrtMalloc failed with code "),
        "{huge}"
    );
    let stream = Stream::new(&runtime).expect("a stream");
    let ours = [0_u8; 64];
    // SAFETY: the mock refuses memory that is not the device's.
    let error = unsafe {
        let pointer = ours.as_ptr().cast_mut();
        stream.copy(pointer, pointer, 32, CopyKind::DeviceToDevice)
    }
    .expect_err("host memory is no device memory");
    let DeviceError::Call {
        symbol,
        code,
        message,
    } = &error
    else {
        panic!("{error:?}")
    };
    assert_eq!(*symbol, "aclrtMemcpyAsync");
    assert!(*code != 0 && !message.is_empty(), "{error:?}");
    faults.arm(
        "aclrtMemcpyAsync",
        1,
        1,
        Fault::FailTask(i64::from(ffi::CANN_RT_INTERNAL)),
    );
    let buffer = DeviceBuffer::new(&runtime, 64).expect("memory");
    let error = buffer
        .read(0, 64, &stream, LONG)
        .expect_err("the task fails");
    assert_eq!(error.code(), Some(ffi::CANN_RT_INTERNAL));
}

#[test]
fn a_second_runtime_is_no_owner_and_does_not_end_cann() {
    let _faults = Faults::begin();
    let first = runtime(0);
    let second = runtime(1);
    assert!(!second.is_owner());
    assert_eq!(second.device(), 1);
    assert!(first.device_count().expect("it can be asked") >= 2);
    assert!(!second.finalize().expect("nothing is done"));
    let memory = first.memory().expect("CANN still runs");
    assert!(memory.free > 0 && memory.free <= memory.total);
    assert!(first.chip().is_some_and(|chip| chip.starts_with("Ascend")));
    assert!(first.version().is_some());
}

#[test]
fn a_thread_that_chose_another_device_is_brought_back() {
    let _faults = Faults::begin();
    let (first, second) = (runtime(0), runtime(1));
    let buffer = DeviceBuffer::new(&first, 64).expect("memory");
    second.bind().expect("another device");
    let stream = Stream::new(&first).expect("a stream of the first device");
    second.bind().expect("another device");
    buffer
        .read(0, 64, &stream, LONG)
        .expect("the copy runs on the first device");
}

#[test]
fn device_memory_is_given_back() {
    let _faults = Faults::begin();
    let runtime = runtime(3);
    let free = |runtime: &Arc<Runtime>| runtime.memory().expect("it can be asked").free;
    let before = free(&runtime);
    let buffers: Vec<_> = (0..8)
        .map(|_| DeviceBuffer::new(&runtime, 1 << 20).expect("memory"))
        .collect();
    assert!(free(&runtime) <= before - 8 * (1 << 20));
    drop(buffers);
    assert_eq!(free(&runtime), before);
}

#[test]
fn registered_host_memory_is_device_memory_until_dropped() {
    let _faults = Faults::begin();
    let runtime = runtime(0);
    let stream = Stream::new(&runtime).expect("a stream");
    let mut ours = pattern(3, 4096);
    let expected = ours.clone();
    let pointer = ours.as_mut_ptr();
    let target = DeviceBuffer::new(&runtime, 4096).expect("memory");
    let copy = || {
        // SAFETY: both live until the wait; the mock refuses what is not the device's.
        unsafe { stream.copy(target.as_ptr(), pointer, 4096, CopyKind::DeviceToDevice) }
            .and_then(|()| stream.wait(LONG))
    };
    assert!(copy().is_err());
    // SAFETY: `ours` outlives the registration.
    let registration = unsafe { Registration::new(&runtime, pointer, 4096) }
        .expect("the memory can be registered")
        .expect("this is the mock");
    copy().expect("now it is the device's");
    assert_eq!(
        target
            .read(0, 4096, &stream, LONG)
            .expect("the copy is possible"),
        expected
    );
    drop(registration);
    assert!(copy().is_err());
}

#[test]
fn a_foreign_stream_is_used_but_not_destroyed() {
    let _faults = Faults::begin();
    let runtime = runtime(0);
    let theirs = Stream::new(&runtime).expect("a stream");
    // SAFETY: `theirs` outlives it.
    let wrapped = unsafe { Stream::from_raw(&runtime, theirs.raw()) };
    let event = Event::new(&runtime).expect("an event");
    wrapped.record(&event).expect("it can be used");
    wrapped.abort().expect("nothing is done");
    drop(wrapped);
    theirs.wait(LONG).expect("it is still there");
    assert!(event.is_complete().expect("it can be asked"));
}
