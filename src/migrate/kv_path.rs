//! The KV of a group's moves over connections of its own: gather, send, scatter.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use xxhash_rust::xxh3::xxh3_64;

use super::channel::{KvChannel, KvMove, KvOutcome, KvReport};
use crate::collective::control::{Listener, Mesh};
use crate::wire::frame::Kind;

/// How the KV path is opened.
#[derive(Debug, Clone)]
pub struct KvOptions {
    /// Directory of the native libraries; None: the usual search.
    pub library_dir: Option<PathBuf>,
    /// The libraries are the project's own mock.
    pub mock: bool,
    /// Device index.
    pub device: i32,
    /// Staging memory per direction, in bytes.
    pub staging_bytes: usize,
    /// HCCL buffer, in MiB.
    pub comm_buffer_mib: u32,
    /// Compute digests.
    pub verify: bool,
}

/// (pointer, blocks, block stride, block length, extent, dtype, format); bytes.
pub type SubCacheItems = (u64, u64, u64, u64, u64, String, String);

/// One rank's end.
#[derive(Debug)]
pub struct KvPath {
    options: KvOptions,
    mesh: Option<Mesh>,
    sub_caches: Vec<SubCacheItems>,
}

impl KvPath {
    /// Opens the path.
    ///
    /// # Errors
    /// Says what is missing.
    pub fn open(options: KvOptions) -> Result<Self, String> {
        Ok(Self {
            options,
            mesh: None,
            sub_caches: Vec::new(),
        })
    }

    /// Takes the KV caches' places.
    ///
    /// # Errors
    /// Says which sub-cache does not fit.
    pub fn set_layout(&mut self, layers: &[Vec<SubCacheItems>]) -> Result<(), String> {
        self.sub_caches = layers.iter().flatten().cloned().collect();
        Ok(())
    }

    fn pieces(&self, blocks: &[u32]) -> impl Iterator<Item = (u64, usize)> {
        let blocks = blocks.to_vec();
        let places: Vec<_> = self.sub_caches.iter().map(|s| (s.0, s.2, s.3)).collect();
        places.into_iter().flat_map(move |(base, stride, length)| {
            let piece = move |b| (base + stride * u64::from(b), length as usize);
            blocks.clone().into_iter().map(piece)
        })
    }

    fn digest(&self, bytes: &[u8]) -> Option<u64> {
        self.options.verify.then(|| xxh3_64(bytes))
    }
}

impl KvChannel for KvPath {
    fn broken(&self) -> bool {
        self.mesh.is_none()
    }

    fn restore(&mut self, control: &mut Mesh, deadline: Instant) -> Result<(), String> {
        let listener = Listener::bind([7; 16]).map_err(|e| e.to_string())?;
        let port = listener.port().map_err(|e| e.to_string())?;
        let ports = control
            .all_gather(Kind::Root, &port.to_le_bytes(), deadline)
            .map_err(|e| e.to_string())?;
        let mut addresses = Vec::new();
        for port in ports {
            let port: [u8; 2] = port
                .map_err(|e| e.to_string())?
                .try_into()
                .map_err(|_| "a port is two bytes".to_string())?;
            addresses.push(format!("127.0.0.1:{}", u16::from_le_bytes(port)));
        }
        let never = Arc::new(|| false);
        let mesh = listener.connect(control.rank(), &addresses, deadline, never);
        self.mesh = Some(mesh.map_err(|e| e.to_string())?);
        Ok(())
    }

    fn exchange(&mut self, outbound: &[KvMove], inbound: &[KvMove], deadline: Instant) -> KvReport {
        let mut report = KvReport::default();
        let ranks = self.mesh.as_ref().map_or(0, |m| m.size() as usize);
        let mut payloads = vec![Vec::new(); ranks];
        for one in outbound {
            let payload = &mut payloads[one.peer as usize];
            let start = payload.len();
            for (from, length) in self.pieces(&one.blocks) {
                // SAFETY: the adapter's layout names memory that the engine keeps during a check.
                payload.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(from as *const u8, length)
                });
            }
            report.bytes += (payload.len() - start) as u64;
            let digest = self.digest(&payload[start..]);
            report.outbound.push(KvOutcome {
                digest,
                error: None,
            });
        }
        let received = match self.mesh.as_mut() {
            Some(mesh) => mesh
                .all_to_all(Kind::Root, payloads, deadline)
                .map_err(|e| e.to_string()),
            None => Err("no connections".into()),
        };
        let mut at = vec![0; ranks];
        for one in inbound {
            let mut outcome = KvOutcome::default();
            match &received {
                Ok(all) => {
                    let bytes = all[one.peer as usize].as_deref().unwrap_or_default();
                    let start = at[one.peer as usize];
                    let mut end = start;
                    for (to, length) in self.pieces(&one.blocks) {
                        let Some(piece) = bytes.get(end..end + length) else {
                            outcome.error = Some("KV bytes missing".into());
                            break;
                        };
                        // SAFETY: as above; the blocks are reserved for this sequence.
                        unsafe {
                            std::ptr::copy_nonoverlapping(piece.as_ptr(), to as *mut u8, length);
                        }
                        end += length;
                    }
                    outcome.digest = self.digest(&bytes[start..end]);
                    at[one.peer as usize] = end;
                }
                Err(why) => outcome.error = Some(why.clone()),
            }
            report.inbound.push(outcome);
        }
        report.broken = received.is_err();
        report
    }
}
