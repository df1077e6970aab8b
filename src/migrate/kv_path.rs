//! The KV path of a DP group: a device, a communicator of our own, and the
//! transfer between them, as a [`KvChannel`].

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SendError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use super::channel::{Background, KvChannel, KvMove, KvOutcome, KvReport};
use crate::collective::control::Mesh;
use crate::collective::{Breaker, Communicator, CommunicatorOptions, RootInfo};
use crate::device::{Registration, Runtime, RuntimeOptions, Stream};
use crate::kv::{
    KvLayout, LayoutDescription, Move, MoveOutcome, SubCache, Transfer, TransferOptions, register,
};
use crate::wire::frame::Kind;
use crate::wire::message::Meeting;
use crate::wire::{decode, encode};

/// How the KV path is opened; the same on every rank but for the device.
#[derive(Debug, Clone)]
pub struct KvOptions {
    /// Where CANN is looked for, and the device.
    pub runtime: RuntimeOptions,
    /// Ranks of the DP group.
    pub ranks: u32,
    /// Staging memory per direction, in bytes.
    pub staging_bytes: u64,
    /// HCCL buffer, in MiB.
    pub comm_buffer_mib: u32,
    /// Whether both ends compute digests.
    pub verify: bool,
    /// Stack of the thread that copies in the background, in bytes.
    pub stack_bytes: usize,
}

/// After its deadline a failed exchange gets this long to stop what it has begun.
const STOP: Duration = Duration::from_secs(5);

/// What an exchange works with; a background exchange takes it along.
#[derive(Debug, Default)]
struct Ends {
    communicator: Option<Communicator>,
    transfer: Option<Transfer>,
}

/// An exchange in a thread of its own.
#[derive(Debug)]
struct Running {
    done: Receiver<(Ends, Background)>,
    /// None if there was none to be had, and the exchange is over.
    thread: Option<JoinHandle<()>>,
    breaker: Option<Breaker>,
    /// Neither is longer under way.
    until: Instant,
}

/// What a thread is given to do.
struct Job {
    ends: Ends,
    runtime: Arc<Runtime>,
    outbound: Vec<KvMove>,
    inbound: Vec<KvMove>,
    deadline: Instant,
    done: SyncSender<(Ends, Background)>,
}

impl Job {
    fn run(mut self) {
        let began = Instant::now();
        // A thread that is not bound to the device fails its first call, and with it the exchange.
        if let Err(error) = self.runtime.bind() {
            tracing::warn!(%error, "a thread of its own is refused by the device");
        }
        let report = (self.ends).exchange(&self.outbound, &self.inbound, self.deadline);
        let elapsed = began.elapsed();
        // Nobody waits any more only if the path could not be stopped.
        let _ = self.done.send((self.ends, Background { report, elapsed }));
    }
}

/// One rank's end. Fields are dropped in this order: what uses memory before the memory.
#[derive(Debug)]
pub struct KvPath {
    ends: Ends,
    running: Option<Running>,
    producer: Option<u64>,
    /// Bytes of one block over all layers.
    block_bytes: u64,
    /// Fingerprint of the layout.
    layout: u64,
    registrations: Vec<Registration>,
    options: KvOptions,
    runtime: Arc<Runtime>,
}

impl KvPath {
    /// Loads CANN and takes the device.
    ///
    /// # Errors
    /// Says what is missing.
    pub fn open(options: KvOptions) -> Result<Self, String> {
        let runtime = Runtime::open(&options.runtime).map_err(|e| e.to_string())?;
        Ok(Self {
            ends: Ends::default(),
            running: None,
            producer: None,
            block_bytes: 0,
            layout: 0,
            registrations: Vec::new(),
            options,
            runtime,
        })
    }

    /// Takes the KV caches' places, by layer.
    ///
    /// # Errors
    /// Names the sub-cache and field that cannot be, or says that there is no staging memory.
    ///
    /// # Safety
    /// The sub-caches are memory of the device that stays allocated until they
    /// are replaced or the path is dropped.
    pub unsafe fn set_layout(&mut self, layers: Vec<Vec<SubCache>>) -> Result<(), String> {
        self.finish()?;
        self.runtime.bind().map_err(|e| e.to_string())?;
        let layout = KvLayout::new(layers).map_err(|e| e.to_string())?;
        self.block_bytes = layout.block_bytes();
        self.layout = layout.description().fingerprint();
        self.registrations.clear();
        // SAFETY: the caller vouches for the memory.
        let made = unsafe { register(&self.runtime, &layout) };
        self.registrations = made.map_err(|e| e.to_string())?;
        match &mut self.ends.transfer {
            // SAFETY: the caller vouches for the memory.
            Some(transfer) => unsafe { transfer.set_layout(layout) },
            None => {
                let (bytes, verify) = (self.options.staging_bytes, self.options.verify);
                let options = TransferOptions::new(&self.runtime, bytes, verify);
                let ranks = self.options.ranks;
                // SAFETY: the caller vouches for the memory.
                let made = unsafe { Transfer::new(&self.runtime, layout, ranks, options) };
                self.ends.transfer = Some(made.map_err(|e| e.to_string())?);
            }
        }
        Ok(())
    }

    /// The stream that computes on the cache: exchanges wait for what it has been given.
    ///
    /// # Safety
    /// `stream` is a stream of the runtime's device that outlives the next exchange.
    pub unsafe fn set_producer(&mut self, stream: u64) {
        self.producer = Some(stream);
    }

    fn follow_producer(&mut self) {
        if let (Some(stream), Some(transfer)) = (self.producer, &mut self.ends.transfer) {
            let raw = std::ptr::with_exposed_provenance_mut(stream as usize);
            // SAFETY: who set it vouches for the stream.
            transfer.set_producer(Some(unsafe { Stream::from_raw(&self.runtime, raw) }));
        }
    }

    fn meet(&mut self, control: &mut Mesh, deadline: Instant) -> Result<RootInfo, String> {
        let mut root = Vec::new();
        if control.rank() == 0 {
            match RootInfo::create(&self.runtime) {
                Ok(made) => root = made.as_bytes().to_vec(),
                Err(error) => tracing::warn!(%error, "no root information"),
            }
        }
        let layout = self
            .ends
            .transfer
            .as_ref()
            .map(|t| t.layout().description());
        let mine = encode(&Meeting {
            root,
            layout: layout.clone(),
        });
        let received = control
            .all_gather(Kind::Root, &mine, deadline)
            .map_err(|e| e.to_string())?;
        let mut root = None;
        for (rank, bytes) in received.into_iter().enumerate() {
            let theirs: Meeting<LayoutDescription> = bytes
                .and_then(|b| decode(Kind::Root, &b))
                .map_err(|e| format!("rank {rank}: {e}"))?;
            if let (Some(mine), Some(theirs)) = (&layout, &theirs.layout)
                && let Some(difference) = mine.difference(theirs)
            {
                return Err(format!("KV layout of rank {rank}: {difference}"));
            }
            root.get_or_insert(theirs.root);
        }
        if let Some(rank) = control.refused().first() {
            return Err(format!("rank {rank} could not read what this rank brought"));
        }
        let root = root.unwrap_or_default();
        RootInfo::try_from(root.as_slice())
            .map_err(|e| format!("rank 0 gave no root information: {e}"))
    }
}

impl KvChannel for KvPath {
    fn broken(&self) -> bool {
        let broken = |c: &Option<Communicator>| c.as_ref().is_none_or(Communicator::is_broken);
        self.running.is_none() && broken(&self.ends.communicator)
    }

    fn restore(&mut self, control: &mut Mesh, deadline: Instant) -> Result<(), String> {
        self.finish()?;
        self.ends.communicator = None;
        let root = self.meet(control, deadline)?;
        let options = CommunicatorOptions {
            ranks: control.size(),
            rank: control.rank(),
            buffer_mib: self.options.comm_buffer_mib,
            // HCCL wants one name on all ranks, and another one for each communicator.
            name: format!("seqshift_{:016x}", xxh3_64(root.as_bytes())),
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let made = Communicator::connect(&self.runtime, &root, &options, left);
        self.ends.communicator = Some(made.map_err(|e| e.to_string())?);
        Ok(())
    }

    fn exchange(&mut self, outbound: &[KvMove], inbound: &[KvMove], deadline: Instant) -> KvReport {
        self.follow_producer();
        self.ends.exchange(outbound, inbound, deadline)
    }

    fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    fn layout(&self) -> u64 {
        self.layout
    }

    fn begin(
        &mut self,
        outbound: Vec<KvMove>,
        inbound: Vec<KvMove>,
        deadline: Instant,
    ) -> Result<(), String> {
        self.follow_producer();
        let ends = std::mem::take(&mut self.ends);
        let breaker = ends.communicator.as_ref().map(Communicator::breaker);
        let (send, done) = sync_channel(1);
        let job = Job {
            ends,
            runtime: Arc::clone(&self.runtime),
            outbound,
            inbound,
            deadline,
            done: send,
        };
        // The job follows only once there is a thread: what cannot be spawned is dropped.
        let (give, take) = sync_channel::<Job>(1);
        let work = move || {
            if let Ok(job) = take.recv() {
                job.run();
            }
        };
        let thread = std::thread::Builder::new()
            .name("seqshift-copy".into())
            .stack_size(self.options.stack_bytes)
            .spawn(work);
        let (thread, result) = match thread {
            Ok(thread) => {
                if let Err(SendError(job)) = give.send(job) {
                    job.run();
                }
                (Some(thread), Ok(()))
            }
            Err(error) => {
                job.run();
                (None, Err(format!("no thread: {error}")))
            }
        };
        self.running = Some(Running {
            done,
            thread,
            breaker,
            until: deadline + STOP,
        });
        result
    }

    fn abandon(&mut self) {
        if let Some(breaker) = self.running.as_ref().and_then(|r| r.breaker.as_ref()) {
            breaker.give_up();
        }
    }

    fn copying(&self) -> bool {
        let thread = self.running.as_ref().and_then(|r| r.thread.as_ref());
        thread.is_some_and(|thread| !thread.is_finished())
    }

    fn finish(&mut self) -> Result<Background, String> {
        let Some(running) = self.running.take() else {
            return Ok(Background::default());
        };
        let left = running.until.saturating_duration_since(Instant::now());
        match running.done.recv_timeout(left) {
            Ok((ends, background)) => {
                self.ends = ends;
                // It has nothing more to do.
                let _ = running.thread.map(JoinHandle::join);
                Ok(background)
            }
            Err(error) => {
                let why = format!("{error}, {STOP:?} after its deadline");
                self.running = Some(running);
                Err(why)
            }
        }
    }
}

impl Drop for KvPath {
    fn drop(&mut self) {
        self.abandon();
        if let Err(why) = self.finish() {
            tracing::error!(why, "a copy of KV in the background could not be stopped");
            std::mem::forget(std::mem::take(&mut self.registrations));
        }
    }
}

impl Ends {
    fn exchange(&mut self, outbound: &[KvMove], inbound: &[KvMove], deadline: Instant) -> KvReport {
        fn moves(list: &[KvMove]) -> Vec<Move<'_>> {
            list.iter()
                .map(|m| Move {
                    peer: m.peer,
                    blocks: &m.blocks,
                })
                .collect()
        }
        let (Some(transfer), Some(communicator)) = (&mut self.transfer, &self.communicator) else {
            let failed = KvOutcome {
                digest: None,
                error: Some("no KV communicator".into()),
            };
            return KvReport {
                outbound: vec![failed.clone(); outbound.len()],
                inbound: vec![failed; inbound.len()],
                bytes: 0,
                broken: true,
            };
        };
        let report = transfer.exchange(communicator, &moves(outbound), &moves(inbound), deadline);
        let outcomes = |list: Vec<MoveOutcome>| {
            list.into_iter()
                .map(|m| KvOutcome {
                    digest: m.digest,
                    error: m.error,
                })
                .collect()
        };
        if let Some(why) = &report.broken {
            tracing::warn!(why, "the KV transfer failed");
        }
        KvReport {
            outbound: outcomes(report.outbound),
            inbound: outcomes(report.inbound),
            bytes: report.sent,
            broken: report.broken.is_some(),
        }
    }
}
