//! Exchanges among the connected ranks of one group.
//!
//! Every frame is acknowledged, and one that arrives damaged is asked for again; if that
//! does not help it is refused, so that both ends know that it was not read.
//! A rank leaves an exchange when it has everybody's frame and everybody has its
//! own, so that no two ranks are ever more than one exchange apart. A rank that
//! gives up says so, and whose fault it is, so that all name the same one.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::control::{ControlError, Interrupt, setup};
use super::farewell::last_words;
use crate::wire::WireError;
use crate::wire::frame::{self, HEADER, Header, Kind};

/// Longest time between two looks at the interrupt.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// An answer that is under way takes less than falling asleep and being woken.
const SPIN: Duration = Duration::from_micros(500);
/// Bytes read at once.
const SCRATCH: usize = 64 << 10;
/// So often in a row: between, what has arrived is looked through, and the deadline is.
const READS: u32 = 16;
/// How often a damaged frame is asked for again before its damage is reported.
const REPEATS: u32 = 3;
/// How often it is said whether a frame was read: nobody may be there to be asked again.
const VERDICTS: u32 = 2;

pub(super) fn poll_for(fds: &mut [PollFd<'_>], left: Duration) -> io::Result<()> {
    let timeout = Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Who the members of a mesh are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Members {
    /// The ranks of a DP group.
    #[default]
    Ranks,
    /// The same, of a TP shard of theirs that has this number.
    RanksOfShard(u32),
    /// The TP shards of the DP rank of this number.
    ShardsOfRank(u32),
}

/// What one peer sent, or why it could not be read.
pub type Received = Result<Vec<u8>, WireError>;

/// Changes frames on their way out: the faults that tests inject.
pub trait Tamper: Send {
    /// The bytes to send instead of `frame`; none at all, or several frames, are
    /// possible too. Called again for a frame that is repeated.
    fn outgoing(&mut self, kind: Kind, peer: u32, frame: Vec<u8>) -> Vec<u8>;
}

/// One connection.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) stream: TcpStream,
    inbox: Vec<u8>,
    /// Bytes of the inbox that are taken.
    taken: usize,
    pub(super) outbox: Vec<u8>,
    /// Bytes of the outbox that are sent.
    sent: usize,
    /// What is read goes through here; kept, since a wait reads many times in vain.
    scratch: Box<[u8]>,
}

impl Peer {
    pub(super) fn new(stream: TcpStream) -> Result<Self, ControlError> {
        stream.set_nodelay(true).map_err(setup("nodelay"))?;
        stream
            .set_nonblocking(true)
            .map_err(setup("cannot unblock"))?;
        Ok(Self {
            stream,
            inbox: Vec::new(),
            taken: 0,
            outbox: Vec::new(),
            sent: 0,
            scratch: vec![0; SCRATCH].into(),
        })
    }

    /// Reads what has arrived, up to some amount. False when the peer has closed.
    pub(super) fn fill(&mut self) -> io::Result<bool> {
        for _ in 0..READS {
            match self.stream.read(&mut self.scratch) {
                Ok(0) => return Ok(false),
                Ok(n) => self.inbox.extend_from_slice(&self.scratch[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Drops what has been read.
    pub(super) fn discard(&mut self) {
        self.inbox.clear();
        self.taken = 0;
    }

    /// Writes as much as the connection takes.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.outbox.len() {
            match self.stream.write(&self.outbox[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.outbox.clear();
        self.sent = 0;
        Ok(())
    }

    /// Takes the next frame out of the inbox that is not of an earlier exchange than `number`.
    pub(super) fn take(&mut self, number: u64) -> Result<Option<Vec<u8>>, WireError> {
        loop {
            let waiting = &self.inbox[self.taken..];
            let length = match waiting.len() < HEADER {
                true => HEADER,
                false => frame::extent(waiting)?,
            };
            if waiting.len() < length {
                self.inbox.drain(..std::mem::take(&mut self.taken));
                return Ok(None);
            }
            let frame = waiting[..length].to_vec();
            self.taken += length;
            match Header::parse(&frame) {
                Ok(header) if header.check < number => {
                    let (kind, stale) = (header.kind, header.check);
                    if !matches!(kind, Kind::Ack | Kind::Refused) {
                        tracing::warn!(%kind, stale, number, "dropped a stale frame");
                    }
                }
                _ => return Ok(Some(frame)),
            }
        }
    }
}

/// Why an exchange with one peer cannot go on: whose fault it is, if not the peer's own, and what.
pub(super) type Failure = (Option<u32>, String);

/// How far one exchange has come with one peer.
struct Half {
    /// What the peer is to get.
    frame: Vec<u8>,
    acknowledged: bool,
    /// The peer could not read it.
    refused: bool,
    received: Option<Received>,
    repeats: u32,
    /// Frames that could not be read behind the one that was awaited.
    unreadable: u32,
    /// How often the peer has asked for its frame again.
    asked: u32,
}

impl Half {
    /// What one whole frame means; the answer to it, if it needs one.
    fn handle(&mut self, bytes: &[u8], kind: Kind, number: u64) -> Result<Option<Kind>, Failure> {
        match Header::parse(bytes) {
            Ok(header) if header.kind == Kind::Leave => return Err(last_words(bytes)),
            Ok(header) if header.check > number => {
                let (kind, early) = (header.kind, header.check);
                let why = format!("it sent {kind} of exchange {early} in {number}");
                return Err((None, why));
            }
            Ok(header) if matches!(header.kind, Kind::Ack | Kind::Refused) => {
                self.acknowledged = true;
                self.refused = header.kind == Kind::Refused;
                return Ok(None);
            }
            Ok(header) if header.kind == Kind::Again => {
                // Twice as often as a peer asks: on the way one may be doubled.
                self.asked += 1;
                return Ok((self.asked <= 2 * REPEATS).then_some(kind));
            }
            Err(why) if self.received.is_some() => {
                // The peer may have asked for the frame again.
                self.unreadable += 1;
                let repeat = !self.acknowledged && self.unreadable <= REPEATS;
                tracing::warn!(%kind, number, %why, repeat, "dropped an unreadable frame");
                return Ok(repeat.then_some(kind));
            }
            _ if self.received.is_some() => {
                tracing::warn!(%kind, number, "dropped a duplicated frame");
                return Ok(None);
            }
            _ => {}
        }
        match frame::open(bytes, kind, number) {
            Ok(payload) => self.received = Some(Ok(payload.to_vec())),
            Err(why) if self.repeats < REPEATS => {
                tracing::warn!(%kind, number, %why, "a frame is asked for again");
                self.repeats += 1;
                return Ok(Some(Kind::Again));
            }
            Err(why) => {
                self.received = Some(Err(why));
                return Ok(Some(Kind::Refused));
            }
        }
        Ok(Some(Kind::Ack))
    }

    fn done(&self) -> bool {
        self.acknowledged && self.received.is_some()
    }
}

/// The connected ranks of one group. All ranks call the same exchanges in the
/// same order; each carries a number, so that a stale frame is recognised.
pub struct Mesh {
    pub(super) rank: u32,
    pub(super) peers: Vec<Option<Peer>>,
    pub(super) exchanges: u64,
    /// Ranks that could not read this rank's frame of the last exchange.
    refused: Vec<u32>,
    interrupt: Interrupt,
    tamper: Option<Box<dyn Tamper>>,
    members: Members,
    /// Why this rank has left the group.
    pub(super) left: Option<ControlError>,
}

impl std::fmt::Debug for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mesh({} of {})", self.rank, self.peers.len())
    }
}

impl Mesh {
    pub(super) fn new(rank: u32, peers: Vec<Option<Peer>>, interrupt: Interrupt) -> Self {
        Self {
            rank,
            peers,
            exchanges: 0,
            refused: Vec::new(),
            interrupt,
            tamper: None,
            members: Members::Ranks,
            left: None,
        }
    }

    /// A group of one, for which every exchange is its own answer.
    pub fn alone() -> Self {
        Self::new(0, vec![None], Arc::new(|| false))
    }

    /// Lets `tamper` have every frame that leaves from here.
    pub fn set_tamper(&mut self, tamper: Box<dyn Tamper>) {
        self.tamper = Some(tamper);
    }

    /// Says what the members are, for messages.
    pub fn set_members(&mut self, members: Members) {
        self.members = members;
    }

    /// A member in words.
    pub fn name(&self, member: u32) -> String {
        match self.members {
            Members::Ranks => format!("rank {member}"),
            Members::RanksOfShard(shard) => format!("rank {member}, TP shard {shard}"),
            Members::ShardsOfRank(rank) => format!("rank {rank}, TP shard {member}"),
        }
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.peers.len() as u32
    }

    /// The ranks for which this rank's payload of the last exchange arrived damaged too often.
    pub fn refused(&self) -> &[u32] {
        &self.refused
    }

    /// Sends the same payload to all and returns every rank's, own included.
    ///
    /// # Errors
    /// [`ControlError`] when a peer is gone or the deadline passes; a payload
    /// that keeps arriving damaged is that peer's entry.
    pub fn all_gather(
        &mut self,
        kind: Kind,
        payload: &[u8],
        deadline: Instant,
    ) -> Result<Vec<Received>, ControlError> {
        let size = self.peers.len();
        self.all_to_all(kind, vec![payload.to_vec(); size], deadline)
    }

    /// Sends `payloads[r]` to rank r and returns what every rank sent here. After
    /// an error the mesh is of no more use, and gives that error again.
    ///
    /// # Errors
    /// As [`Mesh::all_gather`].
    pub fn all_to_all(
        &mut self,
        kind: Kind,
        payloads: Vec<Vec<u8>>,
        deadline: Instant,
    ) -> Result<Vec<Received>, ControlError> {
        if let Some(why) = &self.left {
            return Err(why.clone());
        }
        let result = self.exchange(kind, payloads, deadline);
        match &result {
            Err(ControlError::Gone { rank, why, .. }) => self.farewell(*rank, why),
            // The others' deadlines pass at about the same time; each names whom it misses.
            Err(ControlError::Timeout { .. }) | Ok(_) => {}
            Err(other) => self.farewell(self.rank, &other.to_string()),
        }
        self.left = result.as_ref().err().cloned();
        result
    }

    fn exchange(
        &mut self,
        kind: Kind,
        payloads: Vec<Vec<u8>>,
        deadline: Instant,
    ) -> Result<Vec<Received>, ControlError> {
        let began = Instant::now();
        // Whoever stops must do so before the others have what they wait for.
        if (self.interrupt)() {
            return Err(ControlError::Interrupted(kind.to_string()));
        }
        self.exchanges += 1;
        let number = self.exchanges;
        let mut halves = Vec::with_capacity(payloads.len());
        for (rank, payload) in payloads.into_iter().enumerate() {
            let own = self.peers[rank].is_none();
            let mut half = Half {
                frame: Vec::new(),
                acknowledged: own,
                refused: false,
                received: None,
                repeats: 0,
                unreadable: 0,
                asked: 0,
            };
            if own {
                half.received = Some(Ok(payload));
            } else {
                half.frame = frame::seal(kind, number, &payload);
                self.queue(rank, kind, &half.frame);
            }
            halves.push(half);
        }
        loop {
            let mut waiting = Vec::new();
            for (rank, half) in halves.iter_mut().enumerate() {
                let done = self.advance(rank, half, kind, number);
                let done = done.map_err(|(culprit, why)| {
                    self.gone(culprit.unwrap_or(rank as u32), &kind.to_string(), why)
                })?;
                if !done {
                    waiting.push(rank as u32);
                }
            }
            if waiting.is_empty() {
                let ranks = (0..).zip(&halves);
                self.refused = ranks.filter(|(_, h)| h.refused).map(|(r, _)| r).collect();
                return Ok(halves.into_iter().filter_map(|h| h.received).collect());
            }
            // Peers whose frames are here may be through already: then this rank goes through, too.
            let missing = halves.iter().any(|half| half.received.is_none());
            if missing && (self.interrupt)() {
                return Err(ControlError::Interrupted(kind.to_string()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let seconds = began.elapsed().as_secs_f64();
                return Err(ControlError::Timeout {
                    who: waiting.iter().map(|rank| self.name(*rank)).collect(),
                    ranks: waiting,
                    during: kind.to_string(),
                    seconds,
                });
            }
            if began.elapsed() < SPIN {
                std::thread::yield_now();
                continue;
            }
            let mut fds = Vec::with_capacity(waiting.len());
            for rank in waiting {
                if let Some(peer) = &self.peers[rank as usize] {
                    let mut flags = PollFlags::empty();
                    flags.set(PollFlags::IN, !halves[rank as usize].done());
                    flags.set(PollFlags::OUT, !peer.outbox.is_empty());
                    fds.push(PollFd::new(&peer.stream, flags));
                }
            }
            poll_for(&mut fds, left.min(TICK)).map_err(setup("poll"))?;
        }
    }

    pub(super) fn gone(&self, rank: u32, during: &str, why: String) -> ControlError {
        ControlError::Gone {
            rank,
            who: self.name(rank),
            during: during.into(),
            why,
        }
    }

    fn queue(&mut self, rank: usize, kind: Kind, frame: &[u8]) {
        let Some(peer) = &mut self.peers[rank] else {
            return;
        };
        match &mut self.tamper {
            Some(tamper) => {
                let bytes = tamper.outgoing(kind, rank as u32, frame.to_vec());
                peer.outbox.extend(bytes);
            }
            None => peer.outbox.extend_from_slice(frame),
        }
    }

    /// Writes and reads what can be now; whether the exchange with this peer is complete.
    fn advance(
        &mut self,
        rank: usize,
        half: &mut Half,
        kind: Kind,
        number: u64,
    ) -> Result<bool, Failure> {
        let text = |e: io::Error| (None, e.to_string());
        let Some(peer) = &mut self.peers[rank] else {
            return Ok(true);
        };
        // What has arrived counts first: a peer that is gone may have said why.
        let flushed = peer.flush();
        let filled = if half.done() { Ok(true) } else { peer.fill() };
        // What follows a complete exchange belongs to the next one.
        while !half.done()
            && let Some(peer) = &mut self.peers[rank]
            // A damaged header leaves no way to find the next frame.
            && let Some(bytes) = peer.take(number).map_err(|e| (None, e.to_string()))?
        {
            match half.handle(&bytes, kind, number)? {
                Some(verdict @ (Kind::Ack | Kind::Refused)) => {
                    let frame = frame::seal(verdict, number, &[]);
                    (0..VERDICTS).for_each(|_| self.queue(rank, verdict, &frame));
                }
                Some(Kind::Again) => {
                    self.queue(rank, Kind::Again, &frame::seal(Kind::Again, number, &[]));
                }
                Some(_) => self.queue(rank, kind, &half.frame),
                None => {}
            }
        }
        let Some(peer) = &mut self.peers[rank] else {
            return Ok(true);
        };
        flushed.and_then(|()| peer.flush()).map_err(text)?;
        if !filled.map_err(text)? && !half.done() {
            return Err((None, "it closed the connection".into()));
        }
        Ok(half.done() && peer.outbox.is_empty())
    }
}
