//! Failures to come, each of which happens once.

use std::sync::{Arc, Condvar, Mutex};

/// Where something fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    Counts,
    Detail,
    Capture,
    /// The manifest contradicts itself.
    Manifest,
    Reserve,
    /// Fewer blocks are reserved than the manifest asks for.
    Blocks,
    /// The sender cannot read its blocks; the receiver gets zeros.
    Gather,
    /// A bit changes on the way.
    Damage,
    /// The receiver cannot write its blocks.
    Scatter,
    /// The communicator breaks before anything is sent.
    Break,
    Restore,
    Watch,
    Watched,
    Prepare,
    Dismiss,
    /// The sender sends nothing; the receiver waits to the end.
    Stall,
    /// The exchange in the background ends only once somebody waits for it.
    Linger,
    /// There is no thread for the exchange in the background.
    Thread,
    Install,
    Forget,
    Thaw,
    Activate,
    Release,
}

/// The failures that one cell has before it.
#[derive(Clone, Default)]
pub struct Faults(Arc<(Mutex<Vec<Point>>, Condvar)>);

impl Faults {
    pub fn arm(&self, point: Point) {
        self.0.0.lock().unwrap().push(point);
    }

    /// Whether this fails now.
    pub fn fires(&self, point: Point) -> bool {
        let mut armed = self.0.0.lock().unwrap();
        let at = armed.iter().position(|p| *p == point);
        at.map(|at| armed.remove(at)).is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.0.0.lock().unwrap().is_empty()
    }

    /// Waits for as long as [`Point::Linger`] is armed.
    pub fn linger(&self) {
        let (armed, changed) = &*self.0;
        let lingers = |armed: &mut Vec<Point>| armed.contains(&Point::Linger);
        drop(changed.wait_while(armed.lock().unwrap(), lingers).unwrap());
    }

    /// Disarms [`Point::Linger`].
    pub fn let_go(&self) {
        self.fires(Point::Linger);
        self.0.1.notify_all();
    }
}
