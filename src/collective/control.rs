//! The control channel: a full mesh of TCP connections among the ranks of one
//! group, apart from the KV's own communicator, so that a stalled transfer
//! does not take it along.
//!
//! Every wait has a deadline and names the peer that it waited for; a peer that
//! dies is noticed at once, since its connection closes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::wire::WireError;
use crate::wire::frame::{self, HEADER, Header, Kind};

/// Asked between waits; true ends them.
pub type Interrupt = Arc<dyn Fn() -> bool + Send + Sync>;

/// Longest time between two looks at the interrupt.
const TICK: Duration = Duration::from_millis(100);
/// Bytes of the secret that every connection must show.
pub const SECRET: usize = 16;

/// Why an exchange failed as a whole.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The peer closed its connection or the network failed.
    #[error("rank {rank} is gone during {during}: {why}")]
    Gone {
        /// The peer's rank in this group.
        rank: u32,
        /// The exchange.
        during: String,
        /// What the system said.
        why: String,
    },
    /// The deadline passed first.
    #[error("rank(s) {ranks:?} did not answer during {during} within {seconds:.1} s")]
    Timeout {
        /// Peers that are still awaited.
        ranks: Vec<u32>,
        /// The exchange.
        during: String,
        /// How long was waited.
        seconds: f64,
    },
    /// The interrupt asked to stop.
    #[error("interrupted during {0}")]
    Interrupted(String),
    /// The listener or a first connection could not be made.
    #[error("control channel: {0}")]
    Setup(String),
}

/// A listening socket, and the secret that peers must show.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    secret: [u8; SECRET],
}

impl Listener {
    /// Listens on a free port of all interfaces.
    ///
    /// # Errors
    /// [`ControlError::Setup`] when no port can be had.
    pub fn bind(secret: [u8; SECRET]) -> Result<Self, ControlError> {
        let socket = TcpListener::bind(("0.0.0.0", 0)).map_err(setup("cannot listen"))?;
        Ok(Self { socket, secret })
    }

    /// The port that peers connect to.
    ///
    /// # Errors
    /// [`ControlError::Setup`] when the system does not say.
    pub fn port(&self) -> Result<u16, ControlError> {
        Ok(self
            .socket
            .local_addr()
            .map_err(setup("no local address"))?
            .port())
    }

    /// Connects to every lower rank and accepts every higher one.
    ///
    /// `addresses` has one "host:port" per rank; `secret` is the one that all
    /// ranks share.
    ///
    /// # Errors
    /// [`ControlError::Timeout`] names the ranks that are missing at the deadline.
    pub fn connect(
        self,
        rank: u32,
        addresses: &[String],
        deadline: Instant,
        interrupt: Interrupt,
    ) -> Result<Mesh, ControlError> {
        let began = Instant::now();
        let size = addresses.len() as u32;
        let mut peers: Vec<Option<Peer>> = (0..size).map(|_| None).collect();
        let hello = self.hello(rank);
        for lower in 0..rank {
            let address = &addresses[lower as usize];
            let mut stream = loop {
                match dial(address, deadline) {
                    Ok(stream) => break stream,
                    Err(_) if Instant::now() < deadline && !interrupt() => {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    Err(e) => return Err(ControlError::Setup(format!("{address}: {e}"))),
                }
            };
            stream.write_all(&hello).map_err(setup("cannot greet"))?;
            peers[lower as usize] = Some(Peer::new(stream)?);
        }
        self.socket
            .set_nonblocking(true)
            .map_err(setup("cannot unblock"))?;
        while peers.iter().skip(rank as usize + 1).any(Option::is_none) {
            match self.socket.accept() {
                Ok((stream, _)) => {
                    if let Some(higher) = self.greet(&stream, rank, size, deadline) {
                        peers[higher as usize] = Some(Peer::new(stream)?);
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    let during = "connection".to_string();
                    if interrupt() {
                        return Err(ControlError::Interrupted(during));
                    }
                    if Instant::now() >= deadline {
                        let missing = (rank + 1..size)
                            .filter(|r| peers[*r as usize].is_none())
                            .collect();
                        let seconds = began.elapsed().as_secs_f64();
                        return Err(ControlError::Timeout {
                            ranks: missing,
                            during,
                            seconds,
                        });
                    }
                    wait(&self.socket, deadline)?;
                }
                Err(e) => return Err(ControlError::Setup(format!("accept: {e}"))),
            }
        }
        Ok(Mesh {
            rank,
            peers,
            exchanges: 0,
            interrupt,
        })
    }

    fn hello(&self, rank: u32) -> Vec<u8> {
        let mut payload = self.secret.to_vec();
        payload.extend_from_slice(&rank.to_le_bytes());
        frame::seal(Kind::Hello, 0, &payload)
    }

    /// The rank of a new connection, or None for a stranger.
    fn greet(&self, stream: &TcpStream, rank: u32, size: u32, deadline: Instant) -> Option<u32> {
        let left = deadline.saturating_duration_since(Instant::now()).max(TICK);
        stream
            .set_read_timeout(Some(left.min(Duration::from_secs(5))))
            .ok()?;
        let mut hello = [0; HEADER + SECRET + 4];
        (&mut &*stream).read_exact(&mut hello).ok()?;
        let payload = frame::open(&hello, Kind::Hello, 0).ok()?;
        let (secret, theirs) = payload.split_first_chunk::<SECRET>()?;
        let theirs = u32::from_le_bytes(theirs.try_into().ok()?);
        (*secret == self.secret && theirs > rank && theirs < size).then_some(theirs)
    }
}

fn setup(what: &'static str) -> impl Fn(io::Error) -> ControlError {
    move |e| ControlError::Setup(format!("{what}: {e}"))
}

fn dial(address: &str, deadline: Instant) -> io::Result<TcpStream> {
    let target = address
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::new(ErrorKind::NotFound, "no such host"))?;
    let left = deadline.saturating_duration_since(Instant::now()).max(TICK);
    TcpStream::connect_timeout(&target, left.min(Duration::from_secs(5)))
}

/// Waits a tick for something to accept.
fn wait(socket: &TcpListener, deadline: Instant) -> Result<(), ControlError> {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    let left = deadline.saturating_duration_since(Instant::now()).min(TICK);
    poll_for(&mut fds, left).map_err(setup("poll"))
}

fn poll_for(fds: &mut [PollFd<'_>], left: Duration) -> io::Result<()> {
    let timeout = Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

#[derive(Debug)]
struct Peer {
    stream: TcpStream,
    inbox: Vec<u8>,
}

impl Peer {
    fn new(stream: TcpStream) -> Result<Self, ControlError> {
        stream.set_nodelay(true).map_err(setup("nodelay"))?;
        stream
            .set_nonblocking(true)
            .map_err(setup("cannot unblock"))?;
        Ok(Self {
            stream,
            inbox: Vec::new(),
        })
    }

    /// Reads what has arrived. False when the peer has closed.
    fn fill(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 64 << 10];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Ok(false),
                Ok(n) => self.inbox.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Takes the frame numbered `number` out of the inbox; older ones are stale and dropped.
    fn take(&mut self, number: u64) -> Result<Option<Vec<u8>>, WireError> {
        loop {
            if self.inbox.len() < HEADER {
                return Ok(None);
            }
            let header = Header::parse(&self.inbox)?;
            let length = HEADER + header.length as usize;
            if self.inbox.len() < length {
                return Ok(None);
            }
            let rest = self.inbox.split_off(length);
            let frame = std::mem::replace(&mut self.inbox, rest);
            if header.check >= number {
                return Ok(Some(frame));
            }
            tracing::warn!(kind = %header.kind, number = header.check, "dropped a stale frame");
        }
    }
}

/// What one peer sent, or why it could not be read.
pub type Received = Result<Vec<u8>, WireError>;

/// The connected ranks of one group. All ranks call the same exchanges in the
/// same order; each carries a number, so that a stale frame is recognised.
pub struct Mesh {
    rank: u32,
    peers: Vec<Option<Peer>>,
    exchanges: u64,
    interrupt: Interrupt,
}

impl std::fmt::Debug for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mesh({} of {})", self.rank, self.peers.len())
    }
}

impl Mesh {
    /// A group of one, for which every exchange is its own answer.
    pub fn alone() -> Self {
        Self {
            rank: 0,
            peers: vec![None],
            exchanges: 0,
            interrupt: Arc::new(|| false),
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

    /// Sends the same payload to all and returns every rank's, own included.
    ///
    /// # Errors
    /// [`ControlError`] when a peer is gone or the deadline passes; a payload
    /// that arrived damaged is that peer's entry.
    pub fn all_gather(
        &mut self,
        kind: Kind,
        payload: &[u8],
        deadline: Instant,
    ) -> Result<Vec<Received>, ControlError> {
        let size = self.peers.len();
        self.all_to_all(kind, vec![payload.to_vec(); size], deadline)
    }

    /// Sends `payloads[r]` to rank r and returns what every rank sent here.
    ///
    /// # Errors
    /// As [`Mesh::all_gather`].
    pub fn all_to_all(
        &mut self,
        kind: Kind,
        mut payloads: Vec<Vec<u8>>,
        deadline: Instant,
    ) -> Result<Vec<Received>, ControlError> {
        let began = Instant::now();
        self.exchanges += 1;
        let number = self.exchanges;
        let own = self.rank as usize;
        let mut received: Vec<Option<Received>> = self.peers.iter().map(|_| None).collect();
        received[own] = Some(Ok(std::mem::take(&mut payloads[own])));
        let frames: Vec<Vec<u8>> = payloads
            .iter()
            .map(|payload| frame::seal(kind, number, payload))
            .collect();
        let mut sent = vec![0; frames.len()];
        sent[own] = frames[own].len();
        loop {
            for (rank, peer) in self.peers.iter_mut().enumerate() {
                let Some(peer) = peer else { continue };
                let gone = |why: String| ControlError::Gone {
                    rank: rank as u32,
                    during: kind.to_string(),
                    why,
                };
                push(&mut peer.stream, &frames[rank], &mut sent[rank])
                    .map_err(|e| gone(e.to_string()))?;
                if received[rank].is_none() {
                    let open = peer.fill().map_err(|e| gone(e.to_string()))?;
                    // A damaged header leaves no way to find the next frame.
                    if let Some(bytes) = peer.take(number).map_err(|e| gone(e.to_string()))? {
                        let payload = frame::open(&bytes, kind, number);
                        received[rank] = Some(payload.map(<[u8]>::to_vec));
                    } else if !open {
                        return Err(gone("it closed the connection".into()));
                    }
                }
            }
            let waiting: Vec<u32> = (0..received.len())
                .filter(|r| received[*r].is_none() || sent[*r] < frames[*r].len())
                .map(|r| r as u32)
                .collect();
            if waiting.is_empty() {
                return Ok(received.into_iter().flatten().collect());
            }
            if (self.interrupt)() {
                return Err(ControlError::Interrupted(kind.to_string()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let seconds = began.elapsed().as_secs_f64();
                return Err(ControlError::Timeout {
                    ranks: waiting,
                    during: kind.to_string(),
                    seconds,
                });
            }
            let mut fds = Vec::with_capacity(waiting.len());
            for rank in &waiting {
                let rank = *rank as usize;
                if let Some(peer) = &self.peers[rank] {
                    let mut flags = PollFlags::empty();
                    flags.set(PollFlags::IN, received[rank].is_none());
                    flags.set(PollFlags::OUT, sent[rank] < frames[rank].len());
                    fds.push(PollFd::new(&peer.stream, flags));
                }
            }
            poll_for(&mut fds, left.min(TICK)).map_err(setup("poll"))?;
        }
    }
}

/// Writes as much of `frame` as the connection takes.
fn push(stream: &mut TcpStream, frame: &[u8], sent: &mut usize) -> io::Result<()> {
    while *sent < frame.len() {
        match stream.write(&frame[*sent..]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => *sent += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
