//! A cache in ordinary host memory, as torch's CPU tensors are, made the mock's device memory.

use std::sync::Arc;

use super::{KvLayout, SubCache};
use crate::device::{DeviceError, Registration, Runtime};

/// Registers the memory of all sub-caches with the mock; nothing where the loaded CANN is not the
/// mock, since the cache is in device memory then. Sub-caches that share memory, such as the keys
/// and values of one stacked tensor, are registered together. Unregistered on drop.
///
/// # Errors
/// [`DeviceError::Call`] if the mock refuses, as it does when part of the memory is its own
/// already.
///
/// # Safety
/// The memory that the layout describes stays allocated for as long as the returned values.
pub unsafe fn register(
    runtime: &Arc<Runtime>,
    layout: &KvLayout,
) -> Result<Vec<Registration>, DeviceError> {
    let mut registrations = Vec::new();
    for (start, end) in ranges(layout.stacks()) {
        let pointer = std::ptr::with_exposed_provenance_mut(start as usize);
        // SAFETY: the caller vouches for the memory.
        let registration = unsafe { Registration::new(runtime, pointer, (end - start) as usize) }?;
        registrations.extend(registration);
    }
    Ok(registrations)
}

/// The memory of all blocks as disjoint ranges of addresses. Ranges that only touch stay apart:
/// they may be different allocations.
fn ranges(sub_caches: &[SubCache]) -> Vec<(u64, u64)> {
    let mut all: Vec<_> = sub_caches
        .iter()
        .map(|cache| (cache.base, cache.end()))
        .collect();
    all.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in all {
        match merged.last_mut() {
            Some(last) if start < last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{DType, Format};

    #[test]
    fn interleaved_sub_caches_are_one_range() {
        let one = |base, stride| SubCache {
            base,
            extent: 4096,
            blocks: 4,
            stride,
            length: 64,
            dtype: DType::UInt8,
            format: Format::Nd,
        };
        let interleaved = [one(1000, 128), one(1064, 128), one(5000, 64)];
        assert_eq!(ranges(&interleaved), [(1000, 1512), (5000, 5256)]);
        assert_eq!(
            ranges(&[one(256, 64), one(512, 64)]),
            [(256, 512), (512, 768)]
        );
    }
}
