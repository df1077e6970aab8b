//! The load of a rank, as its peers see it.

/// One running sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceLoad {
    /// KV blocks that it holds and that its destination must have.
    pub kv_blocks: u32,
    /// Whether its state can be carried to another rank.
    pub movable: bool,
}

/// The load of one rank at a step boundary.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RankLoad {
    /// The rank in its DP group.
    pub rank: u32,
    /// Running sequences.
    pub running: u32,
    /// Requests that wait for a slot or for KV blocks.
    pub waiting: u32,
    /// KV blocks that each waiting request needs, in queue order; one each when
    /// `None`.
    pub waiting_kv_blocks: Option<Vec<u32>>,
    /// KV blocks that each further waiting request needs, of those that cannot move and
    /// are not among `waiting`. They run here as soon as they find room.
    pub pinned_waiting: Vec<u32>,
    /// KV blocks that this rank may give to its waiting and to arriving requests, in
    /// this order; the caller has already kept room for growth. `None`: not a limit.
    pub free_kv_blocks: Option<u64>,
    /// Most sequences this rank may run. `None`: the group's value, or no
    /// limit.
    pub max_num_seqs: Option<u32>,
    /// The running sequences. Those not listed cannot move. `None`: only counts
    /// are known; each can move and holds one block.
    pub sequences: Option<Vec<SequenceLoad>>,
}

impl RankLoad {
    /// A load of counts alone.
    pub fn counts(rank: u32, running: u32, waiting: u32) -> Self {
        Self {
            rank,
            running,
            waiting,
            ..Self::default()
        }
    }
}
