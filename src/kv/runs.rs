//! What block ids mean for copies: runs of adjacent and of evenly spaced blocks, and rows.

use super::blocks::BlockPart;
use super::cost::Job;

/// As in `cann_shim/src/copy.c`: fewer rows are not worth a two-dimensional copy.
const MIN_ROWS: usize = 4;
/// As there: the longest row of a two-dimensional copy, bytes.
const MAX_WIDTH: u64 = 5_000_000;

/// The terms of the cost model for a part of some blocks.
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
    let mut at = 0;
    while at < ids.len() {
        let run = even_run(&ids[at..]);
        let step = if run > 1 {
            u64::from(ids[at + 1] - ids[at])
        } else {
            0
        };
        if run > 1 && step * stride == length {
            job.runs += 1;
            job.singles += 1;
            at += run;
        } else if run >= MIN_ROWS && length <= MAX_WIDTH {
            job.runs += run as u64;
            job.spaced += 1;
            job.rows += run as u64;
            at += run;
        } else {
            // One by one, so that a longer run may begin at the second.
            job.runs += 1;
            job.singles += 1;
            at += 1;
        }
    }
    job
}

/// Whether all of the part is one stretch of memory, in the order of the ids.
pub(super) fn is_one_run(part: &BlockPart<'_>) -> bool {
    let length = part.range.end.saturating_sub(part.range.start);
    let adjacent = |pair: &[u32]| pair[1].checked_sub(pair[0]) == Some(1);
    part.ids.len() == 1 || (part.cache.stride == length && part.ids.windows(2).all(adjacent))
}

/// How many ids from the first on are evenly spaced, upwards.
fn even_run(ids: &[u32]) -> usize {
    let [first, second, ..] = ids else { return 1 };
    let Some(step) = second.checked_sub(*first).filter(|step| *step > 0) else {
        return 1;
    };
    let even = |pair: &&[u32]| pair[1].checked_sub(pair[0]) == Some(step);
    1 + ids.windows(2).take_while(even).count()
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
