//! How a rank leaves the group, and how the others find out who has.

use std::net::Shutdown;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::control::ControlError;
use super::mesh::{Failure, Mesh, Peer, TICK, poll_for};
use crate::wire::frame::{self, Header, Kind};
use crate::wire::{decode, encode};

/// Longest time that a rank which gives up spends on telling its peers.
const FAREWELL: Duration = Duration::from_millis(500);

/// What a frame of [`Kind::Leave`] says.
pub(super) fn last_words(bytes: &[u8]) -> Failure {
    let said = Header::parse(bytes)
        .and_then(|header| frame::open(bytes, Kind::Leave, header.check))
        .and_then(|payload| decode::<Failure>(Kind::Leave, payload));
    said.unwrap_or((None, "it has left the group".into()))
}

impl Mesh {
    /// Leaves the group for good: the peers fail at once, naming this rank and `why`.
    pub fn leave(&mut self, why: &str) {
        if self.left.is_none() {
            self.farewell(self.rank, why);
            self.left = Some(self.gone(self.rank, "an earlier check", why.to_string()));
        }
    }

    /// Tells every peer whose fault it is. Waits a moment for the words to be sent behind what
    /// is still on its way, and for the peers to have read them: closing a connection with
    /// unread bytes in it would make the peer's system throw them away.
    pub(super) fn farewell(&mut self, culprit: u32, why: &str) {
        let until = Instant::now() + FAREWELL;
        let said: Failure = (
            Some(culprit),
            format!("{why} (says {})", self.name(self.rank)),
        );
        let frame = frame::seal(Kind::Leave, u64::MAX, &encode(&said));
        let mut open: Vec<&mut Peer> = self.peers.iter_mut().flatten().collect();
        for peer in &mut open {
            peer.outbox.extend_from_slice(&frame);
        }
        loop {
            open.retain_mut(|peer| {
                let sending = !peer.outbox.is_empty();
                if sending && (peer.flush().is_err() || peer.outbox.is_empty()) {
                    // Whoever cannot be told sees the connection close.
                    let _ = peer.stream.shutdown(Shutdown::Write);
                    peer.outbox.clear();
                }
                let there = peer.fill().unwrap_or(false);
                peer.discard();
                there || !peer.outbox.is_empty()
            });
            let left = until.saturating_duration_since(Instant::now());
            if open.is_empty() || left.is_zero() {
                return;
            }
            let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(open.len());
            for peer in &open {
                let mut flags = PollFlags::IN;
                flags.set(PollFlags::OUT, !peer.outbox.is_empty());
                fds.push(PollFd::new(&peer.stream, flags));
            }
            if poll_for(&mut fds, left.min(TICK)).is_err() {
                return;
            }
        }
    }

    /// Listens between two exchanges for up to `within`: the first peer that has left, or whom
    /// it blames; one whose connection closed without a word is the culprit itself. With such
    /// news this rank leaves as well and passes them on.
    pub fn news(&mut self, within: Duration) -> Option<ControlError> {
        let until = Instant::now() + within;
        while self.left.is_none() {
            if let Some((rank, why)) = self.hear() {
                self.farewell(rank, &why);
                self.left = Some(self.gone(rank, "a step of the engine", why));
                break;
            }
            let left = until.saturating_duration_since(Instant::now());
            let peers = self.peers.iter().flatten();
            let mut fds: Vec<PollFd<'_>> = peers
                .map(|peer| PollFd::new(&peer.stream, PollFlags::IN))
                .collect();
            if left.is_zero() || fds.is_empty() || poll_for(&mut fds, left.min(TICK)).is_err() {
                break;
            }
        }
        self.left.clone()
    }

    /// The first peer that has left, or whom it blames; words count more than silence.
    fn hear(&mut self) -> Option<(u32, String)> {
        let mut silent = None;
        for (rank, peer) in (0..).zip(&mut self.peers) {
            let Some(peer) = peer else { continue };
            let open = peer.fill().unwrap_or(false);
            while let Ok(Some(bytes)) = peer.take(self.exchanges + 1) {
                if Header::parse(&bytes).is_ok_and(|h| h.kind == Kind::Leave) {
                    let (culprit, why) = last_words(&bytes);
                    return Some((culprit.unwrap_or(rank), why));
                }
            }
            if !open {
                silent.get_or_insert((rank, "it closed the connection".to_string()));
            }
        }
        silent
    }
}
