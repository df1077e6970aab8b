//! The engine adapter, a Python object, as [`Engine`].
//!
//! Rust calls it with plain tuples, lists and dicts; a Python exception becomes
//! the [`EngineError`] that the protocol turns into a reject. Where nothing can be
//! rejected any more, the call is made once more: those methods of the adapter may be
//! repeated after an exception. A `KeyboardInterrupt` or `SystemExit` is kept and
//! raised again at the end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::migrate::engine::{
    Captured, Counts, Engine, EngineError, Outlook, Result, Source, Watched,
};
use crate::wire::manifest::{Manifest, SequenceKey, Tokens};
use crate::wire::message::{Detail, Finish, LogprobRow, Return, SequenceDetail, Sync, TokenOutput};

type Key = (u32, u64);
type Row = (Vec<i64>, Vec<f64>, i64);
type Output = (
    Vec<u32>,
    Option<Vec<Row>>,
    Option<(String, Option<i64>)>,
    i64,
);
type Results = (Key, Vec<Output>, bool);

/// A manifest as Python sees it: a dict.
#[derive(FromPyObject, IntoPyObject)]
#[pyo3(from_item_all)]
struct ManifestItems {
    key: Key,
    request_id: String,
    hops: u32,
    prompt: Vec<u32>,
    output: Vec<u32>,
    sampling_params: Vec<u8>,
    eos_token_id: Option<u32>,
    cache_salt: Option<String>,
    num_computed_tokens: u32,
    num_cached_tokens: i64,
    generator_state: Option<Vec<u8>>,
    kv_blocks: u32,
}

fn key_of((origin, serial): Key) -> SequenceKey {
    SequenceKey { origin, serial }
}

impl From<ManifestItems> for Manifest {
    fn from(m: ManifestItems) -> Self {
        Self {
            key: key_of(m.key),
            request_id: m.request_id,
            hops: m.hops,
            prompt: Tokens(m.prompt),
            output: Tokens(m.output),
            sampling_params: m.sampling_params,
            eos_token_id: m.eos_token_id,
            cache_salt: m.cache_salt,
            num_computed_tokens: m.num_computed_tokens,
            num_cached_tokens: m.num_cached_tokens,
            generator_state: m.generator_state,
            kv_blocks: m.kv_blocks,
        }
    }
}

impl From<&Manifest> for ManifestItems {
    fn from(m: &Manifest) -> Self {
        Self {
            key: (m.key.origin, m.key.serial),
            request_id: m.request_id.clone(),
            hops: m.hops,
            prompt: m.prompt.0.clone(),
            output: m.output.0.clone(),
            sampling_params: m.sampling_params.clone(),
            eos_token_id: m.eos_token_id,
            cache_salt: m.cache_salt.clone(),
            num_computed_tokens: m.num_computed_tokens,
            num_cached_tokens: m.num_cached_tokens,
            generator_state: m.generator_state.clone(),
            kv_blocks: m.kv_blocks,
        }
    }
}

fn output_of((token_ids, rows, finish, num_cached_tokens): Output) -> TokenOutput {
    let row = |(token_ids, values, sampled_rank)| LogprobRow {
        token_ids,
        values,
        sampled_rank,
    };
    TokenOutput {
        token_ids,
        logprobs: rows.map(|rows| rows.into_iter().map(row).collect()),
        finish: finish.map(|(reason, stop_token)| Box::new(Finish { reason, stop_token })),
        num_cached_tokens,
    }
}

fn output_items(o: TokenOutput) -> Output {
    let row = |r: LogprobRow| (r.token_ids, r.values, r.sampled_rank);
    let rows = o.logprobs.map(|rows| rows.into_iter().map(row).collect());
    (
        o.token_ids,
        rows,
        o.finish.map(|f| (f.reason, f.stop_token)),
        o.num_cached_tokens,
    )
}

fn source_items(source: Source) -> (&'static str, u32) {
    match source {
        Source::Running(index) => ("running", index),
        Source::Waiting(index) => ("waiting", index),
    }
}

/// Calls the adapter; lives for one check.
pub struct PyEngine {
    adapter: Py<PyAny>,
    raised: Raised,
}

/// What must reach the caller as it is, KeyboardInterrupt and the like, until the call that
/// was interrupted raises it.
pub type Raised = Arc<Mutex<Option<PyErr>>>;

impl PyEngine {
    /// Wraps an adapter; what ends the check is left in `raised`.
    pub fn new(adapter: Py<PyAny>, raised: Raised) -> Self {
        Self { adapter, raised }
    }

    fn raised(&self) -> MutexGuard<'_, Option<PyErr>> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T>(
        &mut self,
        act: impl for<'py> FnOnce(Python<'py>, &Bound<'py, PyAny>) -> PyResult<T>,
    ) -> Result<T> {
        Python::attach(|py| {
            act(py, self.adapter.bind(py)).map_err(|error| {
                let text = EngineError(error.to_string());
                if !error.is_instance_of::<PyException>(py) {
                    self.raised().get_or_insert(error);
                }
                text
            })
        })
    }

    /// The same for a method that may be repeated, which is done once if it raises.
    fn insist<T>(
        &mut self,
        mut act: impl for<'py> FnMut(Python<'py>, &Bound<'py, PyAny>) -> PyResult<T>,
    ) -> Result<T> {
        match self.call(&mut act) {
            Err(why) if self.raised().is_none() => {
                tracing::warn!(%why, "a call of the adapter failed and is made once more");
                self.call(act)
            }
            result => result,
        }
    }
}

impl Engine for PyEngine {
    fn counts(&mut self) -> Result<Counts> {
        self.call(|_, adapter| {
            let (running, waiting, free_kv_blocks, max_num_seqs, has_sync) =
                adapter.call_method0("counts")?.extract()?;
            Ok(Counts {
                running,
                waiting,
                free_kv_blocks,
                max_num_seqs,
                has_sync,
            })
        })
    }

    fn outlook(&mut self) -> Result<Outlook> {
        self.call(|_, adapter| {
            let (blocks_per_sequence, longest_remaining) =
                adapter.call_method0("outlook")?.extract()?;
            Ok(Outlook {
                blocks_per_sequence,
                longest_remaining,
            })
        })
    }

    fn detail(&mut self) -> Result<Detail> {
        self.call(|_, adapter| {
            type Running = Vec<(Option<Key>, u32, bool)>;
            let (running, waiting_blocks, pinned_waiting_blocks, free_kv_blocks): (
                Running,
                _,
                _,
                _,
            ) = adapter.call_method0("detail")?.extract()?;
            let one = |(key, kv_blocks, movable): (Option<Key>, u32, bool)| SequenceDetail {
                key: key.map(key_of),
                kv_blocks,
                movable,
            };
            let running = running.into_iter().map(one).collect();
            Ok(Detail {
                running,
                waiting_blocks,
                pinned_waiting_blocks,
                free_kv_blocks,
                ..Detail::default()
            })
        })
    }

    fn take_sync(&mut self, ranks: u32) -> Result<Vec<Sync>> {
        self.insist(|_, adapter| {
            let (returns, aborts): (Vec<Results>, Vec<Key>) =
                adapter.call_method0("take_sync")?.extract()?;
            let aborts: Vec<SequenceKey> = aborts.into_iter().map(key_of).collect();
            let mut all: Vec<Sync> = (0..ranks)
                .map(|_| Sync {
                    returns: Vec::new(),
                    aborts: aborts.clone(),
                })
                .collect();
            for (key, outputs, done) in returns {
                let outputs = outputs.into_iter().map(output_of).collect();
                let one = Return {
                    key: key_of(key),
                    outputs,
                    done,
                };
                if let Some(sync) = all.get_mut(key.0 as usize) {
                    sync.returns.push(one);
                }
            }
            Ok(all)
        })
    }

    fn accept_sync(&mut self, sync: Sync) -> Result<()> {
        if sync.returns.is_empty() && sync.aborts.is_empty() {
            return Ok(());
        }
        let results = |r: Return| -> Results {
            let outputs = r.outputs.into_iter().map(output_items).collect();
            ((r.key.origin, r.key.serial), outputs, r.done)
        };
        let returns: Vec<Results> = sync.returns.into_iter().map(results).collect();
        let aborts: Vec<Key> = sync.aborts.iter().map(|k| (k.origin, k.serial)).collect();
        self.insist(|_, adapter| {
            adapter
                .call_method1("accept_sync", (&returns, &aborts))
                .map(drop)
        })
    }

    fn capture(&mut self, source: Source) -> Result<Captured> {
        self.call(|_, adapter| {
            let (items, blocks): (ManifestItems, Vec<u32>) = adapter
                .call_method1("capture", source_items(source))?
                .extract()?;
            Ok(Captured {
                manifest: items.into(),
                blocks,
            })
        })
    }

    fn reserve(&mut self, manifest: &Manifest, ticket: Option<u32>) -> Result<Vec<u32>> {
        let items = ManifestItems::from(manifest);
        self.call(|_, adapter| adapter.call_method1("reserve", (items, ticket))?.extract())
    }

    fn install(&mut self, key: SequenceKey) -> Result<()> {
        self.call(|_, adapter| {
            adapter
                .call_method1("install", (key.origin, key.serial))
                .map(drop)
        })
    }

    fn activate(&mut self, key: SequenceKey) -> Result<()> {
        self.insist(|_, adapter| {
            adapter
                .call_method1("activate", (key.origin, key.serial))
                .map(drop)
        })
    }

    fn release(&mut self, key: SequenceKey) -> Result<()> {
        self.insist(|_, adapter| {
            adapter
                .call_method1("release", (key.origin, key.serial))
                .map(drop)
        })
    }

    fn forget(&mut self, source: Source, to: u32) -> Result<()> {
        let (list, index) = source_items(source);
        self.insist(|_, adapter| adapter.call_method1("forget", (list, index, to)).map(drop))
    }

    fn thaw(&mut self, source: Source) -> Result<()> {
        self.insist(|_, adapter| adapter.call_method1("thaw", source_items(source)).map(drop))
    }

    fn watch(&mut self, source: Source, ticket: u32) -> Result<Vec<u32>> {
        let (list, index) = source_items(source);
        self.call(|_, adapter| {
            adapter
                .call_method1("watch", (list, index, ticket))?
                .extract()
        })
    }

    fn watched(&mut self, ticket: u32) -> Result<Watched> {
        self.call(|_, adapter| {
            let found = adapter.call_method1("watched", (ticket,))?;
            if let Ok(why) = found.extract::<String>() {
                return Ok(Watched::Gone(why));
            }
            let (index, full) = found.extract()?;
            Ok(Watched::Running { index, full })
        })
    }

    fn prepare(&mut self, ticket: u32, blocks: u32) -> Result<Vec<u32>> {
        self.call(|_, adapter| adapter.call_method1("prepare", (ticket, blocks))?.extract())
    }

    fn dismiss(&mut self, ticket: u32) -> Result<()> {
        self.insist(|_, adapter| adapter.call_method1("dismiss", (ticket,)).map(drop))
    }
}
