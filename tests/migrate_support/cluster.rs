//! All ranks and shards of one group, and what must hold between steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use seqshift::collective::control::{Listener, Mesh, SECRET};
use seqshift::collective::fault::Fault;
use seqshift::migrate::policy::Policy;
use seqshift::migrate::{MigrateError, Migrator, Precopied, Precopy, Report};

use super::engine::{BLOCK_SIZE, FakeEngine, token};
use super::faults::Faults;
use super::kv::{Fabric, FakeKv};

/// One TP shard of one rank.
pub struct Cell {
    pub engine: FakeEngine,
    pub faults: Faults,
    migrator: Migrator<FakeKv>,
}

pub struct Shape {
    pub ranks: u32,
    pub shards: u32,
    /// KV blocks and slots of each rank.
    pub blocks: u32,
    pub slots: usize,
    pub deadline: Duration,
}

pub const SHAPE: Shape = Shape {
    ranks: 2,
    shards: 1,
    blocks: 64,
    slots: 16,
    deadline: Duration::from_secs(60),
};

pub struct Cluster {
    /// By rank, then by shard.
    pub cells: Vec<Cell>,
    shape: Shape,
    step: u64,
    /// The step of the check that a copy in the background has announced.
    pub resume: Option<u64>,
    /// What came of copies in the background, by cell, in the last check.
    pub precopied: Vec<Precopied>,
    /// Name, rank of origin, prompt tokens, tokens to generate.
    requests: Vec<(String, u32, usize, u32)>,
    aborted: BTreeSet<String>,
}

pub type Checked = Vec<Result<Report, MigrateError>>;

fn mesh(listener: Listener, rank: usize, addresses: &[String]) -> Mesh {
    if addresses.len() == 1 {
        return Mesh::alone();
    }
    let until = Instant::now() + Duration::from_secs(60);
    listener
        .connect(rank as u32, addresses, until, Arc::new(|| false))
        .unwrap()
}

fn listen(count: u32) -> (Vec<Listener>, Vec<String>) {
    let bind = |_| Listener::bind([3; SECRET]).unwrap();
    let all: Vec<_> = (0..count).map(bind).collect();
    let address = |l: &Listener| format!("127.0.0.1:{}", l.port().unwrap());
    let addresses = all.iter().map(address).collect();
    (all, addresses)
}

impl Cluster {
    /// `fault`: what happens to control messages, as in `SEQSHIFT_TEST_FAULT`, on shard 0.
    pub fn new(shape: Shape, policy: impl Fn() -> Box<dyn Policy>, fault: Option<&str>) -> Self {
        let (ranks, shards) = (shape.ranks as usize, shape.shards as usize);
        let mut dp: Vec<_> = (0..shards).map(|_| listen(shape.ranks)).collect();
        let mut tp: Vec<_> = (0..ranks).map(|_| listen(shape.shards)).collect();
        let meshes: Vec<(Mesh, Mesh)> = thread::scope(|scope| {
            let mut threads = Vec::new();
            for (rank, tp) in tp.iter_mut().enumerate() {
                for (shard, dp) in dp.iter_mut().enumerate() {
                    let (dp_end, tp_end) = (dp.0.remove(0), tp.0.remove(0));
                    let (dp_all, tp_all) = (dp.1.clone(), tp.1.clone());
                    threads.push(scope.spawn(move || {
                        let dp = mesh(dp_end, rank, &dp_all);
                        (dp, mesh(tp_end, shard, &tp_all))
                    }));
                }
            }
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let fabrics: Vec<Arc<Fabric>> = (0..shards).map(|_| Arc::default()).collect();
        let cell = |(at, (mut dp, tp)): (usize, (Mesh, Mesh))| {
            let (rank, shard) = ((at / shards) as u32, at % shards);
            let faults = Faults::default();
            let (blocks, slots) = (shape.blocks, shape.slots);
            let engine = FakeEngine::new(rank, shard as u32, blocks, slots, faults.clone());
            let fault = fault.filter(|_| shard == 0);
            let fault = fault.and_then(|text| text.parse::<Fault>().unwrap().on(rank));
            if let Some(tamper) = fault {
                dp.set_tamper(tamper);
            }
            let kv = FakeKv {
                rank,
                memory: engine.memory.clone(),
                fabric: fabrics[shard].clone(),
                faults: faults.clone(),
                broken: false,
                running: None,
                layout: 1,
            };
            Cell {
                engine,
                faults,
                migrator: Migrator::new(dp, tp, kv, policy(), BLOCK_SIZE, shape.deadline),
            }
        };
        Self {
            cells: meshes.into_iter().enumerate().map(cell).collect(),
            shape,
            step: 0,
            resume: None,
            precopied: Vec::new(),
            requests: Vec::new(),
            aborted: BTreeSet::new(),
        }
    }

    /// Steps so far.
    pub fn now(&self) -> u64 {
        self.step
    }

    /// Every plan is preceded by a copy in the background.
    pub fn precopy(&mut self) {
        for cell in &mut self.cells {
            cell.migrator.set_precopy(Precopy::Always);
        }
    }

    pub fn preempt(&mut self, rank: u32, name: &str) {
        for cell in self.of(rank) {
            cell.engine.preempt(name);
        }
    }

    /// Steps up to the check that a copy in the background has announced.
    pub fn step_to_resume(&mut self) {
        let resume = self.resume.expect("nothing is being copied");
        while self.step < resume {
            self.step();
        }
    }

    /// Returns once nothing is copied in the background any more.
    pub fn await_copies(&mut self) {
        for cell in &mut self.cells {
            cell.migrator.kv().await_copy();
        }
    }

    /// A shard's caches are made anew, with this fingerprint.
    pub fn set_layout(&mut self, rank: u32, shard: u32, layout: u64) {
        self.cell(rank, shard).migrator.kv().layout = layout;
    }

    /// Every engine leaves its group while KV may be copied in the background.
    pub fn abandon(&mut self) -> Vec<Precopied> {
        self.resume = None;
        self.everywhere(|c, _| c.migrator.abandon(&mut c.engine).unwrap())
    }

    /// The rollout ends while KV may be copied in the background.
    pub fn cancel(&mut self) -> Vec<Precopied> {
        self.resume = None;
        self.everywhere(|c, _| c.migrator.cancel(&mut c.engine).unwrap())
    }

    pub fn add(&mut self, rank: u32, name: &str, prompt: usize, length: u32) {
        for cell in self.of(rank) {
            cell.engine.add(name, prompt, length);
        }
        self.requests.push((name.into(), rank, prompt, length));
    }

    pub fn abort(&mut self, rank: u32, name: &str) {
        for cell in self.of(rank) {
            cell.engine.abort(name);
        }
        self.aborted.insert(name.into());
    }

    /// The shards of a rank.
    fn of(&mut self, rank: u32) -> &mut [Cell] {
        let shards = self.shape.shards as usize;
        let first = rank as usize * shards;
        &mut self.cells[first..first + shards]
    }

    pub fn cell(&mut self, rank: u32, shard: u32) -> &mut Cell {
        &mut self.of(rank)[shard as usize]
    }

    /// One engine step everywhere: what has a slot runs, and runs in one place only.
    pub fn step(&mut self) {
        self.step += 1;
        for cell in &mut self.cells {
            cell.engine.step();
        }
        for shard in 0..self.shape.shards {
            let engines = || self.engines(shard);
            let ran: Vec<&String> = engines().flat_map(|e| &e.ran).collect();
            let once: BTreeSet<&String> = ran.iter().copied().collect();
            assert_eq!(once.len(), ran.len(), "run twice: {ran:?}");
        }
    }

    fn engines(&self, shard: u32) -> impl Iterator<Item = &FakeEngine> {
        let of = self.cells.iter().map(|c| &c.engine);
        of.filter(move |e| e.shard == shard)
    }

    /// Every unfinished request is in one place of each shard's group, the same one in each.
    pub fn verify(&mut self) {
        for cell in &mut self.cells {
            cell.engine.settle();
        }
        let mut first: Option<BTreeMap<String, (u32, bool)>> = None;
        for shard in 0..self.shape.shards {
            let mut places = BTreeMap::new();
            for engine in self.engines(shard) {
                for (list, runs) in [(&engine.running, true), (&engine.waiting, false)] {
                    for sequence in list {
                        let place = (engine.rank, runs);
                        let other = places.insert(sequence.name.clone(), place);
                        assert_eq!(other, None, "{} is in two places", sequence.name);
                    }
                }
            }
            for (name, rank, ..) in &self.requests {
                if self.aborted.contains(name) {
                    continue;
                }
                let origin = self.engines(shard).nth(*rank as usize).unwrap();
                let away = origin.away.values().any(|n| n == name);
                match places.get(name) {
                    // Its last tokens may be on their way.
                    None => assert!(origin.finished.contains(name) || away, "{name} is lost"),
                    Some((at, _)) => assert_eq!(away, at != rank, "{name} runs on {at}"),
                }
            }
            assert_eq!(*first.get_or_insert_with(|| places.clone()), places);
        }
    }

    /// Where a request runs or waits.
    pub fn place(&self, name: &str) -> Option<u32> {
        let has = |e: &&FakeEngine| e.running.iter().chain(&e.waiting).any(|s| s.name == name);
        self.engines(0).find(has).map(|e| e.rank)
    }

    /// Every cell in a thread of its own.
    fn everywhere<R: Send>(&mut self, act: impl Fn(&mut Cell, u64) -> R + Copy + Send) -> Vec<R> {
        let step = self.step;
        thread::scope(|scope| {
            let spawn = |cell| scope.spawn(move || act(cell, step));
            let threads: Vec<_> = self.cells.iter_mut().map(spawn).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    /// A check on all cells, which may fail.
    pub fn try_check(&mut self) -> Checked {
        self.everywhere(|cell, step| {
            cell.engine.begin();
            cell.migrator.check(&mut cell.engine, step)
        })
    }

    /// As [`Cluster::try_check`], with one rank at another step.
    pub fn try_check_astray(&mut self, rank: u32) -> Checked {
        self.everywhere(move |cell, step| {
            let step = step + u64::from(cell.engine.rank == rank);
            cell.migrator.check(&mut cell.engine, step)
        })
    }

    /// A check that must come to its end, with the same report everywhere.
    pub fn check(&mut self) -> Report {
        let free = |c: &Cell| {
            c.engine.free.len() + c.engine.prepared.values().map(Vec::len).sum::<usize>()
        };
        let before: Vec<usize> = self.cells.iter().map(free).collect();
        let mut reports: Vec<Report> = self.try_check().into_iter().map(Result::unwrap).collect();
        for report in &reports {
            assert_eq!(report.decision, reports[0].decision);
            assert_eq!(report.moves, reports[0].moves);
            assert_eq!(report.kv_failed, reports[0].kv_failed);
            assert_eq!(report.faults(), reports[0].faults());
            assert_eq!(report.synced, reports[0].synced);
            assert_eq!(report.resume_at, reports[0].resume_at);
        }
        self.resume = reports[0].resume_at;
        self.precopied = reports.iter().map(|r| r.precopied.clone()).collect();
        if reports[0].committed() == 0 && !reports[0].synced {
            let after: Vec<usize> = self.cells.iter().map(free).collect();
            assert_eq!(before, after, "nothing moved, but blocks did");
        }
        self.verify();
        reports.swap_remove(0)
    }

    /// Steps to the end with a check after every `interval` steps; the last return.
    pub fn finish(&mut self, interval: u64, mut between: impl FnMut(&mut Self)) {
        while self.cells.iter().any(|c| !c.engine.is_idle()) {
            assert!(self.step < 5000, "no end");
            self.step();
            if self
                .resume
                .map_or(self.step.is_multiple_of(interval), |r| r == self.step)
            {
                between(self);
                self.check();
            } else {
                self.verify();
            }
        }
        self.drained();
    }

    /// The last return of every cell, whatever comes of it.
    pub fn try_drain(&mut self) -> Vec<Result<bool, MigrateError>> {
        self.everywhere(|cell, _| {
            cell.engine.begin();
            cell.migrator.drain(&mut cell.engine)
        })
    }

    /// The last return of a rollout: all results are at their origins.
    pub fn drained(&mut self) -> bool {
        self.cancel();
        let any = self.cells.iter().any(|c| !c.engine.away.is_empty());
        let returned = self.everywhere(|c, _| c.migrator.drain(&mut c.engine).unwrap());
        assert!(returned.iter().all(|r| *r == returned[0]));
        assert!(returned[0] || !any);
        for cell in &mut self.cells {
            cell.engine.settle();
            let engine = &cell.engine;
            assert_eq!(engine.free.len(), self.shape.blocks as usize);
            assert!(engine.prepared.is_empty());
            for (name, rank, prompt, length) in &self.requests {
                if *rank == engine.rank && !self.aborted.contains(name) {
                    assert!(engine.finished.contains(name), "{name} is not finished");
                    let ids: Vec<u32> = (*prompt..prompt + *length as usize)
                        .map(|at| token(name, at))
                        .collect();
                    assert_eq!(engine.results[name], ids, "{name}");
                }
            }
        }
        returned[0]
    }
}
