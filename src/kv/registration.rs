//! A cache in ordinary host memory, as torch's CPU tensors are, made the mock's device memory.

use std::sync::Arc;

use super::KvLayout;
use crate::device::{DeviceError, Registration, Runtime};

/// Registers the memory of all sub-caches with the mock; nothing where the loaded CANN is not the
/// mock, since the cache is in device memory then. Sub-caches that share memory, such as the keys and
/// values of one stacked tensor, are registered together. Unregistered on drop.
///
/// # Errors
/// [`DeviceError::Call`] if the mock refuses, as it does when part of the memory is its own already.
///
/// # Safety
/// The memory that the layout describes stays allocated for as long as the returned values.
pub unsafe fn register(
    runtime: &Arc<Runtime>,
    layout: &KvLayout,
) -> Result<Vec<Registration>, DeviceError> {
    let mut registrations = Vec::new();
    for (start, end) in ranges(layout) {
        let pointer = std::ptr::with_exposed_provenance_mut(start as usize);
        // SAFETY: the caller vouches for the memory.
        let registration = unsafe { Registration::new(runtime, pointer, (end - start) as usize) }?;
        registrations.extend(registration);
    }
    Ok(registrations)
}

/// The memory of all sub-caches as disjoint ranges of addresses. Ranges that only touch stay apart:
/// they are different allocations.
fn ranges(layout: &KvLayout) -> Vec<(u64, u64)> {
    let mut all: Vec<_> = layout
        .sub_caches()
        .iter()
        .map(|cache| (cache.base, cache.base + cache.extent))
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
