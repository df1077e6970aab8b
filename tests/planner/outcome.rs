//! What a plan does to a group, computed from its moves alone.

use std::collections::BTreeSet;

use seqshift::plan::{Gears, Plan};

use super::cases::Case;

/// How good a plan is; smaller is better, field by field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    pub unserved: u32,
    pub highest_level: u32,
    pub squares: u32,
    pub gear: u32,
    pub moved: u32,
    pub blocks: u32,
    pub peak: u32,
}

/// The group after a plan; one entry per rank.
pub struct Applied {
    /// Running before + waiting after the moves of waiting requests.
    pub levels: Vec<u32>,
    /// Requests without room on the ranks as they were before running sequences moved.
    pub unserved: u32,
    /// Sequences that run after everything, apart from requests for which running
    /// sequences made room.
    pub active: Vec<u32>,
    /// The same two with that room counted.
    pub unserved_after: u32,
    pub active_after: Vec<u32>,
    pub running_out: Vec<u32>,
    pub waiting_moved: u32,
    pub sent: Vec<u32>,
    pub received: Vec<u32>,
}

impl Applied {
    pub fn running_moved(&self) -> u32 {
        self.running_out.iter().sum()
    }

    pub fn score(&self, gears: &Gears) -> Score {
        Score {
            unserved: self.unserved,
            highest_level: *self.levels.iter().max().unwrap(),
            squares: self.levels.iter().map(|level| level * level).sum(),
            gear: gears.gear_of(*self.active.iter().max().unwrap()),
            moved: self.running_moved() + self.waiting_moved,
            blocks: self.sent.iter().sum(),
            peak: *self.sent.iter().chain(&self.received).max().unwrap(),
        }
    }
}

/// Applies a plan, asserting that it is feasible. Ranks are numbered from 0.
pub fn apply(case: &Case, plan: &Plan) -> Applied {
    let n = case.loads.len();
    let field = |get: fn(&seqshift::plan::RankLoad) -> u32| -> Vec<u32> {
        case.loads.iter().map(get).collect()
    };
    // Waiting requests that cannot move are to others like sequences that cannot.
    let running = field(|load| load.running + load.pinned_waiting.len() as u32);
    let mut queued = field(|load| load.waiting);
    let mut waiting_in = vec![0u32; n];
    let mut waiting_out = vec![0u32; n];
    let (mut out, mut arrived) = (vec![0u32; n], vec![0u32; n]);
    let (mut sent, mut received) = (vec![0u32; n], vec![0u32; n]);
    let mut used = BTreeSet::new();
    for m in &plan.moves {
        let (from, to) = (m.from as usize, m.to as usize);
        assert_ne!(from, to);
        assert!(m.count > 0);
        assert_eq!(m.sequences.len(), m.count as usize);
        for &index in &m.sequences {
            assert!(used.insert((from, m.needs_kv, index)), "used twice: {m:?}");
            if m.needs_kv {
                let sequence = case.loads[from].sequences.as_ref().unwrap()[index as usize];
                assert!(sequence.movable, "pinned: {m:?}");
                sent[from] += sequence.kv_blocks;
                received[to] += sequence.kv_blocks;
            } else {
                assert!(index < case.loads[from].waiting);
            }
        }
        if m.needs_kv {
            out[from] += m.count;
            arrived[to] += m.count;
        } else {
            waiting_out[from] += m.count;
            waiting_in[to] += m.count;
        }
    }
    let (mut unserved, mut unserved_after) = (0, 0);
    let mut levels = Vec::new();
    let (mut active, mut active_after) = (Vec::new(), Vec::new());
    for (rank, load) in case.loads.iter().enumerate() {
        queued[rank] = queued[rank] - waiting_out[rank] + waiting_in[rank];
        levels.push(running[rank] + queued[rank]);
        let slots = load
            .max_num_seqs
            .or(case.options.max_num_seqs)
            .unwrap_or(u32::MAX);
        let size = load
            .waiting_kv_blocks
            .as_ref()
            .and_then(|blocks| blocks.first());
        let size = size.copied().unwrap_or_else(|| waiting_size(case));
        let pinned: i64 = load.pinned_waiting.iter().copied().map(i64::from).sum();
        let free = load.free_kv_blocks.unwrap_or(u64::from(u32::MAX)) as i64 - pinned;
        let fitting = |running: u32, free: i64| {
            let slots = slots.saturating_sub(running);
            let blocks = free.max(0) as u64 / u64::from(size);
            u64::from(queued[rank].min(slots)).min(blocks) as u32
        };
        // Sources keep what they give until everything has arrived.
        let [sent, received] = [sent[rank], received[rank]].map(i64::from);
        assert!(received == 0 || received <= free, "blocks: {plan:?}");
        let held = running[rank] + arrived[rank];
        assert!(arrived[rank] == 0 || held <= slots, "slots: {plan:?}");
        let left = held - out[rank];
        let served_after = fitting(left, free - received + sent);
        // A rank's own requests are first in its queue, so all of it must fit.
        assert!(
            waiting_in[rank] == 0 || served_after == queued[rank],
            "moved to rank {rank} without room: {plan:?} {case:?}"
        );
        let most = slots.max(load.running);
        active_after.push((left + served_after).min(most));
        unserved_after += queued[rank] - served_after;
        let served = fitting(running[rank], free);
        active.push((left + served).min(most));
        unserved += queued[rank] - served;
    }
    let waiting_moved = waiting_in.iter().sum();
    Applied {
        levels,
        unserved,
        active,
        unserved_after,
        active_after,
        running_out: out,
        waiting_moved,
        sent,
        received,
    }
}

/// The size that all waiting requests of a case have.
pub fn waiting_size(case: &Case) -> u32 {
    let blocks = case
        .loads
        .iter()
        .filter_map(|load| load.waiting_kv_blocks.as_ref());
    blocks.flatten().next().copied().unwrap_or(1)
}
