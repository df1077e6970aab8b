//! A group after a plan.

use std::collections::BTreeSet;

use seqshift::plan::{Plan, RankLoad};

/// The loads after a plan: blocks are used at the destinations and free again at the
/// sources. Moved waiting requests wait at their destination, where a plan counts a
/// slot and the blocks of their prompt for them. Ranks are numbered from 0.
pub fn applied(loads: &[RankLoad], plan: &Plan) -> Vec<RankLoad> {
    let mut after = loads.to_vec();
    for m in &plan.moves {
        let (from, to) = (m.from as usize, m.to as usize);
        assert_ne!(from, to);
        assert_eq!(m.count as usize, m.sequences.len());
        if m.needs_kv {
            let source = loads[from].sequences.as_ref().unwrap();
            let moved: Vec<_> = m.sequences.iter().map(|&i| source[i as usize]).collect();
            let blocks: u64 = moved.iter().map(|s| u64::from(s.kv_blocks)).sum();
            after[to].free_kv_blocks = after[to].free_kv_blocks.map(|free| free - blocks);
            after[to].sequences.as_mut().unwrap().extend(moved);
            after[to].running += m.count;
        } else {
            let source = loads[from].waiting_kv_blocks.as_ref().unwrap();
            let moved = m.sequences.iter().map(|&i| source[i as usize]);
            after[to].waiting_kv_blocks.as_mut().unwrap().extend(moved);
            after[to].waiting += m.count;
        }
    }
    for (rank, load) in after.iter_mut().enumerate() {
        let gone = |needs_kv| -> BTreeSet<usize> {
            let moves = plan.moves.iter().filter(|m| m.from as usize == rank);
            let moves = moves.filter(|m| m.needs_kv == needs_kv);
            moves
                .flat_map(|m| m.sequences.iter().map(|&i| i as usize))
                .collect()
        };
        let running = gone(true);
        let mut index = 0..;
        load.sequences.as_mut().unwrap().retain(|sequence| {
            let leaves = running.contains(&index.next().unwrap());
            if leaves {
                let blocks = u64::from(sequence.kv_blocks);
                load.free_kv_blocks = load.free_kv_blocks.map(|free| free + blocks);
            }
            !leaves
        });
        load.running -= running.len() as u32;
        let waiting = gone(false);
        let mut index = 0..;
        let queue = load.waiting_kv_blocks.as_mut().unwrap();
        queue.retain(|_| !waiting.contains(&index.next().unwrap()));
        load.waiting -= waiting.len() as u32;
    }
    after
}
