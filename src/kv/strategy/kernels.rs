//! One kernel for all blocks: the cache as rows, and the numbers of the blocks' rows as an index.

use std::sync::Arc;
use std::time::Duration;

use super::{Mover, Transport};
use crate::device::{DeviceBuffer, DeviceError, Event, RowMove, Runtime, Stream, Tensor, prepare};
use crate::kv::blocks::{CopyCounts, Direction};
use crate::kv::runs;

/// Indices under way at once.
const SLOTS: usize = 8;
/// How long to wait for the oldest of them.
const PATIENCE: Duration = Duration::from_secs(1);
/// Room for so many row numbers at least.
const LEAST: usize = 1024;

/// An index on the device, in use until the stream has passed the event.
#[derive(Debug)]
struct Slot {
    device: DeviceBuffer,
    event: Event,
    /// What has been uploaded, and which stream uses it.
    rows: Vec<i64>,
    stream: u64,
    /// Workspaces that became too small while a kernel was using them.
    retired: Vec<DeviceBuffer>,
}

impl Slot {
    fn new(runtime: &Arc<Runtime>, rows: usize) -> Result<Self, DeviceError> {
        let bytes = rows.max(LEAST).next_power_of_two() * size_of::<i64>();
        Ok(Self {
            device: DeviceBuffer::new(runtime, bytes)?,
            event: Event::new(runtime)?,
            rows: Vec::new(),
            stream: 0,
            retired: Vec::new(),
        })
    }
}

/// Memory that the kernels of one stream work in, one after the other.
#[derive(Debug)]
struct Workspace {
    stream: u64,
    memory: DeviceBuffer,
}

/// aclnnIndexSelect and aclnnInplaceIndexCopy.
#[derive(Debug, Default)]
pub(in crate::kv) struct Kernels {
    /// The oldest use comes first.
    slots: Vec<Slot>,
    workspaces: Vec<Workspace>,
    refused: bool,
    /// Whether waiting for the oldest was in vain, and nothing is through since.
    stalled: bool,
    counts: CopyCounts,
}

impl Kernels {
    /// No more kernels: CANN has refused one.
    pub(in crate::kv) fn refuse(&mut self, error: &DeviceError) {
        if !std::mem::replace(&mut self.refused, true) {
            tracing::warn!(%error, "kernels are refused: blocks are copied one run at a time");
        }
    }

    /// Gives back what a stream uses that is idle or, if `stopped`, has been aborted. What one
    /// uses that could not be is never given back.
    pub(in crate::kv) fn leave(&mut self, stream: u64, stopped: bool) {
        let slots = self.slots.extract_if(.., |slot| slot.stream == stream);
        let workspaces = self.workspaces.extract_if(.., |one| one.stream == stream);
        if stopped {
            drop((slots.collect::<Vec<_>>(), workspaces.collect::<Vec<_>>()));
        } else {
            slots.for_each(std::mem::forget);
            workspaces.for_each(std::mem::forget);
        }
        self.stalled = false;
    }

    /// A slot with room for the rows that nobody uses, or that has these rows for this stream.
    fn slot(
        &mut self,
        runtime: &Arc<Runtime>,
        rows: &[i64],
        stream: &Stream,
    ) -> Result<(Slot, bool), DeviceError> {
        let same = |slot: &Slot| slot.stream == stream.id() && slot.rows == rows;
        if let Some(at) = self.slots.iter().rposition(same) {
            return Ok((self.slots.remove(at), true));
        }
        let mut free = None;
        let patience = if self.stalled {
            Duration::ZERO
        } else {
            PATIENCE
        };
        for (at, slot) in self.slots.iter().enumerate() {
            if slot.event.is_complete()? {
                free = Some(at);
                break;
            }
        }
        if free.is_none() && self.slots.len() >= SLOTS {
            let waited = self.slots[0].event.wait(patience);
            self.stalled = waited.as_ref().is_err_and(DeviceError::is_timeout);
            waited?;
            free = Some(0);
        }
        self.stalled = false;
        let slot = free.map(|at| self.slots.remove(at));
        let wanted = size_of_val(rows);
        match slot {
            Some(mut slot) if slot.device.len() >= wanted => {
                slot.retired.clear();
                Ok((slot, false))
            }
            _ => Ok((Slot::new(runtime, rows.len())?, false)),
        }
    }

    /// The stream's workspace, large enough; one that is not goes with the slot.
    fn workspace(
        &mut self,
        bytes: u64,
        slot: &mut Slot,
        stream: &Stream,
    ) -> Result<*mut u8, DeviceError> {
        if bytes == 0 {
            return Ok(std::ptr::null_mut());
        }
        let key = stream.id();
        let known = self.workspaces.iter_mut().find(|one| one.stream == key);
        match known {
            Some(one) if one.memory.len() as u64 >= bytes => Ok(one.memory.as_ptr()),
            Some(one) => {
                let larger = DeviceBuffer::new(stream.runtime(), bytes as usize)?;
                slot.retired
                    .push(std::mem::replace(&mut one.memory, larger));
                Ok(one.memory.as_ptr())
            }
            None => {
                let memory = DeviceBuffer::new(stream.runtime(), bytes as usize)?;
                let at = memory.as_ptr();
                self.workspaces.push(Workspace {
                    stream: key,
                    memory,
                });
                Ok(at)
            }
        }
    }
}

impl Kernels {
    /// Uploads the index, unless it is there, and then enqueues the kernel.
    ///
    /// # Safety
    /// As for [`Mover::enqueue`]; the slot is kept until the stream has passed both.
    unsafe fn launch(
        &mut self,
        one: &Transport<'_>,
        slot: &mut Slot,
        rows: &[i64],
        uploaded: bool,
    ) -> Result<(), DeviceError> {
        let (part, stream) = (one.part, one.stream);
        let runtime = stream.runtime();
        if !uploaded {
            slot.rows.clear();
            slot.stream = stream.id();
            // Not in the stream, which goes on after a failed copy: the kernel would write to the
            // rows of an earlier index, which are others' by now.
            let bytes: Vec<u8> = rows.iter().flat_map(|row| row.to_ne_bytes()).collect();
            slot.device.upload(&bytes)?;
            slot.rows.extend(rows);
        }
        // Rows up to the end of the last block's part: whole ones, since the unit divides all of
        // these numbers.
        let unit = runs::unit(part);
        let last = part.cache.blocks.saturating_sub(1) * part.cache.stride;
        let count = (last + part.range.end) / unit;
        let base = std::ptr::with_exposed_provenance_mut(part.cache.base as usize);
        let whole = Tensor::rows(runtime, base, count, unit)?;
        let index = Tensor::index(runtime, slot.device.as_ptr(), rows.len() as u64)?;
        let staged = Tensor::rows(runtime, one.staging, rows.len() as u64, unit)?;
        let kind = match one.direction {
            Direction::Gather => RowMove::Select,
            Direction::Scatter => RowMove::Write,
        };
        let kernel = prepare(runtime, kind, &whole, &index, &staged)?;
        let workspace = self.workspace(kernel.workspace(), slot, stream)?;
        // SAFETY: the caller keeps the slot, the workspace goes only with a slot, and the caller
        // vouches for the rest; ids and range were checked, so every row is one.
        unsafe { kernel.run(workspace, stream) }
    }
}

impl Mover for Kernels {
    unsafe fn enqueue(&mut self, one: &Transport<'_>) -> Result<(), DeviceError> {
        let rows: Vec<i64> = runs::rows(one.part, runs::unit(one.part)).collect();
        let (mut slot, uploaded) = self.slot(one.stream.runtime(), &rows, one.stream)?;
        // SAFETY: the slot is kept, below, until the stream has passed its event.
        let launched = unsafe { self.launch(one, &mut slot, &rows, uploaded) };
        match one.stream.record(&slot.event) {
            Ok(()) => self.slots.push(slot),
            Err(error) => {
                // Nobody can tell when the stream is done with it.
                std::mem::forget(slot);
                return launched.and(Err(error));
            }
        }
        launched?;
        self.counts.kernels += 1;
        self.counts.bytes += one.part.bytes();
        Ok(())
    }

    fn is_possible(&self) -> bool {
        !self.refused
    }

    fn counts(&self) -> CopyCounts {
        self.counts
    }
}
