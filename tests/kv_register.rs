//! Contract: a cache in ordinary memory serves like one on the device while it is registered with
//! the mock, whatever memory its sub-caches share, and no longer.

mod support;

use seqshift::kv::{DType, Format, KvLayout, SubCache, Transfer, TransferOptions, register};
use support::fault::Faults;
use support::{LONG, pattern, runtime};

fn sub_cache(memory: &[u8], offset: usize, blocks: u64, stride: u64, length: u64) -> SubCache {
    SubCache {
        base: memory.as_ptr().expose_provenance() as u64 + offset as u64,
        extent: (memory.len() - offset) as u64,
        blocks,
        stride,
        length,
        dtype: DType::BFloat16,
        format: Format::Nd,
    }
}

#[test]
fn a_registered_cache_serves_until_dropped() {
    let _faults = Faults::begin();
    let runtime = runtime(0);
    // Keys and values of one stacked tensor; views of one buffer between whose blocks others lie; a
    // tensor of its own.
    let stacked = pattern(1, 2 * 8 * 256);
    let strided = pattern(2, 8 * 1024);
    let single = pattern(3, 8 * 64);
    let layers = vec![
        vec![
            sub_cache(&stacked, 0, 8, 256, 256),
            sub_cache(&stacked, 8 * 256, 8, 256, 256),
        ],
        vec![
            sub_cache(&strided, 0, 8, 1024, 100),
            sub_cache(&strided, 512, 8, 1024, 512),
        ],
        vec![sub_cache(&single, 0, 8, 64, 64)],
    ];
    let layout = KvLayout::new(layers).expect("the layout is possible");
    let options = TransferOptions::new(&runtime, 1 << 16, true);
    // SAFETY: the memory outlives the transfer.
    let mut transfer =
        unsafe { Transfer::new(&runtime, layout.clone(), 2, options) }.expect("there is room");
    let ids = [7, 0, 1, 2, 3];
    assert!(transfer.self_test(&ids, LONG).is_err());
    // SAFETY: the memory outlives the registrations.
    let registered = unsafe { register(&runtime, &layout) }.expect("the mock agrees");
    // Keys and values together, the views of one buffer, the third one by itself.
    assert_eq!(registered.len(), 3);
    // A second engine in the process may have the same cache.
    // SAFETY: as above.
    let again = unsafe { register(&runtime, &layout) }.expect("the mock agrees");
    drop(registered);
    let result = transfer
        .self_test(&ids, LONG)
        .expect("the cache is the device's");
    assert_eq!(result.bytes, 5 * layout.block_bytes());
    assert!(stacked == pattern(1, stacked.len()) && strided == pattern(2, strided.len()));
    drop(again);
    assert!(transfer.self_test(&ids, LONG).is_err());
}
