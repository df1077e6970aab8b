//! What block ids mean for copies: runs of adjacent and of evenly spaced blocks, and rows.

use super::blocks::BlockPart;
use super::cost::Job;

/// As in `cann_shim/src/copy.c`: the longest row of a two-dimensional copy, bytes.
const MAX_WIDTH: u64 = 5_000_000;

/// The terms of the cost model for a part of some blocks: as `cann_shim/src/copy.c` copies them.
pub(super) fn job(part: &BlockPart<'_>) -> Job {
    let (ids, stride) = (part.ids, part.cache.stride);
    let length = part.range.end.saturating_sub(part.range.start);
    let mut job = Job {
        bytes: part.bytes(),
        runs: 0,
        singles: 0,
        spaced: 0,
        rows: 0,
        unit: unit(part),
    };
    let dense = stride == length;
    let mut at = 0;
    while at < ids.len() {
        let run = run(&ids[at..], dense);
        let rows = even_runs(&ids[at..], run, dense);
        job.runs += rows as u64;
        if rows > 1 && run as u64 * length <= MAX_WIDTH {
            job.spaced += 1;
            job.rows += rows as u64;
        } else {
            job.singles += rows as u64;
        }
        at += rows * run;
    }
    job
}

/// Whether all of the part is one stretch of memory, in the order of the ids.
pub(super) fn is_one_run(part: &BlockPart<'_>) -> bool {
    let length = part.range.end.saturating_sub(part.range.start);
    run(part.ids, part.cache.stride == length) == part.ids.len()
}

/// How many blocks from the first on are one stretch of memory, upwards.
fn run(ids: &[u32], dense: bool) -> usize {
    let adjacent = |pair: &&[u32]| pair[1].checked_sub(pair[0]) == Some(1);
    1 + ids
        .windows(2)
        .take_while(|pair| dense && adjacent(pair))
        .count()
}

/// How many runs of that many blocks, from the first on, begin at even distances, upwards.
fn even_runs(ids: &[u32], length: usize, dense: bool) -> usize {
    let starts = || {
        (0..)
            .map(|row| row * length)
            .take_while(|at| at + length <= ids.len())
    };
    let step = |(before, at): (usize, usize)| ids[at].checked_sub(ids[before]);
    let steps = || starts().zip(starts().skip(1));
    let Some(first) = steps().next().and_then(step) else {
        return 1;
    };
    if (first as usize) < length {
        return 1;
    }
    let even = |(before, at): &(usize, usize)| {
        step((*before, *at)) == Some(first) && run(&ids[*at..], dense) == length
    };
    1 + steps().take_while(even).count()
}

/// The longest row, in bytes, of which the whole cache consists, seen from its base, and whose
/// multiples the parts of all blocks begin and end at. So a strided view is a contiguous tensor:
/// aclnn would copy all of it to make it one.
pub(super) fn unit(part: &BlockPart<'_>) -> u64 {
    let length = part.range.end.saturating_sub(part.range.start);
    let within = gcd(part.range.start, length);
    if part.cache.blocks > 1 {
        gcd(within, part.cache.stride)
    } else {
        within
    }
}

/// The rows of the part, in the order of the ids.
pub(super) fn rows(part: &BlockPart<'_>, unit: u64) -> impl Iterator<Item = i64> {
    let (stride, range) = (part.cache.stride, part.range.clone());
    part.ids.iter().flat_map(move |id| {
        let start = u64::from(*id) * stride + range.start;
        let count = (range.end - range.start) / unit;
        (start / unit..start / unit + count).map(|row| row as i64)
    })
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
