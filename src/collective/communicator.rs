//! One communicator of our own.

use std::ffi::{CString, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::error::hccl;
use super::{CollectiveError, RootInfo};
use crate::device::{DeviceBuffer, DeviceError, Event, Runtime, Stream};
use crate::ffi;

/// How often a wait asks HCCL whether a link has failed meanwhile.
const PROBE: Duration = Duration::from_millis(200);

/// A rank's place in a new communicator. All but `rank` is the same on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommunicatorOptions {
    /// Number of ranks.
    pub ranks: u32,
    /// This rank.
    pub rank: u32,
    /// HCCL's buffer in MiB; HCCL takes it twice, once per direction.
    pub buffer_mib: u32,
    /// A name for HCCL's logs, at most 127 bytes, of no other communicator that lives.
    pub name: String,
}

/// One item of [`Communicator::batch_send_recv`]: bytes on the device, to or from a peer.
#[derive(Clone, Copy, Debug)]
pub enum SendRecv {
    /// Bytes for a peer.
    Send {
        /// The receiving rank.
        peer: u32,
        /// First byte, on the device.
        pointer: *const u8,
        /// Bytes.
        length: usize,
    },
    /// Bytes from a peer.
    Recv {
        /// The sending rank.
        peer: u32,
        /// Where to, on the device.
        pointer: *mut u8,
        /// Bytes.
        length: usize,
    },
}

impl SendRecv {
    fn raw(&self) -> ffi::CannHcclSendRecv {
        let (direction, peer, buffer, length) = match *self {
            Self::Send {
                peer,
                pointer,
                length,
            } => (ffi::CANN_HCCL_SEND, peer, pointer.cast_mut(), length),
            Self::Recv {
                peer,
                pointer,
                length,
            } => (ffi::CANN_HCCL_RECV, peer, pointer, length),
        };
        ffi::CannHcclSendRecv {
            direction,
            buffer: buffer.cast(),
            count: length as u64,
            type_: ffi::CANN_HCCL_TYPE_UINT8,
            peer,
        }
    }
}

/// A communicator handle on its way between threads.
struct Handle(ffi::CannHcclHandle);

// SAFETY: HCCL's handles belong to the process, not to a thread.
unsafe impl Send for Handle {}

/// A communicator: the same calls in the same order on every rank.
///
/// Bytes travel as `uint8`, whatever they mean. A call that fails, or does not finish in time,
/// breaks the communicator: all later calls return [`CollectiveError::Broken`].
#[derive(Debug)]
pub struct Communicator {
    runtime: Arc<Runtime>,
    handle: ffi::CannHcclHandle,
    rank: u32,
    ranks: u32,
    broken: Arc<AtomicBool>,
}

/// Breaks a communicator that another thread uses.
#[derive(Clone, Debug)]
pub struct Breaker(Arc<AtomicBool>);

impl Breaker {
    /// As [`Communicator::give_up`]: whoever waits for the communicator's work stops soon.
    pub fn give_up(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// SAFETY: HCCL's handles belong to the process, not to a thread; each call binds the device.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Joins the communicator; returns once all ranks have.
    ///
    /// HCCL has no limit of the caller's for this, so the call runs on a thread of its own. If the
    /// limit passes, that thread is left to HCCL's own connect timeout, and destroys what it got.
    ///
    /// # Errors
    /// [`CollectiveError::Timeout`] after `limit`, [`CollectiveError::Invalid`] for impossible
    /// options, [`CollectiveError::Call`] if HCCL refuses.
    pub fn connect(
        runtime: &Arc<Runtime>,
        root: &RootInfo,
        options: &CommunicatorOptions,
        limit: Duration,
    ) -> Result<Self, CollectiveError> {
        let name = validate(options)?;
        let (sender, receiver) = mpsc::sync_channel(1);
        let (ranks, rank, buffer_mib) = (options.ranks, options.rank, options.buffer_mib);
        let (theirs, root) = (Arc::clone(runtime), root.raw());
        let join = move || {
            let result = join(&theirs, &root, ranks, rank, buffer_mib, &name);
            if let Err(mpsc::SendError(Ok(late))) = sender.send(result) {
                destroy(&theirs, late.0);
            }
        };
        thread::Builder::new()
            .name("seqshift-connect".into())
            .spawn(join)
            .map_err(CollectiveError::Thread)?;
        let handle = match receiver.recv_timeout(limit) {
            Ok(result) => result?,
            Err(_) => {
                return Err(CollectiveError::Timeout {
                    what: "joining",
                    limit,
                });
            }
        };
        let communicator = Self {
            runtime: Arc::clone(runtime),
            handle: handle.0,
            rank,
            ranks,
            broken: Arc::default(),
        };
        communicator.confirm()?;
        Ok(communicator)
    }

    /// HCCL agrees on who we are.
    fn confirm(&self) -> Result<(), CollectiveError> {
        let (mut ranks, mut rank) = (0, 0);
        // SAFETY: the handle is valid, and both numbers live.
        unsafe {
            hccl!(
                self.runtime.symbols(),
                HcclGetRankSize(self.handle, &mut ranks)
            )?;
            hccl!(
                self.runtime.symbols(),
                HcclGetRankId(self.handle, &mut rank)
            )?;
        }
        if (ranks, rank) == (self.ranks, self.rank) {
            return Ok(());
        }
        Err(CollectiveError::Invalid {
            field: "HCCL's (rank, ranks)",
            value: format!("({rank}, {ranks})"),
            expected: format!("({}, {})", self.rank, self.ranks),
        })
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Whether the communicator must be made anew.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Every rank gets the first `length` bytes of every rank's `send`, in rank order.
    pub fn all_gather(
        &self,
        send: &DeviceBuffer,
        receive: &mut DeviceBuffer,
        length: usize,
        stream: &Stream,
        limit: Duration,
    ) -> Result<(), CollectiveError> {
        let from = send.slice(0..length)?;
        let to = receive.slice(0..length.saturating_mul(self.ranks as usize))?;
        self.run("all-gather", stream, limit, |symbols| {
            // SAFETY: both ranges lie within live buffers, and `run` waits.
            unsafe {
                hccl!(
                    symbols,
                    HcclAllGather(
                        from.cast(),
                        to.cast(),
                        length as u64,
                        ffi::CANN_HCCL_TYPE_UINT8,
                        self.handle,
                        stream.raw(),
                    )
                )
            }
        })
    }

    /// Sends `send_counts[r]` bytes to each rank `r`, one after the other from the start of `send`,
    /// and receives `receive_counts[r]` likewise.
    pub fn all_to_all_v(
        &self,
        send: &DeviceBuffer,
        send_counts: &[u64],
        receive: &mut DeviceBuffer,
        receive_counts: &[u64],
        stream: &Stream,
        limit: Duration,
    ) -> Result<(), CollectiveError> {
        let send_offsets = self.offsets("send_counts", send_counts, send)?;
        let receive_offsets = self.offsets("receive_counts", receive_counts, receive)?;
        let (from, to) = (send.as_ptr(), receive.as_ptr());
        self.run("all-to-all-v", stream, limit, |symbols| {
            // SAFETY: counts and offsets have one entry per rank and stay within the live buffers,
            // and `run` waits.
            unsafe {
                hccl!(
                    symbols,
                    HcclAlltoAllV(
                        from.cast::<c_void>().cast_const(),
                        send_counts.as_ptr().cast(),
                        send_offsets.as_ptr().cast(),
                        ffi::CANN_HCCL_TYPE_UINT8,
                        to.cast::<c_void>().cast_const(),
                        receive_counts.as_ptr().cast(),
                        receive_offsets.as_ptr().cast(),
                        ffi::CANN_HCCL_TYPE_UINT8,
                        self.handle,
                        stream.raw(),
                    )
                )
            }
        })
    }

    fn offsets(
        &self,
        field: &'static str,
        counts: &[u64],
        buffer: &DeviceBuffer,
    ) -> Result<Vec<u64>, CollectiveError> {
        let mut end = 0_u64;
        let offsets: Vec<u64> = counts
            .iter()
            .map(|count| {
                let start = end;
                end = end.saturating_add(*count);
                start
            })
            .collect();
        if counts.len() != self.ranks as usize || end > buffer.len() as u64 {
            return Err(CollectiveError::Invalid {
                field,
                value: format!("{counts:?}"),
                expected: format!("{} counts of {} bytes in all", self.ranks, buffer.len()),
            });
        }
        Ok(offsets)
    }

    /// Enqueues sends and receives that run together. Each send must be met by the peer's receive
    /// of the same length, in the same order per pair of ranks.
    ///
    /// # Safety
    /// The ranges are device memory, and stay valid and untouched by others until the stream has
    /// passed the call.
    pub unsafe fn batch_send_recv(
        &self,
        items: &[SendRecv],
        stream: &Stream,
    ) -> Result<(), CollectiveError> {
        let mut raw: Vec<_> = items.iter().map(SendRecv::raw).collect();
        self.enqueue(|symbols| {
            // SAFETY: the caller vouches for the ranges; the items are read during the call only.
            unsafe {
                hccl!(
                    symbols,
                    HcclBatchSendRecv(
                        raw.as_mut_ptr(),
                        raw.len() as u32,
                        self.handle,
                        stream.raw()
                    )
                )
            }
        })
    }

    /// Returns once all ranks have come here.
    pub fn barrier(&self, stream: &Stream, limit: Duration) -> Result<(), CollectiveError> {
        self.run("a barrier", stream, limit, |symbols| {
            // SAFETY: handle and stream are valid.
            unsafe { hccl!(symbols, HcclBarrier(self.handle, stream.raw())) }
        })
    }

    /// The failure of a link that HCCL has noticed since, if any.
    pub fn async_error(&self) -> Result<(), CollectiveError> {
        self.runtime.bind()?;
        let symbols = self.runtime.symbols();
        let mut status = ffi::CANN_HCCL_OK;
        // SAFETY: the handle is valid, and `status` lives.
        unsafe { hccl!(symbols, HcclGetCommAsyncError(self.handle, &mut status)) }?;
        super::error::check(symbols, "HcclGetCommAsyncError", status)
    }

    /// Waits for all work enqueued on the stream, with an eye on the links. A failure, or the
    /// limit, breaks the communicator and aborts the stream.
    pub fn wait(
        &self,
        what: &'static str,
        stream: &Stream,
        limit: Duration,
    ) -> Result<(), CollectiveError> {
        self.watch(what, stream, limit, |slice| stream.wait(slice))
    }

    /// Like [`wait`](Self::wait), for the work before an event that the stream has recorded.
    pub fn wait_event(
        &self,
        what: &'static str,
        event: &Event,
        stream: &Stream,
        limit: Duration,
    ) -> Result<(), CollectiveError> {
        self.watch(what, stream, limit, |slice| event.wait(slice))
    }

    fn watch(
        &self,
        what: &'static str,
        stream: &Stream,
        limit: Duration,
        wait: impl Fn(Duration) -> Result<(), DeviceError>,
    ) -> Result<(), CollectiveError> {
        let start = Instant::now();
        let result = loop {
            let left = limit.saturating_sub(start.elapsed());
            match wait(left.min(PROBE)) {
                Ok(()) => return Ok(()),
                Err(DeviceError::Timeout { .. }) if self.is_broken() => {
                    break CollectiveError::Broken;
                }
                Err(DeviceError::Timeout { .. }) if left > PROBE => match self.async_error() {
                    Ok(()) => continue,
                    Err(error) => break error,
                },
                Err(DeviceError::Timeout { .. }) => break CollectiveError::Timeout { what, limit },
                Err(error) => break error.into(),
            }
        };
        self.abort(stream);
        Err(result)
    }

    /// Gives up: breaks the communicator and drops what the stream has not done yet.
    pub fn abort(&self, stream: &Stream) {
        self.give_up();
        if let Err(error) = stream.abort() {
            tracing::warn!(%error, "a stream could not be aborted");
        }
    }

    /// What another thread ends this communicator with.
    pub fn breaker(&self) -> Breaker {
        Breaker(Arc::clone(&self.broken))
    }

    /// Breaks the communicator: the peers will not find us there again.
    pub fn give_up(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    fn enqueue(
        &self,
        call: impl FnOnce(&ffi::Symbols) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        if self.is_broken() {
            return Err(CollectiveError::Broken);
        }
        self.runtime.bind()?;
        call(self.runtime.symbols()).inspect_err(|_| self.give_up())
    }

    fn run(
        &self,
        what: &'static str,
        stream: &Stream,
        limit: Duration,
        call: impl FnOnce(&ffi::Symbols) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        self.enqueue(call)?;
        self.wait(what, stream, limit)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        destroy(&self.runtime, self.handle);
    }
}

fn validate(options: &CommunicatorOptions) -> Result<CString, CollectiveError> {
    let invalid = |field, value: &dyn ToString, expected: &str| CollectiveError::Invalid {
        field,
        value: value.to_string(),
        expected: expected.into(),
    };
    if options.ranks == 0 {
        return Err(invalid("ranks", &options.ranks, "at least 1"));
    }
    if options.rank >= options.ranks {
        return Err(invalid(
            "rank",
            &options.rank,
            "less than the number of ranks",
        ));
    }
    if options.buffer_mib == 0 {
        return Err(invalid("buffer_mib", &options.buffer_mib, "at least 1"));
    }
    CString::new(options.name.as_str())
        .ok()
        .filter(|name| name.count_bytes() < ffi::CANN_HCCL_COMM_NAME_BYTES as usize)
        .ok_or_else(|| invalid("name", &options.name, "at most 127 bytes without a NUL"))
}

fn join(
    runtime: &Runtime,
    root: &ffi::CannHcclRoot,
    ranks: u32,
    rank: u32,
    buffer_mib: u32,
    name: &CString,
) -> Result<Handle, CollectiveError> {
    runtime.bind()?;
    let mut config = ffi::CannHcclConfig::default();
    // SAFETY: the configuration lives, and the name is a C string.
    unsafe { ffi::seqshiftConfigInit(&mut config, buffer_mib, name.as_ptr()) };
    let mut handle = std::ptr::null_mut();
    // SAFETY: all arguments live.
    unsafe {
        hccl!(
            runtime.symbols(),
            HcclCommInitRootInfoConfig(ranks, root, rank, &config, &mut handle)
        )
    }?;
    Ok(Handle(handle))
}

fn destroy(runtime: &Runtime, handle: ffi::CannHcclHandle) {
    let result = runtime
        .bind()
        .map_err(CollectiveError::from)
        .and_then(|()| {
            // SAFETY: the handle is valid, and used by nobody any more.
            unsafe { hccl!(runtime.symbols(), HcclCommDestroy(handle)) }
        });
    if let Err(error) = result {
        tracing::warn!(%error, "a communicator could not be destroyed");
    }
}
