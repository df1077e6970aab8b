//! Water filling: spread units over ranks so that the highest level is lowest.

/// How a number of units is spread.
pub(super) struct Filled {
    /// Units that each rank gets for certain.
    pub(super) added: Vec<u32>,
    /// Ranks at the last level with room for one more unit each ...
    pub(super) tied: Vec<usize>,
    /// ... and how many of them get it; less than `tied.len()`.
    pub(super) extra: u32,
}

/// Spreads `amount` units (at most the sum of `room`) over ranks that stand at
/// `base` and have `room`. The resulting levels are majorised by those of every
/// other way, so they have the lowest maximum and the lowest sum of squares;
/// what is open is only which of the `tied` ranks get one of the `extra` units.
pub(super) fn water_fill(base: &[u32], room: &[u32], amount: u64) -> Filled {
    let at = |level: u64| -> u64 {
        base.iter()
            .zip(room)
            .map(|(&b, &r)| level.saturating_sub(b.into()).min(r.into()))
            .sum()
    };
    let tops = base
        .iter()
        .zip(room)
        .map(|(&b, &r)| u64::from(b) + u64::from(r.min(amount_cap(amount))));
    let mut low = u64::from(base.iter().copied().min().unwrap_or(0));
    let mut high = tops.max().unwrap_or(0);
    // The highest level that needs no more than `amount` units.
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if at(middle) <= amount {
            low = middle
        } else {
            high = middle - 1
        }
    }
    let added: Vec<u32> = base
        .iter()
        .zip(room)
        .map(|(&b, &r)| low.saturating_sub(b.into()).min(r.into()) as u32)
        .collect();
    let extra = (amount - added.iter().map(|&a| u64::from(a)).sum::<u64>()) as u32;
    let mut tied = Vec::new();
    if extra > 0 {
        tied.extend(
            (0..base.len())
                .filter(|&i| u64::from(base[i]) + u64::from(added[i]) == low && added[i] < room[i]),
        );
    }
    Filled { added, tied, extra }
}

/// `amount` as a room: no rank can take more than all units.
fn amount_cap(amount: u64) -> u32 {
    u32::try_from(amount).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_even_and_ties_are_named() {
        let filled = water_fill(&[3, 0, 1, 9], &[9, 9, 1, 9], 7);
        assert_eq!(filled.added, [1, 4, 1, 0]);
        assert_eq!((filled.tied, filled.extra), (vec![0, 1], 1));
    }

    #[test]
    fn room_is_a_limit() {
        let filled = water_fill(&[0, 0], &[2, 100], 10);
        assert_eq!((filled.added, filled.extra), (vec![2, 8], 0));
        let full = water_fill(&[5, 1], &[0, 3], 3);
        assert_eq!((full.added, full.extra), (vec![0, 3], 0));
    }
}
