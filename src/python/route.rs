//! `seqshift._native.RouterCore`: the router with Python handles and events.
//!
//! Every method is short and keeps the GIL. No Python code runs while the lock is held, or a
//! finalizer that uses the router could wait for its own thread: under the lock objects are only
//! referenced, never allocated (allocation may collect garbage) nor dropped.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyKeyError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyString, PyTuple};

use crate::route::{Decision, PolicyOptions, Reason, Request, RouteError, Router, RouterConfig};

impl From<RouteError> for PyErr {
    fn from(error: RouteError) -> Self {
        match error {
            RouteError::NoServers => PyRuntimeError::new_err(error.to_string()),
            RouteError::UnknownServer(_) => PyKeyError::new_err(error.to_string()),
            RouteError::InvalidOption { .. } => PyValueError::new_err(error.to_string()),
        }
    }
}

/// A decision with the objects that it concerns.
struct Explained {
    request_id: Py<PyString>,
    /// `(server_id, handle)` of the chosen server and of the one whose pin was broken.
    server: Py<PyTuple>,
    broken_from: Option<Py<PyTuple>>,
    decision: Decision,
}

impl Explained {
    fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            request_id: self.request_id.clone_ref(py),
            server: self.server.clone_ref(py),
            broken_from: self.broken_from.as_ref().map(|server| server.clone_ref(py)),
            decision: self.decision,
        }
    }

    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let id = |server: &Py<PyTuple>| server.bind(py).get_item(0);
        let event = PyDict::new(py);
        event.set_item("request_id", &self.request_id)?;
        event.set_item("server_id", id(&self.server)?)?;
        event.set_item("reason", self.decision.reason.as_str())?;
        event.set_item("load", self.decision.load)?;
        event.set_item("min_load", self.decision.min_load)?;
        event.set_item(
            "broken_from",
            self.broken_from.as_ref().map(id).transpose()?,
        )?;
        Ok(event)
    }
}

struct State {
    router: Router,
    /// `(server_id, handle)` by slot, handed out as it is.
    handles: Vec<Option<Py<PyTuple>>>,
    last: Option<Explained>,
}

/// The state behind `AffinityRouter`.
#[pyclass(frozen, module = "seqshift._native")]
pub struct RouterCore {
    state: Mutex<State>,
    /// Name of the field that declares load, if a policy weighs.
    load_field: Option<Py<PyString>>,
    load_block_size: u64,
    /// Choose by Python's hash of the id, as verl does, when choosing by hash.
    python_hash: bool,
    on_decision: Option<Py<PyAny>>,
}

#[pymethods]
impl RouterCore {
    #[new]
    #[pyo3(signature = (*, policy, shadow, full_determinism, max_conversations, seed, load_field,
                        load_block_size, python_hash, on_decision))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        policy: (String, Options),
        shadow: Option<(String, Options)>,
        full_determinism: bool,
        max_conversations: Option<usize>,
        seed: u64,
        load_field: Option<Py<PyString>>,
        load_block_size: u64,
        python_hash: bool,
        on_decision: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let build = |(name, options): (String, Options)| options.0.build(&name);
        let config = RouterConfig {
            policy: build(policy)?,
            shadow: shadow.map(build).transpose()?,
            full_determinism,
            max_conversations,
            seed,
        };
        let no_servers: [&str; 0] = [];
        let router = Router::new(no_servers, config);
        let state = Mutex::new(State {
            router,
            handles: Vec::new(),
            last: None,
        });
        Ok(Self {
            state,
            load_field,
            load_block_size,
            python_hash,
            on_decision,
        })
    }

    #[pyo3(signature = (request_id, **fields))]
    fn acquire_server<'py>(
        &self,
        request_id: &Bound<'py, PyString>,
        fields: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Py<PyTuple>> {
        let py = request_id.py();
        let weight = self.weight(py, fields)?;
        let hash = if self.python_hash {
            Some(request_id.hash()? as i64)
        } else {
            None
        };
        let text = request_id.to_cow()?;
        let mut state = self.lock();
        let State {
            router,
            handles,
            last,
        } = &mut *state;
        let decision = router.acquire(Request {
            request_id: &text,
            weight,
            hash,
        })?;
        let server = handles[decision.slot as usize]
            .as_ref()
            .ok_or(RouteError::NoServers)?;
        let server = server.clone_ref(py);
        let from = decision
            .broken_from
            .and_then(|slot| handles[slot as usize].as_ref());
        let explained = Explained {
            request_id: request_id.clone().unbind(),
            server: server.clone_ref(py),
            broken_from: from.map(|tuple| tuple.clone_ref(py)),
            decision,
        };
        let event = self.on_decision.as_ref().map(|_| explained.clone_ref(py));
        let displaced = last.replace(explained);
        drop(state);
        drop(displaced);
        if let (Some(callback), Some(event)) = (&self.on_decision, event)
            && let Err(error) = event
                .to_dict(py)
                .and_then(|event| callback.call1(py, (event,)))
        {
            // The request is placed and counted: a broken observer must not lose it.
            error.write_unraisable(py, Some(callback.bind(py)));
        }
        Ok(server)
    }

    #[pyo3(signature = (server_id, request_id=None))]
    fn release_server(
        &self,
        server_id: &Bound<'_, PyString>,
        request_id: Option<&Bound<'_, PyString>>,
    ) -> PyResult<()> {
        let server_id = server_id.to_cow()?;
        let request_id = request_id.map(|id| id.to_cow()).transpose()?;
        self.lock()
            .router
            .release(&server_id, request_id.as_deref());
        Ok(())
    }

    /// Adds servers. One that is in the pool already keeps its count if its handle is the same
    /// object; another handle means that the server has been started anew.
    fn add_servers(&self, servers: &Bound<'_, PyDict>) -> PyResult<()> {
        let py = servers.py();
        let mut entries = Vec::with_capacity(servers.len());
        for (id, handle) in servers.iter() {
            let id = id.cast_into::<PyString>()?;
            let name = id.to_cow()?.into_owned();
            entries.push((
                name,
                handle.clone().unbind(),
                PyTuple::new(py, [id.into_any(), handle])?,
            ));
        }
        let mut displaced = Vec::new();
        let mut state = self.lock();
        let State {
            router, handles, ..
        } = &mut *state;
        for (name, handle, tuple) in entries {
            if let Some(slot) = router.slot(&name) {
                let known = handles[slot as usize].as_ref();
                let same = known.map(|t| t.bind(py).get_item(1)).transpose()?;
                if same.is_some_and(|same| same.is(&handle)) {
                    continue;
                }
                router.remove_server(&name);
                displaced.push(handles[slot as usize].take());
            }
            router.add_server(&name);
            if let Some(slot) = router.slot(&name) {
                let index = slot as usize;
                if handles.len() <= index {
                    handles.resize_with(index + 1, || None);
                }
                displaced.push(handles[index].replace(tuple.unbind()));
            }
        }
        drop(state);
        drop(displaced);
        Ok(())
    }

    fn remove_servers(&self, server_ids: Vec<String>) {
        let mut displaced = Vec::new();
        let mut state = self.lock();
        let State {
            router, handles, ..
        } = &mut *state;
        for id in &server_ids {
            if let Some(slot) = router.slot(id) {
                router.remove_server(id);
                displaced.push(handles[slot as usize].take());
            }
        }
        drop(state);
        drop(displaced);
    }

    /// Requests in flight on `server_id`, `None` if it is not in the pool.
    fn inflight(&self, server_id: &str) -> Option<u64> {
        self.lock().router.inflight(server_id)
    }

    fn set_inflight(&self, server_id: &str, load: u64) -> PyResult<()> {
        Ok(self.lock().router.set_inflight(server_id, load)?)
    }

    fn total_inflight(&self) -> u64 {
        self.lock().router.total_inflight()
    }

    /// `{server_id: in flight}` in the order in which the servers were added.
    fn loads(&self) -> Loads {
        let state = self.lock();
        named(&state.router, state.router.inflight_by_slot())
    }

    /// `{server_id: declared load}`, `None` if no policy weighs.
    fn declared_loads(&self) -> Option<Loads> {
        let state = self.lock();
        state
            .router
            .declared_by_slot()
            .map(|loads| named(&state.router, loads))
    }

    /// `(server_id, handle)` of every server in the pool.
    fn servers(&self, py: Python<'_>) -> Vec<Py<PyTuple>> {
        let state = self.lock();
        let handles = |slot: &u32| state.handles[*slot as usize].as_ref();
        state
            .router
            .slots()
            .iter()
            .filter_map(handles)
            .map(|tuple| tuple.clone_ref(py))
            .collect()
    }

    fn clear_pins(&self) -> usize {
        self.lock().router.clear_pins()
    }

    fn pinned(&self) -> usize {
        self.lock().router.pinned()
    }

    /// `{reason: count}`.
    fn reasons<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.lock().router.reasons();
        let reasons = PyDict::new(py);
        for (reason, count) in Reason::ALL.iter().zip(counts) {
            reasons.set_item(reason.as_str(), count)?;
        }
        Ok(reasons)
    }

    /// `(kept, broken, differs)` of the shadow policy.
    fn shadow(&self) -> Option<(u64, u64, u64)> {
        self.lock()
            .router
            .shadow()
            .map(|s| (s.kept, s.broken, s.differs))
    }

    /// The last decision as a dict, `None` before the first.
    fn explain_last<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let last = self.lock().last.as_ref().map(|last| last.clone_ref(py));
        last.map(|last| last.to_dict(py)).transpose()
    }
}

/// A dict of loads by server id.
struct Loads(Vec<(String, u64)>);

impl<'py> IntoPyObject<'py> for Loads {
    type Target = PyDict;
    type Output = Bound<'py, PyDict>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.0.into_py_dict(py)
    }
}

fn named(router: &Router, loads: impl Iterator<Item = (u32, u64)>) -> Loads {
    Loads(
        loads
            .map(|(slot, load)| (router.server_id(slot).to_owned(), load))
            .collect(),
    )
}

impl RouterCore {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic is turned into a Python exception; the state is plain data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The declared load: a number as it is, a sequence by its length, in blocks, rounded up. A
    /// request that declares nothing weighs one block.
    fn weight(&self, py: Python<'_>, fields: Option<&Bound<'_, PyDict>>) -> PyResult<u64> {
        let (Some(name), Some(fields)) = (&self.load_field, fields) else {
            return Ok(1);
        };
        let Some(value) = fields.get_item(name)?.filter(|value| !value.is_none()) else {
            return Ok(1);
        };
        let units = match value.extract::<u64>() {
            Ok(number) => number,
            Err(_) => value.len().map_err(|_| RouteError::InvalidOption {
                option: "load_field",
                value: format!("{}: {value}", name.bind(py)),
                expected: "a sequence or a number that is not negative",
            })? as u64,
        };
        Ok(units.div_ceil(self.load_block_size).max(1))
    }
}

/// Policy options from a dict; absent ones have their defaults.
struct Options(PolicyOptions);

impl<'a, 'py> FromPyObject<'a, 'py> for Options {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let given = object.cast::<PyDict>()?;
        let number = |name: &str| -> PyResult<Option<f64>> {
            given
                .get_item(name)?
                .map(|value| value.extract())
                .transpose()
        };
        let defaults = PolicyOptions::default();
        let or = |name: &str, default: f64| Ok::<_, PyErr>(number(name)?.unwrap_or(default));
        Ok(Self(PolicyOptions {
            affinity_break_margin: number("affinity_break_margin")?,
            balance_abs_threshold: or("balance_abs_threshold", defaults.balance_abs_threshold)?,
            balance_rel_threshold: or("balance_rel_threshold", defaults.balance_rel_threshold)?,
        }))
    }
}
