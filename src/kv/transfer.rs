//! The exchange of KV blocks between ranks, in bounded staging memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::Xxh3;

use super::exchange::Exchange;
use super::schedule::{Cut, Move, rounds};
use super::staging::{Lane, Lanes, Mark, Staging};
use super::strategy::forced_by_environment;
use super::{BlockCopier, BlockPart, CopyCounts, Direction, KvLayout, Strategy, UnknownStrategy};
use crate::collective::Communicator;
use crate::device::{DeviceError, Runtime, Stream};

/// Largest chunk between devices. Large enough that HCCL's cost per call (some 10 us, as against 60 us
/// for the bytes at the 134 GB/s of one HCCS link) does not show, small enough that the three stages
/// of the pipeline overlap.
const DEVICE_CHUNK: u64 = 8 << 20;
/// Largest chunk where device memory is the host's: one that stays in a core's second-level cache
/// from gather to digest.
const HOST_CHUNK: u64 = 1 << 20;

/// How a [`Transfer`] works. All ranks use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferOptions {
    /// Device memory for staging per direction, in bytes.
    pub staging_bytes: u64,
    /// Largest number of bytes sent to one peer at once.
    pub chunk_bytes: u64,
    /// Whether both ends compute a digest of each move's bytes.
    pub verify: bool,
}

impl TransferOptions {
    /// Chunks of the size that suits the runtime's memory.
    pub fn new(runtime: &Runtime, staging_bytes: u64, verify: bool) -> Self {
        Self {
            staging_bytes,
            chunk_bytes: if runtime.shares_host_memory() {
                HOST_CHUNK
            } else {
                DEVICE_CHUNK
            },
            verify,
        }
    }
}

/// Why there can be no [`Transfer`], or why its self-test failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The device layer failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device has no room for staging memory.
    #[error("no memory for 2 x {bytes} bytes of staging (staging_mib): {source}")]
    Staging {
        /// Bytes per direction.
        bytes: u64,
        /// What CANN says.
        source: DeviceError,
    },
    /// Staging memory cannot hold any chunk.
    #[error("{bytes} bytes of staging (staging_mib) are too few for {ranks} ranks")]
    TooSmall {
        /// Bytes per direction.
        bytes: u64,
        /// Ranks of the group.
        ranks: u32,
    },
    /// A test asks for a strategy that there is none of.
    #[error("SEQSHIFT_TEST_KV_STRATEGY: {0}")]
    Strategy(#[from] UnknownStrategy),
    /// A block is not in the cache.
    #[error("block {block} is not one of the cache's {blocks} blocks")]
    Block {
        /// The block's id.
        block: u32,
        /// Number of blocks.
        blocks: u64,
    },
    /// Bytes read back are not those written.
    #[error("blocks written back read as digest {read:016x} instead of {written:016x}")]
    Corrupt {
        /// Digest of the bytes written.
        written: u64,
        /// Digest of the bytes read.
        read: u64,
    },
}

/// What became of one move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveOutcome {
    /// xxh3-64 of the move's bytes in canonical order, if verification is on and the move is well.
    pub digest: Option<u64>,
    /// Why the move failed here.
    pub error: Option<String>,
}

/// Where the host waited in an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// For gathers, and for the copies to the host of what they gather.
    pub gather: Duration,
    /// For peers and links.
    pub send: Duration,
    /// For scatters, and for the copies to the host of what they scatter.
    pub scatter: Duration,
    /// Computing digests.
    pub digest: Duration,
    /// From beginning to end.
    pub total: Duration,
}

/// What became of an exchange. Outcomes are in the order of the moves given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExchangeReport {
    /// Moves sent.
    pub outbound: Vec<MoveOutcome>,
    /// Moves received.
    pub inbound: Vec<MoveOutcome>,
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes of these that were sent from the cache, or received into it, without staging.
    pub direct: u64,
    /// What gathers and scatters were made of.
    pub copies: CopyCounts,
    /// Calls of HCCL.
    pub rounds: usize,
    /// Where the time went.
    pub timings: Timings,
    /// Why the exchange failed as a whole: every move has failed, the communicator is broken.
    pub broken: Option<String>,
}

/// What a self-test has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelfTest {
    /// Bytes gathered, and as many scattered.
    pub bytes: u64,
    /// Their digest.
    pub digest: u64,
    /// Time for gather, read-back and scatter.
    pub elapsed: Duration,
}

/// Moves KV blocks between this rank's cache and its peers'.
#[derive(Debug)]
pub struct Transfer {
    pub(super) runtime: Arc<Runtime>,
    pub(super) layout: KvLayout,
    pub(super) cut: Cut,
    pub(super) ranks: u32,
    pub(super) verify: bool,
    /// By [`Direction`].
    pub(super) staging: [Staging; 2],
    /// Made anew after a failure of the transport.
    pub(super) lanes: Option<Lanes>,
    pub(super) copier: BlockCopier,
    pub(super) producer: Option<Stream>,
}

impl Transfer {
    /// Allocates the staging memory.
    ///
    /// # Errors
    /// [`TransferError::Staging`] if the device has no room, [`TransferError::TooSmall`] for less
    /// than a kilobyte per peer, [`TransferError::Strategy`] if `SEQSHIFT_TEST_KV_STRATEGY` names
    /// none.
    ///
    /// # Safety
    /// The layout describes memory of the runtime's device that stays valid until the layout is
    /// replaced or the transfer is dropped. While an exchange runs, nobody touches the blocks
    /// moved.
    pub unsafe fn new(
        runtime: &Arc<Runtime>,
        layout: KvLayout,
        ranks: u32,
        options: TransferOptions,
    ) -> Result<Self, TransferError> {
        let bytes = options.staging_bytes;
        let cut = Cut::new(ranks, bytes, options.chunk_bytes)
            .ok_or(TransferError::TooSmall { bytes, ranks })?;
        let staging = || {
            Staging::new(runtime, cut, options.verify).map_err(|source| TransferError::Staging {
                bytes: cut.staging(),
                source,
            })
        };
        Ok(Self {
            runtime: Arc::clone(runtime),
            layout,
            cut,
            ranks,
            verify: options.verify,
            staging: [staging()?, staging()?],
            lanes: Some(Lanes::new(runtime)?),
            copier: BlockCopier::new(forced_by_environment()?),
            producer: None,
        })
    }

    /// The cache.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Replaces the cache, after the engine has made its tensors anew.
    ///
    /// # Safety
    /// As for [`Transfer::new`].
    pub unsafe fn set_layout(&mut self, layout: KvLayout) {
        self.layout = layout;
    }

    /// The stream that computes on the cache. Each exchange starts after what has been enqueued
    /// there, and returns when it is done with the cache.
    pub fn set_producer(&mut self, stream: Option<Stream>) {
        self.producer = stream;
    }

    /// For tests and benches: moves all blocks by one strategy where CANN has it; `None` leaves the
    /// choice to the cost model.
    pub fn set_strategy(&mut self, strategy: Option<Strategy>) {
        self.copier.set_strategy(strategy);
    }

    /// Device memory for staging, in bytes, both directions together.
    pub fn staging_bytes(&self) -> u64 {
        2 * self.cut.staging()
    }

    /// Copies enqueued so far.
    pub fn counts(&self) -> CopyCounts {
        self.copier.counts()
    }

    /// Sends and receives the KV of the moves of one round of migration. Every rank of the
    /// communicator whose moves touch this rank calls it with the same moves between the two.
    ///
    /// A failure that is local to a move (a block id, a copy) fails that move here, and the bytes
    /// travel nevertheless, so that the peers' other moves are well; the peer learns of it by other
    /// means (digest, exchange of outcomes). A failure of the transport, or the deadline, fails all
    /// moves and breaks the communicator. When this returns, nothing touches the cache any more.
    pub fn exchange(
        &mut self,
        communicator: &Communicator,
        outbound: &[Move<'_>],
        inbound: &[Move<'_>],
        deadline: Instant,
    ) -> ExchangeReport {
        Exchange::run(self, communicator, outbound, inbound, deadline)
    }

    /// Gathers blocks, reads them back, scatters them to where they came from and reads them again,
    /// without peers. The cache is as before.
    ///
    /// # Errors
    /// [`TransferError::Corrupt`] if the second reading differs from the first.
    pub fn self_test(
        &mut self,
        blocks: &[u32],
        limit: Duration,
    ) -> Result<SelfTest, TransferError> {
        let mut lane = Lane::new(&self.runtime)?;
        let staging = Staging::new(&self.runtime, self.cut.one_lane(), true)?;
        let result = self.round_trip(blocks, limit, &staging, &mut lane);
        // Nothing is under way any more when the staging memory goes.
        self.leave(&lane.stream, Duration::from_secs(1));
        result
    }

    fn round_trip(
        &mut self,
        blocks: &[u32],
        limit: Duration,
        staging: &Staging,
        lane: &mut Lane,
    ) -> Result<SelfTest, TransferError> {
        let start = Instant::now();
        if let Some(block) = self.layout.missing(blocks) {
            return Err(TransferError::Block {
                block,
                blocks: self.layout.blocks(),
            });
        }
        let one = [Move { peer: 1, blocks }];
        let cut = self.cut.one_lane();
        let (mut written, mut read, mut bytes) = (Xxh3::new(), Xxh3::new(), 0);
        for round in rounds(&self.layout, cut, 2, 0, &one, &[]) {
            for chunk in &round.sends {
                for (hash, scatter) in [(&mut written, true), (&mut read, false)] {
                    for piece in &chunk.pieces {
                        let part = BlockPart {
                            cache: &self.layout.sub_caches()[piece.sub_cache],
                            ids: &blocks[piece.blocks.clone()],
                            range: piece.range.clone(),
                        };
                        let at = staging.chunk(0, chunk).wrapping_add(piece.offset as usize);
                        let room = piece.bytes() as usize;
                        // SAFETY: as promised for the layout; a piece lies within its chunk.
                        unsafe {
                            self.copier
                                .copy(Direction::Gather, &part, at, room, &lane.stream)?;
                            if scatter {
                                let back = Direction::Scatter;
                                self.copier.copy(back, &part, at, room, &lane.stream)?;
                            }
                        }
                    }
                    let from = staging.chunk(0, chunk);
                    // SAFETY: the stream itself orders all uses of the chunk.
                    unsafe { staging.fetch(0, chunk, 0, chunk.length, from, &lane.stream) }?;
                    lane.record(Mark::Fetched, 0)?;
                    let marks = lane.marks(Mark::Fetched);
                    marks.wait(0, limit.saturating_sub(start.elapsed()), || false)?;
                    hash.update(staging.fetched(0, chunk).unwrap_or_default());
                }
                bytes += chunk.length;
            }
        }
        let (written, read) = (written.digest(), read.digest());
        if written != read {
            return Err(TransferError::Corrupt { written, read });
        }
        Ok(SelfTest {
            bytes,
            digest: written,
            elapsed: start.elapsed(),
        })
    }

    /// Ends the use of a stream that is to be dropped: what is not done by then is aborted.
    pub(super) fn leave(&mut self, stream: &Stream, patience: Duration) {
        let done = !patience.is_zero() && stream.wait(patience).is_ok();
        let stopped = if done { Ok(()) } else { stream.abort() };
        if let Err(error) = &stopped {
            tracing::error!(%error, "copies of KV blocks could not be stopped");
        }
        self.copier.leave(stream, stopped.is_ok());
    }

    /// Why a move is impossible whatever happens.
    pub(super) fn objection(&self, rank: u32, one: &Move<'_>) -> Option<String> {
        if one.peer >= self.ranks || one.peer == rank {
            return Some(format!(
                "rank {} is no peer of rank {rank} of {}",
                one.peer, self.ranks
            ));
        }
        let block = self.layout.missing(one.blocks)?;
        Some(format!(
            "block {block} is not one of the cache's {} blocks",
            self.layout.blocks()
        ))
    }

    /// The queues, if this communicator can be used.
    pub(super) fn ready(&mut self, communicator: &Communicator) -> Result<Lanes, String> {
        if communicator.is_broken() {
            return Err("the communicator is broken by an earlier failure".into());
        }
        if communicator.ranks() != self.ranks {
            return Err(format!(
                "the communicator has {} ranks, but the transfer was made for {}",
                communicator.ranks(),
                self.ranks
            ));
        }
        match self.lanes.take() {
            Some(lanes) => Ok(lanes),
            None => Lanes::new(&self.runtime).map_err(|error| error.to_string()),
        }
    }
}
