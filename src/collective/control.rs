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

use rustix::event::{PollFd, PollFlags};

pub use super::mesh::{Members, Mesh, Received, Tamper};
use super::mesh::{Peer, TICK, poll_for};
use crate::wire::frame::{self, HEADER, Kind};

/// Asked between waits; true ends them.
pub type Interrupt = Arc<dyn Fn() -> bool + Send + Sync>;

/// Bytes of the secret that every connection must show.
pub const SECRET: usize = 16;

/// Why an exchange failed as a whole.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The peer closed its connection or the network failed.
    #[error("{who} is gone during {during}: {why}")]
    Gone {
        /// The peer's rank in this group.
        rank: u32,
        /// The same in words.
        who: String,
        /// The exchange.
        during: String,
        /// What the system said.
        why: String,
    },
    /// The deadline passed first.
    #[error("no answer during {during} within {seconds:.1} s from {}", who.join("; "))]
    Timeout {
        /// Peers that are still awaited.
        ranks: Vec<u32>,
        /// The same in words.
        who: Vec<String>,
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
        let late = |ranks: Vec<u32>| ControlError::Timeout {
            who: ranks.iter().map(|rank| format!("rank {rank}")).collect(),
            ranks,
            during: "connection".into(),
            seconds: began.elapsed().as_secs_f64(),
        };
        let stopped = || ControlError::Interrupted("connection".into());
        for lower in 0..rank {
            let address = &addresses[lower as usize];
            let mut stream = loop {
                match dial(address, deadline) {
                    Ok(stream) => break stream,
                    Err(_) if interrupt() => return Err(stopped()),
                    Err(why) if Instant::now() >= deadline => {
                        tracing::warn!(lower, address, %why, "no connection");
                        return Err(late(vec![lower]));
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(20)),
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
                    if interrupt() {
                        return Err(stopped());
                    }
                    if Instant::now() >= deadline {
                        let missing = |r: &u32| peers[*r as usize].is_none();
                        return Err(late((rank + 1..size).filter(missing).collect()));
                    }
                    wait(&self.socket, deadline)?;
                }
                Err(e) => return Err(ControlError::Setup(format!("accept: {e}"))),
            }
        }
        Ok(Mesh::new(rank, peers, interrupt))
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

pub(super) fn setup(what: &'static str) -> impl Fn(io::Error) -> ControlError {
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
