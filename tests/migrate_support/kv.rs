//! A KV channel that copies blocks between the memories of threads.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use seqshift::collective::control::Mesh;
use seqshift::migrate::channel::{Background, KvChannel, KvMove, KvOutcome, KvReport};
use seqshift::wire::frame::Kind;

use super::engine::{Block, Memory, mix};
use super::faults::{Faults, Point};

/// Packets by source and destination rank.
type Mail = HashMap<(u32, u32), VecDeque<Vec<Block>>>;

/// What is on its way among the same shard of all ranks.
#[derive(Default)]
pub struct Fabric {
    mail: Mutex<Mail>,
    arrived: Condvar,
}

pub struct FakeKv {
    pub rank: u32,
    pub memory: Memory,
    pub fabric: Arc<Fabric>,
    pub faults: Faults,
    pub broken: bool,
    pub running: Option<Running>,
    pub layout: u64,
}

/// An exchange in the background, or what came of it: a report, and whether the link broke.
pub enum Running {
    Thread(JoinHandle<(KvReport, bool)>),
    Over((KvReport, bool)),
}

impl Running {
    fn wait(self) -> (KvReport, bool) {
        match self {
            Self::Thread(thread) => thread.join().unwrap(),
            Self::Over(result) => result,
        }
    }
}

fn failed(why: &str) -> KvOutcome {
    KvOutcome {
        digest: None,
        error: Some(why.into()),
    }
}

fn digest(blocks: &[Block]) -> Option<u64> {
    Some(blocks.iter().flatten().fold(1, |sum, slot| mix(sum, *slot)))
}

impl FakeKv {
    /// Returns once no exchange goes on in the background.
    pub fn await_copy(&mut self) {
        self.running = self.running.take().map(|one| Running::Over(one.wait()));
    }

    fn send(&self, to: u32, blocks: &[u32]) -> KvOutcome {
        let memory = self.memory.lock().unwrap();
        let mut packet: Vec<Block> = blocks.iter().map(|b| memory[*b as usize]).collect();
        let mut outcome = KvOutcome {
            digest: digest(&packet),
            error: None,
        };
        if self.faults.fires(Point::Gather) {
            packet.fill(Block::default());
            outcome = failed("gather");
        }
        if self.faults.fires(Point::Damage) {
            packet[0][0] ^= 1;
        }
        let mut mail = self.fabric.mail.lock().unwrap();
        mail.entry((self.rank, to)).or_default().push_back(packet);
        self.fabric.arrived.notify_all();
        outcome
    }

    fn receive(&self, from: u32, blocks: &[u32], deadline: Instant) -> Option<KvOutcome> {
        let mut mail = self.fabric.mail.lock().unwrap();
        let packet = loop {
            if let Some(packet) = mail.entry((from, self.rank)).or_default().pop_front() {
                break packet;
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            mail = self.fabric.arrived.wait_timeout(mail, left).unwrap().0;
        };
        if self.faults.fires(Point::Scatter) {
            return Some(failed("scatter"));
        }
        assert_eq!(packet.len(), blocks.len(), "a packet for another move");
        let mut memory = self.memory.lock().unwrap();
        for (block, content) in blocks.iter().zip(&packet) {
            memory[*block as usize] = *content;
        }
        Some(KvOutcome {
            digest: digest(&packet),
            error: None,
        })
    }
}

impl KvChannel for FakeKv {
    fn broken(&self) -> bool {
        self.running.is_none() && self.broken
    }

    fn restore(&mut self, control: &mut Mesh, deadline: Instant) -> Result<(), String> {
        let to_me = |(_, to): &(u32, u32)| *to == self.rank;
        self.fabric.mail.lock().unwrap().retain(|k, _| !to_me(k));
        // Whoever takes part has emptied its mail.
        let layouts = control
            .all_gather(Kind::Root, &self.layout.to_le_bytes(), deadline)
            .map_err(|e| e.to_string())?;
        let ours = self.layout.to_le_bytes();
        self.broken = true;
        if layouts.iter().any(|l| l.as_ref().unwrap() != &ours) {
            return Err(format!("the layout is {} here", self.layout));
        }
        self.broken = self.faults.fires(Point::Restore);
        if self.broken {
            return Err("restore".into());
        }
        Ok(())
    }

    fn exchange(&mut self, outbound: &[KvMove], inbound: &[KvMove], deadline: Instant) -> KvReport {
        self.broken |= self.faults.fires(Point::Break);
        let mut report = KvReport {
            broken: self.broken,
            ..KvReport::default()
        };
        if self.broken {
            report.outbound = vec![failed("broken"); outbound.len()];
            report.inbound = vec![failed("broken"); inbound.len()];
            return report;
        }
        let stalls = self.faults.fires(Point::Stall);
        for one in outbound.iter().filter(|_| !stalls) {
            report.outbound.push(self.send(one.peer, &one.blocks));
            report.bytes += (one.blocks.len() * size_of::<Block>()) as u64;
        }
        report.outbound.resize(outbound.len(), failed("stalled"));
        for one in inbound {
            let outcome = self.receive(one.peer, &one.blocks, deadline);
            self.broken |= outcome.is_none();
            report.inbound.push(outcome.unwrap_or(failed("stalled")));
        }
        report.broken = self.broken;
        report
    }

    fn block_bytes(&self) -> u64 {
        size_of::<Block>() as u64
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
        assert!(self.running.is_none());
        let mut copy = Self {
            memory: self.memory.clone(),
            fabric: self.fabric.clone(),
            faults: self.faults.clone(),
            running: None,
            ..*self
        };
        let mut work = move || {
            let report = copy.exchange(&outbound, &inbound, deadline);
            copy.faults.linger();
            (report, copy.broken)
        };
        if self.faults.fires(Point::Thread) {
            self.running = Some(Running::Over(work()));
            return Err("no thread".into());
        }
        self.running = Some(Running::Thread(std::thread::spawn(work)));
        Ok(())
    }

    fn abandon(&mut self) {
        self.broken = true;
    }

    fn copying(&self) -> bool {
        matches!(&self.running, Some(Running::Thread(thread)) if !thread.is_finished())
    }

    fn finish(&mut self) -> Result<Background, String> {
        self.faults.let_go();
        let Some(running) = self.running.take() else {
            return Ok(Background::default());
        };
        let (report, broken) = running.wait();
        self.broken |= broken;
        let elapsed = Duration::ZERO;
        Ok(Background { report, elapsed })
    }
}
