//! The memory and the queues that one exchange works with.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::schedule::{Chunk, Cut};
use crate::device::{CopyKind, DeviceBuffer, DeviceError, Event, HostBuffer, Runtime, Stream};

/// How often a wait looks whether it should stop.
const PROBE: Duration = Duration::from_millis(200);

/// Staging memory of one direction: two halves used in turn, each with one chunk per lane.
#[derive(Debug)]
pub(super) struct Staging {
    device: DeviceBuffer,
    /// Copy of `device` for digests: the host cannot read device memory.
    host: Option<HostBuffer>,
    cut: Cut,
}

impl Staging {
    pub(super) fn new(runtime: &Arc<Runtime>, cut: Cut, host: bool) -> Result<Self, DeviceError> {
        let bytes = cut.staging() as usize;
        Ok(Self {
            device: DeviceBuffer::new(runtime, bytes)?,
            host: host.then(|| HostBuffer::new(runtime, bytes)).transpose()?,
            cut,
        })
    }

    fn offset(&self, half: usize, chunk: &Chunk) -> usize {
        (half as u64 * self.cut.half() + u64::from(chunk.lane) * self.cut.chunk) as usize
    }

    /// Address of a chunk's first byte, on the device.
    pub(super) fn chunk(&self, half: usize, chunk: &Chunk) -> *mut u8 {
        self.device.as_ptr().wrapping_add(self.offset(half, chunk))
    }

    /// Enqueues the copy of part of a chunk to the host, from where it lies.
    ///
    /// # Safety
    /// `from` is `length` bytes of the device, which are not touched by others until the stream has
    /// passed the copy; the part lies within the chunk.
    pub(super) unsafe fn fetch(
        &self,
        half: usize,
        chunk: &Chunk,
        offset: u64,
        length: u64,
        from: *const u8,
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        let Some(host) = &self.host else {
            return Ok(());
        };
        let at = self.offset(half, chunk) + offset as usize;
        let to = host.as_ptr().wrapping_add(at);
        // SAFETY: a chunk lies within its lane, and lanes within the buffer; the caller vouches for
        // the rest.
        unsafe { stream.copy(to, from, length as usize, CopyKind::DeviceToHost) }
    }

    /// A chunk's bytes on the host, once fetched.
    pub(super) fn fetched(&self, half: usize, chunk: &Chunk) -> Option<&[u8]> {
        let offset = self.offset(half, chunk);
        let host = self.host.as_ref()?;
        host.part(offset..offset + chunk.length as usize)
    }
}

/// One event per half of the staging memory: how far a stream has come with it.
#[derive(Debug)]
pub(super) struct Marks {
    events: [Event; 2],
    /// Whether the half's event has been recorded and not waited for.
    pending: [bool; 2],
    /// Whether the half's work was on a stream that was given up, and may never be done.
    lost: [bool; 2],
}

impl Marks {
    fn new(runtime: &Arc<Runtime>) -> Result<Self, DeviceError> {
        Ok(Self {
            events: [Event::new(runtime)?, Event::new(runtime)?],
            pending: [false; 2],
            lost: [false; 2],
        })
    }

    /// The stream is given up: what has been recorded and not waited for may never be done.
    fn lose(&mut self) {
        for half in 0..2 {
            self.lost[half] |= std::mem::take(&mut self.pending[half]);
        }
    }

    /// The same for a new stream.
    fn anew(&self, runtime: &Arc<Runtime>) -> Result<Self, DeviceError> {
        let new = Self::new(runtime)?;
        Ok(Self {
            lost: self.lost,
            ..new
        })
    }

    /// Marks the end of what has been enqueued for the half.
    fn record(&mut self, half: usize, stream: &Stream) -> Result<(), DeviceError> {
        stream.record(&self.events[half])?;
        self.pending[half] = true;
        Ok(())
    }

    /// Whether the half's work was lost with an earlier stream; says so once.
    pub(super) fn take_lost(&mut self, half: usize) -> bool {
        std::mem::take(&mut self.lost[half])
    }

    /// Waits for what was recorded for the half, if anything was, unless somebody says to stop.
    pub(super) fn wait(
        &mut self,
        half: usize,
        limit: Duration,
        stop: impl Fn() -> bool,
    ) -> Result<(), DeviceError> {
        if !std::mem::take(&mut self.pending[half]) {
            return Ok(());
        }
        wait(&self.events[half], limit, stop)
    }
}

/// Waits for an event, unless somebody says to stop.
pub(super) fn wait(
    event: &Event,
    limit: Duration,
    stop: impl Fn() -> bool,
) -> Result<(), DeviceError> {
    let start = Instant::now();
    loop {
        let left = limit.saturating_sub(start.elapsed());
        match event.wait(left.min(PROBE)) {
            Err(error) if error.is_timeout() && left > PROBE && !stop() => {}
            result => return result,
        }
    }
}

/// What a stream of an exchange marks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mark {
    /// The bytes are where they go.
    Moved,
    /// A copy of them is on the host.
    Fetched,
}

/// A stream and its marks.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) stream: Stream,
    /// By [`Mark`].
    marks: [Marks; 2],
}

impl Lane {
    pub(super) fn new(runtime: &Arc<Runtime>) -> Result<Self, DeviceError> {
        Ok(Self {
            stream: Stream::new(runtime)?,
            marks: [Marks::new(runtime)?, Marks::new(runtime)?],
        })
    }

    /// A new stream in place of one that has been aborted: what has been enqueued and not waited for
    /// is lost.
    pub(super) fn replace(&mut self, runtime: &Arc<Runtime>) -> Result<(), DeviceError> {
        self.marks.iter_mut().for_each(Marks::lose);
        let [moved, fetched] = &self.marks;
        *self = Self {
            stream: Stream::new(runtime)?,
            marks: [moved.anew(runtime)?, fetched.anew(runtime)?],
        };
        Ok(())
    }

    pub(super) fn marks(&mut self, mark: Mark) -> &mut Marks {
        &mut self.marks[mark as usize]
    }

    /// Marks the end of what has been enqueued for the half.
    pub(super) fn record(&mut self, mark: Mark, half: usize) -> Result<(), DeviceError> {
        self.marks[mark as usize].record(half, &self.stream)
    }
}

/// The stream of sends and receives; an event per half says that they are through.
#[derive(Debug)]
pub(super) struct Sends {
    pub(super) stream: Stream,
    events: [Event; 2],
}

impl Sends {
    /// Marks the end of what has been enqueued for the half.
    pub(super) fn record(&self, half: usize) -> Result<(), DeviceError> {
        self.stream.record(&self.events[half])
    }

    /// The half's mark.
    pub(super) fn event(&self, half: usize) -> &Event {
        &self.events[half]
    }
}

/// The three queues of an exchange.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) gather: Lane,
    pub(super) scatter: Lane,
    pub(super) sends: Sends,
}

impl Lanes {
    pub(super) fn new(runtime: &Arc<Runtime>) -> Result<Self, DeviceError> {
        Ok(Self {
            gather: Lane::new(runtime)?,
            scatter: Lane::new(runtime)?,
            sends: Sends {
                stream: Stream::new(runtime)?,
                events: [Event::new(runtime)?, Event::new(runtime)?],
            },
        })
    }
}
