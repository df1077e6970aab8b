//! The mock's memory tracker agrees with a simple model, also when its addresses come round.

use std::pin::Pin;

use proptest::prelude::*;
use seqshift::ffi::mock_core::{TrackerCore, new_tracker};

const OK: i32 = 0;
const INVALID: i32 = 100_000;
const REFUSED: i32 = 107_000;
const OUT_OF_MEMORY: i32 = 207_001;

const PAGE: usize = 4096;
/// So small that addresses are used again after some tens of allocations.
const WINDOW: usize = 64 * PAGE;
const CAPACITY: u64 = 40 * PAGE as u64;
const DEVICES: i32 = 2;
/// Ordinary memory that parts of are registered. Its addresses are never touched.
const FOREIGN: usize = 0x10_0000;

#[derive(Clone, Debug)]
enum Step {
    Allocate {
        device: i32,
        size: usize,
        pad: bool,
    },
    AllocateHost {
        size: usize,
    },
    /// Of the n-th address ever handed out, moved by some bytes.
    Release {
        index: usize,
        shift: usize,
        host: bool,
    },
    Adopt {
        start: usize,
        size: usize,
        device: i32,
    },
    Abandon {
        start: usize,
    },
    Access {
        index: usize,
        shift: usize,
        size: usize,
    },
    AccessForeign {
        start: usize,
        size: usize,
    },
    Reset {
        device: i32,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![1..200usize, 1..(6 * PAGE), Just(PAGE), Just(2 * PAGE)];
    let shift = prop_oneof![4 => Just(0usize), 1 => 1..300usize];
    prop_oneof![
        6 => (0..DEVICES, size.clone(), any::<bool>())
            .prop_map(|(device, size, pad)| Step::Allocate { device, size, pad }),
        3 => size.clone().prop_map(|size| Step::AllocateHost { size }),
        6 => (0..64usize, shift.clone(), any::<bool>())
            .prop_map(|(index, shift, host)| Step::Release { index, shift, host }),
        2 => (0..32usize, 1..8usize, 0..DEVICES).prop_map(|(start, size, device)| Step::Adopt {
            start: start * 64,
            size: size * 64,
            device,
        }),
        2 => (0..32usize).prop_map(|start| Step::Abandon { start: start * 64 }),
        6 => (0..64usize, shift, size)
            .prop_map(|(index, shift, size)| Step::Access { index, shift, size }),
        2 => (0..2048usize, 1..256usize)
            .prop_map(|(start, size)| Step::AccessForeign { start, size }),
        1 => (0..DEVICES).prop_map(|device| Step::Reset { device }),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Device,
    Host,
    Foreign,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    base: usize,
    size: usize,
    kind: Kind,
    device: i32,
    charged: u64,
    registrations: u32,
}

impl Block {
    /// The pages it takes, with the one behind it that stays unused.
    fn reserved(&self) -> usize {
        self.size.next_multiple_of(PAGE) + PAGE
    }

    fn overlaps(&self, base: usize, size: usize) -> bool {
        self.base < base + size && base < self.base + self.size
    }
}

/// Live blocks, and all addresses ever handed out.
#[derive(Default)]
struct Model {
    live: Vec<Block>,
    addresses: Vec<usize>,
}

impl Model {
    fn used(&self, device: i32) -> u64 {
        let on_device = |block: &&Block| block.device == device;
        self.live
            .iter()
            .filter(on_device)
            .map(|block| block.charged)
            .sum()
    }

    fn address(&self, index: usize, shift: usize) -> Option<usize> {
        let count = self.addresses.len();
        (count > 0).then(|| self.addresses[index % count] + shift)
    }

    /// A new block must not touch the pages of any live one of its kind.
    fn insert(&mut self, block: Block) {
        for other in self.live.iter().filter(|other| other.kind == block.kind) {
            let apart = block.base >= other.base + other.reserved()
                || other.base >= block.base + block.reserved();
            assert!(apart, "{block:?} lies in {other:?}");
        }
        assert_eq!(block.base % 64, 0);
        self.live.push(block);
        self.addresses.push(block.base);
    }

    fn access(&self, address: usize, size: usize) -> i32 {
        let inside = |block: &&Block| block.base <= address && address < block.base + block.size;
        match self.live.iter().find(inside) {
            Some(block) if address + size <= block.base + block.size => OK,
            Some(_) => REFUSED,
            None => OK,
        }
    }
}

fn charge(size: usize, pad: bool) -> u64 {
    let padded = size.next_multiple_of(32) + if pad { 32 } else { 0 };
    padded.next_multiple_of(PAGE) as u64
}

fn apply(mut tracker: Pin<&mut TrackerCore>, model: &mut Model, step: &Step) {
    match *step {
        Step::Allocate { device, size, pad } => {
            let charged = charge(size, pad);
            let reply = tracker.as_mut().allocate(device, size, pad, false);
            let fits = model.used(device) + charged <= CAPACITY;
            // The window may be full, or in pieces, while the device has room.
            assert!(
                reply.code == OK || reply.code == OUT_OF_MEMORY,
                "{}",
                reply.text
            );
            assert!(fits || reply.code == OUT_OF_MEMORY);
            assert!(!fits || reply.code == OK || reply.text.contains("address space"));
            if reply.code == OK {
                let (base, kind) = (reply.address, Kind::Device);
                model.insert(Block {
                    base,
                    size,
                    kind,
                    device,
                    charged,
                    registrations: 0,
                });
                // Whatever was here before, nothing of it is left.
                assert_eq!(tracker.access(base, size).byte, 0xa5);
            }
        }
        Step::AllocateHost { size } => {
            let reply = tracker.allocate_host(size);
            assert!(
                reply.code == OK || reply.text.contains("address space"),
                "{}",
                reply.text
            );
            if reply.code == OK {
                let (base, kind) = (reply.address, Kind::Host);
                model.insert(Block {
                    base,
                    size,
                    kind,
                    device: -1,
                    charged: 0,
                    registrations: 0,
                });
            }
        }
        Step::Release { index, shift, host } => {
            let Some(address) = model.address(index, shift) else {
                return;
            };
            let kind = if host { Kind::Host } else { Kind::Device };
            let place = model
                .live
                .iter()
                .position(|block| block.base == address && block.kind == kind);
            let reply = tracker.release(address, host);
            assert_eq!(
                reply.code,
                if place.is_some() { OK } else { REFUSED },
                "{}",
                reply.text
            );
            place.map(|place| model.live.swap_remove(place));
        }
        Step::Adopt {
            start,
            size,
            device,
        } => {
            let base = FOREIGN + start;
            let reply = tracker.adopt(base, size, device);
            let same = |block: &&mut Block| {
                block.base == base && block.size == size && block.device == device
            };
            if let Some(block) = model.live.iter_mut().find(same) {
                block.registrations += 1;
                assert_eq!(reply.code, OK, "{}", reply.text);
            } else if model.live.iter().any(|block| block.overlaps(base, size)) {
                assert_eq!(reply.code, INVALID);
            } else {
                assert_eq!(reply.code, OK, "{}", reply.text);
                let kind = Kind::Foreign;
                model.live.push(Block {
                    base,
                    size,
                    kind,
                    device,
                    charged: 0,
                    registrations: 1,
                });
            }
        }
        Step::Abandon { start } => {
            let reply = tracker.abandon(FOREIGN + start);
            let place = model
                .live
                .iter()
                .position(|block| block.base == FOREIGN + start);
            assert_eq!(
                reply.code,
                if place.is_some() { OK } else { INVALID },
                "{}",
                reply.text
            );
            if let Some(place) = place {
                model.live[place].registrations -= 1;
                if model.live[place].registrations == 0 {
                    model.live.swap_remove(place);
                }
            }
        }
        Step::Access { index, shift, size } => {
            let Some(address) = model.address(index, shift) else {
                return;
            };
            let live = |block: &Block| block.base <= address && address < block.base + block.size;
            // Every address is one of the mock's own: what is not live is an error.
            let known = model.live.iter().any(live);
            let expected = if known {
                model.access(address, size)
            } else {
                REFUSED
            };
            let reply = tracker.access(address, size);
            assert_eq!(reply.code, expected, "{}", reply.text);
        }
        Step::AccessForeign { start, size } => {
            let (base, end) = (FOREIGN + start, FOREIGN + start + size);
            let holder = |block: &&Block| block.overlaps(base, size);
            let expected = match model.live.iter().find(holder) {
                Some(block) if block.base <= base && end <= block.base + block.size => OK,
                Some(_) => REFUSED,
                None => OK,
            };
            let reply = tracker.access(base, size);
            assert_eq!(reply.code, expected, "{}", reply.text);
        }
        Step::Reset { device } => {
            tracker.reset_device(device);
            model
                .live
                .retain(|block| block.kind != Kind::Device || block.device != device);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn tracker_agrees_with_the_model(steps in prop::collection::vec(step(), 1..300)) {
        let mut tracker = new_tracker(WINDOW, CAPACITY);
        let mut model = Model::default();
        for step in &steps {
            apply(tracker.pin_mut(), &mut model, step);
            for device in 0..DEVICES {
                assert_eq!(tracker.used(device), model.used(device), "after {step:?}");
            }
        }
    }
}

#[test]
fn a_stale_address_is_known_as_long_as_there_is_room() {
    let mut tracker = new_tracker(WINDOW, CAPACITY);
    let first = tracker.pin_mut().allocate(0, 100, true, false).address;
    assert_eq!(tracker.pin_mut().release(first, false).code, OK);
    // Each block takes two pages of the window; the first pair comes round when the end is reached.
    for _ in 0..WINDOW / (2 * PAGE) - 1 {
        let text = tracker.pin_mut().access(first, 1).text;
        assert!(text.contains("use after free"), "{text}");
        let next = tracker.pin_mut().allocate(0, 100, true, false).address;
        assert_ne!(next, first);
        assert_eq!(tracker.pin_mut().release(next, false).code, OK);
    }
    assert_eq!(
        tracker.pin_mut().allocate(0, 100, true, false).address,
        first
    );
}

#[test]
fn huge_pages_are_charged_in_steps_of_two_mebibytes() {
    const MIB: u64 = 1 << 20;
    let mut tracker = new_tracker(64 << 20, 16 * MIB);
    for (size, pad, expected) in [
        (1, true, PAGE as u64),
        (2 << 20, false, 2 * MIB),
        (2 << 20, true, 4 * MIB),
    ] {
        let before = tracker.used(1);
        assert_eq!(tracker.pin_mut().allocate(1, size, pad, true).code, OK);
        assert_eq!(tracker.used(1) - before, expected);
    }
    let reply = tracker.pin_mut().allocate(1, 12 << 20, false, true);
    assert_eq!(reply.code, OUT_OF_MEMORY, "{}", reply.text);
    assert_eq!(
        tracker.pin_mut().allocate(0, 12 << 20, false, true).code,
        OK
    );
}
