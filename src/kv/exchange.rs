//! One exchange: gather of round k+1, send of round k and scatter of round k-1 overlap.

use std::time::{Duration, Instant};

use xxhash_rust::xxh3::Xxh3;

use super::Direction;
use super::items::span;
use super::parts::{Part, parts};
use super::schedule::{Chunk, Move, Round, rounds};
use super::staging::{Lane, Lanes, Mark, Sends, wait};
use super::transfer::{ExchangeReport, MoveOutcome, Timings, Transfer};
use crate::collective::{Communicator, SendRecv};
use crate::device::{DeviceError, Event};

/// After the deadline, copies on our own device get this long before their streams are aborted, but
/// no more than half of the time that the exchange had: its outcome is to be agreed on after it.
const GRACE: Duration = Duration::from_secs(1);

const UNFOLLOWED: &str = "the engine's stream cannot be followed";

/// What is known of one move so far.
struct Progress {
    error: Option<String>,
    hash: Option<Box<Xxh3>>,
}

impl Progress {
    fn fail(&mut self, error: &str) {
        self.error.get_or_insert_with(|| error.to_owned());
    }

    fn outcome(self) -> MoveOutcome {
        let digest = self
            .hash
            .filter(|_| self.error.is_none())
            .map(|hash| hash.digest());
        MoveOutcome {
            digest,
            error: self.error,
        }
    }
}

/// What one direction works with.
struct Side<'a> {
    lane: Lane,
    moves: &'a [Move<'a>],
    all: Vec<Progress>,
}

impl Side<'_> {
    fn fail(&mut self, chunks: &[Chunk], error: &str) {
        for piece in chunks.iter().flat_map(|chunk| &chunk.pieces) {
            self.all[piece.index].fail(error);
        }
    }
}

pub(super) struct Exchange<'a> {
    transfer: &'a mut Transfer,
    communicator: &'a Communicator,
    /// By [`Direction`].
    sides: [Side<'a>; 2],
    sends: Sends,
    deadline: Instant,
    grace: Duration,
    timings: Timings,
    /// Kept until the streams that wait for it are through.
    produced: Option<Event>,
    /// Whether the host has waited for it.
    followed: bool,
    /// Bytes that were not staged.
    direct: u64,
}

impl<'a> Exchange<'a> {
    pub(super) fn run(
        transfer: &'a mut Transfer,
        communicator: &'a Communicator,
        outbound: &'a [Move<'a>],
        inbound: &'a [Move<'a>],
        deadline: Instant,
    ) -> ExchangeReport {
        let (start, counted) = (Instant::now(), transfer.counts());
        let progress = |one: &Move<'_>| Progress {
            error: transfer.objection(communicator.rank(), one),
            hash: transfer.verify.then(|| Box::new(Xxh3::new())),
        };
        let mut sending: Vec<_> = outbound.iter().map(progress).collect();
        let mut receiving: Vec<_> = inbound.iter().map(progress).collect();
        let (cut, rank) = (transfer.cut, communicator.rank());
        let rounds = rounds(
            &transfer.layout,
            cut,
            transfer.ranks,
            rank,
            outbound,
            inbound,
        );
        let mut report = ExchangeReport {
            rounds: rounds.len(),
            ..ExchangeReport::default()
        };
        for round in &rounds {
            report.sent += round.sends.iter().map(|chunk| chunk.length).sum::<u64>();
            report.received += round.receives.iter().map(|chunk| chunk.length).sum::<u64>();
        }
        report.broken = match transfer.ready(communicator) {
            Ok(lanes) => {
                let side = |lane, moves, all| Side { lane, moves, all };
                let mut exchange = Exchange {
                    transfer,
                    communicator,
                    sides: [
                        side(lanes.gather, outbound, sending),
                        side(lanes.scatter, inbound, receiving),
                    ],
                    sends: lanes.sends,
                    deadline,
                    grace: GRACE.min(deadline.saturating_duration_since(start) / 2),
                    timings: Timings::default(),
                    produced: None,
                    followed: false,
                    direct: 0,
                };
                let result = exchange.rounds(&rounds);
                let broken = result.err().inspect(|_| exchange.stop());
                let aborted = exchange.sides.iter().any(|s| s.lane.stream.is_aborted());
                report.timings = exchange.timings;
                report.direct = exchange.direct;
                let [gather, scatter] = exchange.sides;
                (sending, receiving) = (gather.all, scatter.all);
                // Queues that failed, and could not be replaced, are dropped here.
                let serve = broken.is_none() && !aborted;
                exchange.transfer.lanes = serve.then_some(Lanes {
                    gather: gather.lane,
                    scatter: scatter.lane,
                    sends: exchange.sends,
                });
                broken
            }
            Err(error) => {
                communicator.give_up();
                Some(error)
            }
        };
        if let Some(error) = &report.broken {
            sending
                .iter_mut()
                .chain(&mut receiving)
                .for_each(|progress| progress.fail(error));
        }
        report.copies = transfer.counts().since(counted);
        report.outbound = sending.into_iter().map(Progress::outcome).collect();
        report.inbound = receiving.into_iter().map(Progress::outcome).collect();
        report.timings.total = start.elapsed();
        report
    }

    /// All rounds. An error is one of the transport.
    fn rounds(&mut self, rounds: &[Round]) -> Result<(), String> {
        let Some(last) = rounds.len().checked_sub(1) else {
            return Ok(());
        };
        self.follow_producer();
        // Gathers are one round ahead of their sends.
        for (half, round) in rounds.iter().enumerate().take(2) {
            self.copy(Direction::Gather, round, half);
        }
        for (index, round) in rounds.iter().enumerate() {
            let half = index % 2;
            let earlier = |by: usize| index.checked_sub(by).map(|index| &rounds[index]);
            self.finish(Direction::Gather, Mark::Moved, round, half)?;
            if let Some(round) = earlier(2) {
                self.finish(Direction::Scatter, Mark::Moved, round, half)?;
            }
            self.send(round, half)?;
            // What follows runs while the links are busy with this round.
            if let Some(round) = earlier(2) {
                self.digest(Direction::Scatter, round, half)?;
            }
            if let Some(before) = earlier(1) {
                self.finish_send(1 - half)?;
                self.scatter(before, 1 - half);
                if let Some(next) = rounds.get(index + 1) {
                    self.copy(Direction::Gather, next, 1 - half);
                }
            }
            self.fetch(Direction::Gather, round, half);
            if let Some(before) = earlier(1) {
                self.digest(Direction::Gather, before, 1 - half)?;
            }
        }
        self.digest(Direction::Gather, &rounds[last], last % 2)?;
        self.finish_send(last % 2)?;
        self.scatter(&rounds[last], last % 2);
        let ends = || rounds.iter().enumerate().skip(last.saturating_sub(1));
        for (index, round) in ends() {
            self.digest(Direction::Scatter, round, index % 2)?;
        }
        for (index, round) in ends() {
            self.finish(Direction::Scatter, Mark::Moved, round, index % 2)?;
        }
        Ok(())
    }

    /// Nothing is copied before the engine's own work on the cache is done. If that cannot be had,
    /// no move is well.
    fn follow_producer(&mut self) {
        let Some(producer) = &self.transfer.producer else {
            return;
        };
        let [gather, scatter] = self.sides.each_ref().map(|side| &side.lane.stream);
        let order = Event::new(&self.transfer.runtime).and_then(|event| {
            producer.record(&event)?;
            gather.wait_event(&event)?;
            scatter.wait_event(&event)?;
            Ok(event)
        });
        match order {
            Ok(event) => self.produced = Some(event),
            Err(error) => {
                let text = format!("{UNFOLLOWED}: {error}");
                let all = self.sides.iter_mut().flat_map(|side| &mut side.all);
                all.for_each(|one| one.fail(&text));
            }
        }
    }

    /// To the host first, so that the digest is computed while the bytes go into the cache.
    fn scatter(&mut self, round: &Round, half: usize) {
        self.fetch(Direction::Scatter, round, half);
        self.copy(Direction::Scatter, round, half);
    }

    /// Enqueues the copies of a round between cache and staging memory. A copy that CANN refuses
    /// fails its move.
    fn copy(&mut self, direction: Direction, round: &Round, half: usize) {
        let Side { lane, moves, all } = &mut self.sides[direction as usize];
        let moves = *moves;
        let staging = &self.transfer.staging[direction as usize];
        for chunk in round.chunks(direction) {
            let staged: Vec<_> = chunk
                .items()
                .filter(|item| {
                    let place = self.transfer.place(item, moves, failed(all), &lane.stream);
                    place.is_none()
                })
                .flatten()
                .filter(|piece| all[piece.index].error.is_none())
                .collect();
            let (layout, at) = (&self.transfer.layout, staging.chunk(half, chunk));
            let mut copy = |part: &Part<'_>| {
                let (at, blocks) = (at.wrapping_add(part.offset() as usize), part.blocks());
                let room = blocks.bytes() as usize;
                // SAFETY: whoever made the transfer vouches for the cache; a part lies within its
                // chunk, whose half is not used again before this lane's mark is waited for.
                unsafe {
                    self.transfer
                        .copier
                        .copy(direction, &blocks, at, room, &lane.stream)
                }
            };
            for part in parts(layout, &staged, moves) {
                if copy(&part).is_ok() {
                    continue;
                }
                // Whose fault it is shows one by one; the same bytes twice do no harm.
                for one in part.apart(layout, moves) {
                    if let Err(error) = copy(&one) {
                        all[one.pieces[0].index].fail(&text(direction, &error));
                    }
                }
            }
        }
        self.mark(direction, Mark::Moved, round, half);
    }

    /// Enqueues the copies to the host that digests need.
    fn fetch(&mut self, direction: Direction, round: &Round, half: usize) {
        let side = &mut self.sides[direction as usize];
        let staging = &self.transfer.staging[direction as usize];
        if !self.transfer.verify {
            return;
        }
        for chunk in round.chunks(direction) {
            for item in chunk.items() {
                let (offset, length) = span(item);
                let (moves, stream) = (side.moves, &side.lane.stream);
                let place = self.transfer.place(item, moves, failed(&side.all), stream);
                let staged = staging.chunk(half, chunk).wrapping_add(offset as usize);
                let from = place.unwrap_or(staged);
                // SAFETY: what is enqueued over the half later comes later in this lane's stream, or
                // after its mark has been waited for, and nobody touches the blocks moved.
                let fetched = unsafe { staging.fetch(half, chunk, offset, length, from, stream) };
                if let Err(error) = fetched {
                    side.fail(std::slice::from_ref(chunk), &text(direction, &error));
                }
            }
        }
        self.mark(direction, Mark::Fetched, round, half);
    }

    fn mark(&mut self, direction: Direction, mark: Mark, round: &Round, half: usize) {
        let (side, chunks) = (&mut self.sides[direction as usize], round.chunks(direction));
        if chunks.is_empty() {
            return;
        }
        if let Err(error) = side.lane.record(mark, half) {
            side.fail(chunks, &text(direction, &error));
            self.renew(direction);
        }
    }

    /// Waits for the copies of a round up to a mark. If they failed, so have the moves they belong
    /// to.
    fn finish(
        &mut self,
        direction: Direction,
        mark: Mark,
        round: &Round,
        half: usize,
    ) -> Result<(), String> {
        let (start, left) = (Instant::now(), self.left());
        let (side, chunks) = (&mut self.sides[direction as usize], round.chunks(direction));
        let marks = side.lane.marks(mark);
        if marks.take_lost(half) {
            let error = "lost with a stream on which an earlier copy failed";
            side.fail(chunks, error);
            return Ok(());
        }
        let result = marks.wait(half, left, || self.communicator.is_broken());
        match direction {
            Direction::Gather => self.timings.gather += start.elapsed(),
            Direction::Scatter => self.timings.scatter += start.elapsed(),
        }
        match result {
            Ok(()) => Ok(()),
            Err(error) if error.is_timeout() => {
                Err(format!("{}, before the deadline", text(direction, &error)))
            }
            Err(error) => {
                side.fail(chunks, &text(direction, &error));
                self.renew(direction);
                Ok(())
            }
        }
    }

    /// A stream on which something failed may refuse all that follows; a new one does not. It
    /// follows the engine's work as the first one did. The old one is aborted, since dropping one
    /// that stalls would wait for it without limit.
    fn renew(&mut self, direction: Direction) {
        let Side { lane, all, .. } = &mut self.sides[direction as usize];
        self.transfer.leave(&lane.stream, Duration::ZERO);
        let replaced = match lane.replace(&self.transfer.runtime) {
            Ok(()) => match self.produced.as_ref().map(|e| lane.stream.wait_event(e)) {
                Some(Err(error)) => Err(format!("{UNFOLLOWED}: {error}")),
                _ => Ok(()),
            },
            Err(error) => Err(format!("no stream in place of one that failed: {error}")),
        };
        if let Err(error) = replaced {
            all.iter_mut().for_each(|one| one.fail(&error));
        }
    }

    fn send(&mut self, round: &Round, half: usize) -> Result<(), String> {
        if self.left().is_zero() {
            return Err("the deadline passed".into());
        }
        let stream = &self.sends.stream;
        let mut items = Vec::new();
        for direction in [Direction::Gather, Direction::Scatter] {
            let side = &mut self.sides[direction as usize];
            let staging = &self.transfer.staging[direction as usize];
            for chunk in round.chunks(direction) {
                for item in chunk.items() {
                    let (offset, length) = span(item);
                    let moves = side.moves;
                    let mut place = (self.transfer).place(item, moves, failed(&side.all), stream);
                    if place.is_some() && !self.followed {
                        // A gather of this round has waited for the engine's work; nothing has
                        // before a receive.
                        let left = self.deadline.saturating_duration_since(Instant::now());
                        let given_up = || self.communicator.is_broken();
                        match self.produced.as_ref().map(|e| wait(e, left, given_up)) {
                            Some(Err(error)) => {
                                let error = format!("the engine's work on the cache: {error}");
                                side.fail(std::slice::from_ref(chunk), &error);
                                place = None;
                            }
                            _ => self.followed = true,
                        }
                    }
                    self.direct += place.map_or(0, |_| length);
                    let staged = staging.chunk(half, chunk).wrapping_add(offset as usize);
                    let (peer, pointer) = (chunk.peer, place.unwrap_or(staged));
                    let length = length as usize;
                    items.push(match direction {
                        Direction::Gather => SendRecv::Send {
                            peer,
                            pointer,
                            length,
                        },
                        Direction::Scatter => SendRecv::Recv {
                            peer,
                            pointer,
                            length,
                        },
                    });
                }
            }
        }
        // SAFETY: items lie within staging memory, which lives as long as the transfer, and whose
        // half is not used again before this send is waited for, or in the cache, where nobody
        // touches the blocks moved.
        unsafe { self.communicator.batch_send_recv(&items, stream) }
            .and_then(|()| Ok(self.sends.record(half)?))
            .map_err(|error| error.to_string())
    }

    fn finish_send(&mut self, half: usize) -> Result<(), String> {
        let start = Instant::now();
        let (sends, what) = (&self.sends, "the exchange of KV blocks");
        let result =
            self.communicator
                .wait_event(what, sends.event(half), &sends.stream, self.left());
        self.timings.send += start.elapsed();
        result.map_err(|error| error.to_string())
    }

    /// Digests a round's bytes, once they are on the host.
    fn digest(&mut self, direction: Direction, round: &Round, half: usize) -> Result<(), String> {
        self.finish(direction, Mark::Fetched, round, half)?;
        let start = Instant::now();
        let staging = &self.transfer.staging[direction as usize];
        let side = &mut self.sides[direction as usize];
        for chunk in round.chunks(direction) {
            let Some(bytes) = staging.fetched(half, chunk) else {
                return Ok(());
            };
            for piece in &chunk.pieces {
                let range = piece.offset as usize..(piece.offset + piece.bytes()) as usize;
                if let Some(hash) = &mut side.all[piece.index].hash {
                    hash.update(&bytes[range]);
                }
            }
        }
        self.timings.digest += start.elapsed();
        Ok(())
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// After a failure: leaves nothing behind that could touch the cache.
    fn stop(&mut self) {
        self.communicator.abort(&self.sends.stream);
        let until = Instant::now() + self.grace;
        for Side { lane, .. } in &self.sides {
            let left = until.saturating_duration_since(Instant::now());
            self.transfer.leave(&lane.stream, left);
        }
    }
}

fn text(direction: Direction, error: &DeviceError) -> String {
    match direction {
        Direction::Gather => format!("gather: {error}"),
        Direction::Scatter => format!("scatter: {error}"),
    }
}

/// Whether a move has failed, by its index.
fn failed(all: &[Progress]) -> impl Fn(usize) -> bool {
    move |index| all[index].error.is_some()
}
