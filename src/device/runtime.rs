//! One device of one process.

use std::ffi::CStr;
use std::sync::Arc;

use super::{DeviceError, acl};
use crate::device::error::check;
use crate::ffi::{self, LibraryOptions, Symbols};

/// What a [`Runtime`] is opened with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeOptions {
    /// Where CANN is looked for.
    pub libraries: LibraryOptions,
    /// The device, as CANN numbers it within the process.
    pub device: i32,
}

/// Device memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Not allocated.
    pub free: usize,
    /// All there is.
    pub total: usize,
}

/// CANN, loaded and initialised, with one device chosen.
#[derive(Debug)]
pub struct Runtime {
    symbols: Symbols,
    device: i32,
    owner: bool,
}

impl Runtime {
    /// Loads CANN, initialises it unless somebody in the process has done so, and takes the device.
    ///
    /// # Errors
    /// [`DeviceError::Load`] if CANN is not found, [`DeviceError::Call`] if it cannot be started or
    /// has no such device.
    pub fn open(options: &RuntimeOptions) -> Result<Arc<Self>, DeviceError> {
        let symbols = Symbols::load(&options.libraries)?;
        let mut owner = 0;
        // SAFETY: the table is complete, and `owner` lives.
        let code = unsafe { ffi::seqshiftInit(symbols.table(), &mut owner) };
        check(&symbols, "aclInit", code)?;
        let runtime = Self {
            symbols,
            device: options.device,
            owner: owner != 0,
        };
        runtime.bind()?;
        let (acl, hccl) = runtime.symbols.places();
        let kernels = runtime.symbols.kernels().unwrap_or("none");
        tracing::debug!(
            acl,
            hccl,
            kernels,
            device = runtime.device,
            owner = runtime.owner,
            "CANN is open"
        );
        Ok(Arc::new(runtime))
    }

    /// The symbol table.
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// The device.
    pub fn device(&self) -> i32 {
        self.device
    }

    /// Whether this runtime initialised CANN in this process.
    pub fn is_owner(&self) -> bool {
        self.owner
    }

    /// Makes the device current on this thread. Every operation of this layer does so by itself:
    /// whoever shares the thread may have chosen another device since.
    pub fn bind(&self) -> Result<(), DeviceError> {
        let mut current = -1;
        // SAFETY: `current` lives.
        let known = unsafe { acl!(&self.symbols, aclrtGetDevice(&mut current)) };
        if known.is_ok() && current == self.device {
            return Ok(());
        }
        // SAFETY: takes a number only.
        unsafe { acl!(&self.symbols, aclrtSetDevice(self.device)) }
    }

    /// Number of devices that the process sees.
    pub fn device_count(&self) -> Result<u32, DeviceError> {
        let mut count = 0;
        // SAFETY: `count` lives.
        unsafe { acl!(&self.symbols, aclrtGetDeviceCount(&mut count)) }?;
        Ok(count)
    }

    /// The device's memory.
    pub fn memory(&self) -> Result<MemoryInfo, DeviceError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both numbers live.
        unsafe {
            acl!(
                &self.symbols,
                aclrtGetMemInfo(ffi::CANN_ATTR_HBM, &mut free, &mut total)
            )
        }?;
        Ok(MemoryInfo { free, total })
    }

    /// Whether device memory is the host's own, as on the mock: what passes through it costs the
    /// processor's caches, not a bus.
    pub fn shares_host_memory(&self) -> bool {
        self.symbols
            .table()
            .seqshiftMockRegisterDeviceMemory
            .is_some()
    }

    /// The name of the chip, if this CANN tells.
    pub fn chip(&self) -> Option<String> {
        let function = self.symbols.table().aclrtGetSocName?;
        self.bind().ok()?;
        // SAFETY: takes nothing; returns null or a static C string.
        unsafe {
            let name = function();
            (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
        }
    }

    /// The version of CANN's runtime as (major, minor, patch), if this CANN tells.
    pub fn version(&self) -> Option<(i32, i32, i32)> {
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        // SAFETY: the three numbers live.
        unsafe {
            acl!(
                &self.symbols,
                aclrtGetVersion(&mut major, &mut minor, &mut patch)
            )
            .ok()?;
        }
        Some((major, minor, patch))
    }

    /// Ends CANN in this process if this runtime started it and nothing made from it is left;
    /// returns whether it did.
    ///
    /// Never done on drop: others in the process (torch_npu) may use what we started, and CANN does
    /// not promise to start twice.
    pub fn finalize(self: Arc<Self>) -> Result<bool, DeviceError> {
        match Arc::try_unwrap(self) {
            Ok(runtime) if runtime.owner => {
                // SAFETY: nothing of ours is left that could use CANN.
                unsafe { acl!(&runtime.symbols, aclFinalize()) }?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}
