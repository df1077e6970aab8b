//! Contract: a layout is accepted only if every block lies within its tensor, and the first
//! impossible field is named; two layouts are compatible exactly if a block means the same in both,
//! and else the first differing field is named.

use proptest::prelude::*;
use seqshift::kv::{DType, Format, KvLayout, LayoutDescription, SubCache};

fn cache(length: u64) -> SubCache {
    SubCache {
        base: 0x1000,
        extent: 10 * length,
        blocks: 10,
        stride: length,
        length,
        dtype: DType::BFloat16,
        format: Format::Nd,
    }
}

fn error(change: impl FnOnce(&mut SubCache)) -> String {
    let mut bad = cache(256);
    change(&mut bad);
    KvLayout::new(vec![vec![cache(64)], vec![cache(128), bad]])
        .expect_err("the layout is impossible")
        .to_string()
}

#[test]
fn impossible_fields_are_named_with_their_place() {
    type Change = fn(&mut SubCache);
    let cases: [(&str, Change); 8] = [
        ("base is 0", |cache| cache.base = 0),
        ("blocks is 0", |cache| cache.blocks = 0),
        ("blocks is 8589934592", |cache| cache.blocks = 1 << 33),
        ("length is 0", |cache| cache.length = 0),
        (
            "length is 255, but must be a multiple of bfloat16's 2",
            |cache| cache.length = 255,
        ),
        (
            "stride is 254, but must be at least the block length of 256",
            |cache| cache.stride = 254,
        ),
        ("extent is 2559, but must be at least 2560", |cache| {
            cache.extent = 2559
        }),
        ("stride is 18446744073709551615", |cache| {
            cache.stride = u64::MAX
        }),
    ];
    for (expected, change) in cases {
        let message = error(change);
        assert!(message.starts_with("layer 1, sub-cache 1: "), "{message}");
        assert!(
            message.contains(expected),
            "{message} does not say {expected}"
        );
    }
}

#[test]
fn an_address_space_that_is_too_small_and_a_sum_too_large_are_refused() {
    assert!(error(|cache| cache.base = u64::MAX - 100).contains("extent is 2560"));
    let huge = SubCache {
        base: 1,
        extent: u64::MAX - 1,
        blocks: 1,
        stride: 0,
        length: u64::MAX - 1,
        dtype: DType::Int8,
        ..cache(2)
    };
    let message = KvLayout::new(vec![vec![huge.clone()], vec![huge]])
        .expect_err("two of them cannot be")
        .to_string();
    assert!(
        message.starts_with("layer 1, sub-cache 0: length"),
        "{message}"
    );
}

#[test]
fn one_block_needs_no_stride_and_the_last_block_no_padding() {
    let padded = SubCache {
        stride: 300,
        extent: 9 * 300 + 256,
        ..cache(256)
    };
    let single = SubCache {
        blocks: 1,
        stride: 0,
        extent: 256,
        ..cache(256)
    };
    let layout = KvLayout::new(vec![vec![padded, single]]).expect("both are possible");
    assert_eq!((layout.blocks(), layout.block_bytes()), (1, 512));
    assert_eq!(layout.missing(&[0, 1, 2]), Some(1));
}

fn description(layers: &[&[u64]]) -> LayoutDescription {
    let layer = |lengths: &&[u64]| lengths.iter().map(|length| cache(*length)).collect();
    KvLayout::new(layers.iter().map(layer).collect())
        .expect("the layout is possible")
        .description()
}

#[test]
fn the_first_difference_is_named() {
    let ours = description(&[&[64, 32], &[64]]);
    let mut dtype = ours.clone();
    dtype.layers[1][0].dtype = DType::Float16;
    let mut format = ours.clone();
    format.layers[0][1].format = Format::FractalNz;
    let cases = [
        (
            description(&[&[64, 32]]),
            "the number of layers is 2 here, but 1 at the peer",
        ),
        (
            description(&[&[64, 32], &[64, 2]]),
            "the number of sub-caches of layer 1 is 1 here, but 2 at the peer",
        ),
        (
            description(&[&[64, 34], &[64]]),
            "the block length of layer 0, sub-cache 1, is 32 here, but 34 at the peer",
        ),
        (
            dtype,
            "the dtype of layer 1, sub-cache 0, is bfloat16 here, but float16 at the peer",
        ),
        (
            format,
            "the format of layer 0, sub-cache 1, is ND here, but FRACTAL_NZ at the peer",
        ),
    ];
    for (theirs, expected) in cases {
        let difference = ours.difference(&theirs).expect("they differ");
        assert_eq!(difference.to_string(), expected);
        assert_ne!(ours.fingerprint(), theirs.fingerprint(), "{expected}");
    }
}

#[test]
fn addresses_strides_and_numbers_of_blocks_may_differ() {
    let other = SubCache {
        base: 0x9000,
        stride: 128,
        blocks: 3,
        extent: 999,
        ..cache(64)
    };
    let theirs = KvLayout::new(vec![vec![other]])
        .expect("possible")
        .description();
    let ours = description(&[&[64]]);
    assert_eq!(ours.difference(&theirs), None);
    assert_eq!(ours.fingerprint(), theirs.fingerprint());
}

#[test]
fn torch_names_are_known() {
    assert_eq!(DType::from_torch("torch.bfloat16"), Some(DType::BFloat16));
    assert_eq!(DType::from_torch("float8_e4m3fn"), Some(DType::Float8E4M3));
    assert_eq!(DType::from_torch("torch.complex64"), None);
    assert_eq!(Format::from_acl(2), Format::Nd);
    assert_eq!(Format::from_acl(29), Format::FractalNz);
}

proptest! {
    /// A layout is accepted exactly if no byte of a block lies outside its tensor and no two blocks
    /// share one, and it survives the way to a peer.
    #[test]
    fn accepted_layouts_are_the_possible_ones(
        blocks in 1_u64..50, stride in 0_u64..400, length in 1_u64..300, extent in 0_u64..20_000,
    ) {
        let cache = SubCache { extent, blocks, stride, length, dtype: DType::UInt8, ..cache(2) };
        let inside = (0..blocks).all(|block| block * stride + length <= extent);
        let apart = blocks == 1 || stride >= length;
        match KvLayout::new(vec![vec![cache]]) {
            Ok(layout) => {
                prop_assert!(inside && apart);
                let sent = postcard::to_stdvec(&layout.description()).expect("it can be sent");
                let received: LayoutDescription = postcard::from_bytes(&sent).expect("and read");
                prop_assert_eq!(received, layout.description());
            }
            Err(_) => prop_assert!(!(inside && apart)),
        }
    }
}
