//! Groups of ranks on this machine, one thread each, and faults in what they send.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::thread;
use std::time::{Duration, Instant};

use seqshift::collective::control::{ControlError, Interrupt, Listener, Mesh, Received, SECRET};
use seqshift::collective::fault::Fault;
use seqshift::wire::frame::Kind;

pub const OURS: [u8; SECRET] = [7; SECRET];
pub const LONG: Duration = Duration::from_secs(60);
/// What "at once" may take on a machine with better things to do.
pub const SOON: Duration = Duration::from_secs(10);

/// Held for reading by every test, for writing by the one that counts sockets.
pub static SOCKETS: RwLock<()> = RwLock::new(());

pub fn shared() -> RwLockReadGuard<'static, ()> {
    SOCKETS.read().unwrap_or_else(PoisonError::into_inner)
}

pub fn later(time: Duration) -> Instant {
    Instant::now() + time
}

pub fn never() -> Interrupt {
    Arc::new(|| false)
}

/// Listeners and their addresses, by rank.
pub fn listeners(ranks: u32) -> (Vec<Listener>, Vec<String>) {
    let all: Vec<_> = (0..ranks).map(|_| Listener::bind(OURS).unwrap()).collect();
    let addresses = all
        .iter()
        .map(|l| format!("127.0.0.1:{}", l.port().unwrap()))
        .collect();
    (all, addresses)
}

/// Runs `act` on every item in a thread of its own; results in order.
pub fn everywhere<T: Send, R: Send>(
    items: Vec<T>,
    act: impl Fn(u32, T) -> R + Copy + Send,
) -> Vec<R> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(items)
            .map(|(rank, item)| scope.spawn(move || act(rank, item)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

pub fn group(ranks: u32) -> Vec<Mesh> {
    let (all, addresses) = listeners(ranks);
    let addresses = &addresses;
    everywhere(all, |rank, listener| {
        listener
            .connect(rank, addresses, later(LONG), never())
            .unwrap()
    })
}

pub fn pattern(from: u32, to: u32, length: usize) -> Vec<u8> {
    let start = from * 31 + to * 7;
    (start..).take(length).map(|i| (i % 251) as u8).collect()
}

/// One gather of the ranks' own numbers; the meshes can go on afterwards.
pub fn gather(meshes: Vec<Mesh>, kind: Kind) -> Vec<(Mesh, Result<Vec<Received>, ControlError>)> {
    everywhere(meshes, |rank, mut mesh| {
        let result = mesh.all_gather(kind, &[rank as u8; 40], later(LONG));
        (mesh, result)
    })
}

pub fn whole(ranks: u32) -> Vec<Received> {
    (0..ranks).map(|r| Ok(vec![r as u8; 40])).collect()
}

pub fn with_fault(ranks: u32, text: &str) -> Vec<Mesh> {
    let fault: Fault = text.parse().unwrap();
    let mut meshes = group(ranks);
    for (rank, mesh) in (0..).zip(&mut meshes) {
        if let Some(tamper) = fault.clone().on(rank) {
            mesh.set_tamper(tamper);
        }
    }
    meshes
}
