//! No sequence moves for nothing: over a rollout with a plan in every round, each plan
//! lowers the gear or serves more waiting requests than have room where they are. So
//! nothing is sent to and fro: a sequence that comes back to a rank does so in such a
//! plan.

#[path = "planner/applied.rs"]
mod applied;

use applied::applied;
use proptest::prelude::*;
use seqshift::plan::{Gears, Options, Plan, RankLoad, SequenceLoad, plan};

const SLOTS: u32 = 16;

/// Running (blocks, movable), waiting (blocks), free blocks.
type Rank = (Vec<(u32, bool)>, Vec<u32>, Option<u64>);

/// Sequences and requests by name, in the order of the loads.
#[derive(Debug, Clone)]
struct Group {
    loads: Vec<RankLoad>,
    running: Vec<Vec<u32>>,
    waiting: Vec<Vec<u32>>,
}

impl Group {
    fn new(ranks: Vec<Rank>) -> Self {
        let mut names = 0..;
        let mut group = Self {
            loads: Vec::new(),
            running: Vec::new(),
            waiting: Vec::new(),
        };
        for ((running, waiting, free), rank) in ranks.into_iter().zip(0..) {
            group
                .running
                .push(names.by_ref().take(running.len()).collect());
            group
                .waiting
                .push(names.by_ref().take(waiting.len()).collect());
            let sequence =
                |&(kv_blocks, movable): &(u32, bool)| SequenceLoad { kv_blocks, movable };
            group.loads.push(RankLoad {
                free_kv_blocks: free,
                sequences: Some(running.iter().map(sequence).collect()),
                waiting_kv_blocks: Some(waiting.clone()),
                ..RankLoad::counts(rank, running.len() as u32, waiting.len() as u32)
            });
        }
        group
    }

    /// Requests that have room where they are, per rank, the smallest first.
    fn served(&self) -> Vec<u32> {
        let served = |load: &RankLoad| {
            let mut free = load.free_kv_blocks.unwrap_or(u64::MAX);
            let mut sizes = load.waiting_kv_blocks.clone().unwrap();
            sizes.sort_unstable();
            let slots = SLOTS.saturating_sub(load.running) as usize;
            let fits = |&size: &u32| match free.checked_sub(size.into()) {
                Some(left) => {
                    free = left;
                    true
                }
                None => false,
            };
            sizes.into_iter().take(slots).take_while(fits).count() as u32
        };
        self.loads.iter().map(served).collect()
    }

    fn gear(&self, gears: &Gears) -> u32 {
        let busy = self.loads.iter().zip(self.served());
        gears.gear_of(
            busy.map(|(load, served)| load.running + served)
                .max()
                .unwrap(),
        )
    }

    fn after(&self, plan: &Plan) -> Self {
        let mut next = self.clone();
        next.loads = applied(&self.loads, plan);
        for m in &plan.moves {
            let (from, to) = (m.from as usize, m.to as usize);
            let (old, new) = match m.needs_kv {
                true => (&self.running[from], &mut next.running),
                false => (&self.waiting[from], &mut next.waiting),
            };
            for &index in &m.sequences {
                let name = old[index as usize];
                new[from].retain(|&other| other != name);
                new[to].push(name);
            }
        }
        next
    }

    /// The scheduler admits the head of each queue; sequences for whose position
    /// `ends` is true finish.
    fn step(&mut self, mut ends: impl FnMut() -> bool) {
        for rank in 0..self.loads.len() {
            let load = &mut self.loads[rank];
            let mut kept = Vec::new();
            let names = std::mem::take(&mut self.running[rank]);
            for (name, sequence) in names.into_iter().zip(load.sequences.take().unwrap()) {
                if ends() {
                    load.free_kv_blocks = load
                        .free_kv_blocks
                        .map(|free| free + u64::from(sequence.kv_blocks));
                } else {
                    kept.push((name, sequence));
                }
            }
            let queue = load.waiting_kv_blocks.as_mut().unwrap();
            while kept.len() < SLOTS as usize && !queue.is_empty() {
                let size = u64::from(queue[0]);
                if load.free_kv_blocks.is_some_and(|free| free < size) {
                    break;
                }
                load.free_kv_blocks = load.free_kv_blocks.map(|free| free - size);
                let sequence = SequenceLoad {
                    kv_blocks: queue.remove(0),
                    movable: true,
                };
                kept.push((self.waiting[rank].remove(0), sequence));
            }
            load.waiting = queue.len() as u32;
            load.running = kept.len() as u32;
            self.running[rank] = kept.iter().map(|&(name, _)| name).collect();
            load.sequences = Some(kept.into_iter().map(|(_, sequence)| sequence).collect());
        }
    }

    /// Whether one exchange could bring the running sequences to where they are in `later`:
    /// a source keeps all of its own until the end, so arrivals find only what was free before.
    fn reaches_at_once(&self, later: &Self) -> bool {
        (0..self.loads.len()).all(|rank| {
            let arrived = later.running[rank].iter();
            let arrived = arrived.zip(later.loads[rank].sequences.as_ref().unwrap());
            let arrived = arrived.filter(|(name, _)| !self.running[rank].contains(name));
            let (count, blocks) = arrived.fold((0, 0), |(count, blocks), (_, sequence)| {
                (count + 1, blocks + u64::from(sequence.kv_blocks))
            });
            let load = &self.loads[rank];
            count == 0
                || load.running + count <= SLOTS
                    && load.free_kv_blocks.is_none_or(|free| blocks <= free)
        })
    }

    fn unfinished(&self) -> usize {
        self.running.iter().chain(&self.waiting).map(Vec::len).sum()
    }
}

fn groups() -> impl Strategy<Value = Group> {
    let size = prop::sample::select(vec![3u32, 9]).prop_flat_map(|most| {
        let size = if most == 3 { 3..=3 } else { 1..=most };
        let sequence = (size, prop::bool::weighted(0.95));
        let running = prop::collection::vec(sequence, 0..=SLOTS as usize);
        let waiting = prop::collection::vec(1..=5u32, 0..12);
        let rank = (running, waiting, prop::option::weighted(0.6, 0..60u64));
        prop::collection::vec(rank, 2..8)
    });
    size.prop_map(Group::new)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_is_worth_its_moves(
        mut group in groups(),
        sizes in prop::collection::vec(1..20u32, 0..5),
        ends in prop::collection::vec(0..10u8, 1..200),
    ) {
        let gears = Gears::new(&sizes).unwrap();
        let options = Options { max_num_seqs: Some(SLOTS), minimum_gain: 0.0 };
        let mut ends = ends.into_iter().cycle();
        // The end of the longest sequences comes in any case.
        for round in 0..60 {
            let found = plan(&group.loads, &gears, &options).unwrap();
            let next = group.after(&found);
            let served = |group: &Group| group.served().iter().sum::<u32>();
            let before = (served(&group), group.gear(&gears));
            let after = (served(&next), next.gear(&gears));
            prop_assert_eq!(found.gear_before, before.1);
            prop_assert_eq!(found.gear_after, after.1);
            if !found.is_empty() {
                prop_assert!(
                    after.0 > before.0 || after.0 == before.0 && after.1 < before.1,
                    "{:?} {:?} {:?}", found, before, after,
                );
            }
            // More is possible only with blocks that this plan has freed, not at once with it.
            let again = plan(&next.loads, &gears, &options).unwrap();
            prop_assert!(
                again.is_empty() || !group.reaches_at_once(&next.after(&again)),
                "{:?} {:?}", found, again,
            );
            group = next;
            let rate = if round < 40 { 1 } else { 5 };
            group.step(|| ends.next().unwrap() < rate);
            if group.unfinished() == 0 {
                break;
            }
        }
    }
}
