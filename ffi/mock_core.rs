//! The memory tracker of the CPU mock, linked in for tests in Rust (feature `mock-core`).
//!
//! The mock itself is a pair of shared libraries that are found at run time like CANN; see
//! `cann_shim/mock/README.md`.

pub use bridge::{Reply, TrackerCore, new_tracker};

#[allow(missing_docs, clippy::undocumented_unsafe_blocks)]
#[cxx::bridge(namespace = "mock")]
mod bridge {
    /// What an operation of the tracker comes to.
    struct Reply {
        /// 0, or the AscendCL error.
        code: i32,
        /// Text of the error.
        text: String,
        /// The address handed out; for an access, where the bytes are.
        address: usize,
        /// For an access to memory of the tracker's own, its first byte.
        byte: u8,
    }

    unsafe extern "C++" {
        include!("mock_core.hpp");

        type TrackerCore;

        /// A tracker with `window` bytes of address space for device memory and as many for
        /// pinned host memory, and `capacity` bytes on each device.
        fn new_tracker(window: usize, capacity: u64) -> UniquePtr<TrackerCore>;

        /// `aclrtMalloc` (with `pad`) or `aclrtMallocAlign32`, in 2 MiB steps with `huge`.
        fn allocate(
            self: Pin<&mut TrackerCore>,
            device: i32,
            size: usize,
            pad: bool,
            huge: bool,
        ) -> Reply;
        /// `aclrtMallocHost`.
        fn allocate_host(self: Pin<&mut TrackerCore>, size: usize) -> Reply;
        /// `aclrtFree`, or with `host` `aclrtFreeHost`.
        fn release(self: Pin<&mut TrackerCore>, address: usize, host: bool) -> Reply;
        /// `seqshiftMockRegisterDeviceMemory`.
        fn adopt(self: Pin<&mut TrackerCore>, address: usize, size: usize, device: i32) -> Reply;
        /// `seqshiftMockUnregisterDeviceMemory`.
        fn abandon(self: Pin<&mut TrackerCore>, address: usize) -> Reply;
        /// Whether all of `size` bytes at `address` may be touched.
        fn access(self: Pin<&mut TrackerCore>, address: usize, size: usize) -> Reply;
        /// Frees what the device holds.
        fn reset_device(self: Pin<&mut TrackerCore>, device: i32);
        /// Bytes in use on the device.
        fn used(self: &TrackerCore, device: i32) -> u64;
    }
}
