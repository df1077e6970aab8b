//! The group as arrays over its ranks, in rank order.

use std::borrow::Cow;

use super::error::PlanError;
use super::load::{RankLoad, SequenceLoad};
use super::planner::Options;
use super::state::State;
use super::waiting::sum;

/// No limit on KV blocks.
pub(super) const UNLIMITED: u64 = u64::MAX;

/// The loads in rank order, with what the searches ask for again and again.
/// All vectors have one entry per rank.
#[derive(Clone)]
pub(super) struct Group<'a> {
    pub(super) loads: Vec<&'a RankLoad>,
    /// What has moved since; all that follows is as it is then.
    moved: Option<&'a State<'a>>,
    /// Running sequences, and waiting requests that cannot move: they run as soon as
    /// there is room, so to everybody else they are sequences that cannot move.
    pub(super) running: Vec<u32>,
    /// The most that can run at once. `running` is more where requests that cannot move
    /// wait for room: what leaves such a rank makes room for them.
    pub(super) most: Vec<u32>,
    pub(super) waiting: Vec<u32>,
    /// Blocks of each waiting request; `None` for one each.
    pub(super) requests: Vec<Option<Cow<'a, [u32]>>>,
    /// Most sequences the rank may run.
    pub(super) slots: Vec<u32>,
    /// KV blocks for arrivals, [`UNLIMITED`] when not a limit.
    pub(super) free: Vec<u64>,
    /// KV blocks that waiting requests that cannot move need beyond the free ones.
    pub(super) owed: Vec<u64>,
    pub(super) movable: Vec<u32>,
    /// Smallest and largest block count of a movable sequence.
    pub(super) sizes: Option<(u32, u32)>,
}

impl<'a> Group<'a> {
    pub(super) fn new(loads: &'a [RankLoad], options: &Options) -> Result<Self, PlanError> {
        if loads.is_empty() {
            return Err(PlanError::NoRanks);
        }
        if !(0.0..=1.0).contains(&options.minimum_gain) {
            return Err(PlanError::MinimumGain {
                value: options.minimum_gain,
            });
        }
        let mut loads: Vec<&RankLoad> = loads.iter().collect();
        loads.sort_by_key(|load| load.rank);
        if let Some(pair) = loads.windows(2).find(|pair| pair[0].rank == pair[1].rank) {
            return Err(PlanError::DuplicateRank { rank: pair[0].rank });
        }
        let mut sizes: Option<(u32, u32)> = None;
        let mut movable = Vec::with_capacity(loads.len());
        for load in &loads {
            movable.push(check(load, &mut sizes)?);
        }
        let limit = options.max_num_seqs.unwrap_or(u32::MAX);
        let slots = |load: &RankLoad| load.max_num_seqs.unwrap_or(limit);
        let pinned = |load: &RankLoad| sum(&load.pinned_waiting);
        let free = |load: &RankLoad| match load.free_kv_blocks {
            Some(free) => free.saturating_sub(pinned(load)),
            None => UNLIMITED,
        };
        let owed = |load: &RankLoad| match load.free_kv_blocks {
            Some(free) => pinned(load).saturating_sub(free),
            None => 0,
        };
        let running = |load: &RankLoad| {
            load.running
                .saturating_add(load.pinned_waiting.len() as u32)
        };
        let most = |load: &RankLoad| slots(load).max(load.running);
        Ok(Self {
            running: loads.iter().map(|load| running(load)).collect(),
            most: loads.iter().map(|load| most(load)).collect(),
            waiting: loads.iter().map(|load| load.waiting).collect(),
            requests: loads
                .iter()
                .map(|load| load.waiting_kv_blocks.as_deref().map(Cow::from))
                .collect(),
            slots: loads.iter().map(|load| slots(load)).collect(),
            free: loads.iter().map(|load| free(load)).collect(),
            owed: loads.iter().map(|load| owed(load)).collect(),
            movable,
            sizes,
            loads,
            moved: None,
        })
    }

    /// The same group after the moves of `state`; see [`State::free`].
    pub(super) fn after(&'a self, state: &'a State<'a>, credited: bool) -> Self {
        let ranks = || 0..self.len();
        Self {
            running: ranks().map(|rank| state.running_on(rank)).collect(),
            waiting: ranks().map(|rank| state.waiting_on(rank)).collect(),
            requests: ranks().map(|rank| state.requests(rank)).collect(),
            free: ranks().map(|rank| state.free(rank, credited)).collect(),
            movable: ranks().map(|rank| state.movable(rank)).collect(),
            moved: Some(state),
            ..self.clone()
        }
    }

    /// The listed sequences of a rank; `None` when only counts are known.
    pub(super) fn sequences(&self, rank: usize) -> Option<Cow<'a, [SequenceLoad]>> {
        match self.moved {
            Some(state) => Some(state.sequences(rank).into()),
            None => self.loads[rank].sequences.as_deref().map(Cow::from),
        }
    }

    /// Whether the sequences of a rank are listed.
    pub(super) fn named(&self, rank: usize) -> bool {
        self.moved.is_some() || self.loads[rank].sequences.is_some()
    }

    /// The same group with KV for everything.
    pub(super) fn with_unlimited_kv(&self) -> Self {
        Self {
            free: vec![UNLIMITED; self.len()],
            ..self.clone()
        }
    }

    /// The most sequences that any rank runs at once, of those that are there or wait for room.
    pub(super) fn at_once(&self, there: &[u32]) -> u32 {
        let at_once = there.iter().zip(&self.most);
        at_once
            .map(|(&there, &most)| there.min(most))
            .max()
            .unwrap_or(0)
    }

    pub(super) fn len(&self) -> usize {
        self.loads.len()
    }
}

/// Checks one load; its number of movable sequences. Widens `sizes`.
fn check(load: &RankLoad, sizes: &mut Option<(u32, u32)>) -> Result<u32, PlanError> {
    if let Some(blocks) = &load.waiting_kv_blocks
        && blocks.len() != load.waiting as usize
    {
        return Err(PlanError::WaitingBlocks {
            rank: load.rank,
            listed: blocks.len(),
            waiting: load.waiting,
        });
    }
    let mut widen = |low: u32, high: u32| {
        *sizes = Some(sizes.map_or((low, high), |(a, b)| (a.min(low), b.max(high))));
    };
    let Some(sequences) = &load.sequences else {
        if load.running > 0 {
            widen(1, 1);
        }
        return Ok(load.running);
    };
    if sequences.len() > load.running as usize {
        return Err(PlanError::TooManySequences {
            rank: load.rank,
            listed: sequences.len(),
            running: load.running,
        });
    }
    let (mut movable, mut low, mut high) = (0, u32::MAX, 0);
    for sequence in sequences {
        // Without branches: this loop reads every sequence of the group.
        let mask = u32::from(sequence.movable).wrapping_neg();
        movable += mask & 1;
        low = low.min(sequence.kv_blocks | !mask);
        high = high.max(sequence.kv_blocks & mask);
    }
    if movable > 0 {
        widen(low, high);
    }
    Ok(movable)
}
