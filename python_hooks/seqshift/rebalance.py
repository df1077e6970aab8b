"""Installs the hooks, and takes them out again."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from seqshift import _native, adapters, hook, logs
from seqshift.config import RolloutRebalanceConfig
from seqshift.logs import log
from seqshift.session import Session, join

__all__ = ["disable_rollout_rebalance", "enable_rollout_rebalance"]

# An engine's attribute.
_SESSION = "_seqshift_session"

_lock = threading.Lock()
_installed: _Installed | None = None


class _Installed:
    """The hooks on one vLLM, and the engines that they have seen."""

    def __init__(self, vllm: Any, config: RolloutRebalanceConfig) -> None:
        self.vllm = vllm
        self.config = config
        # An engine that has been seen carries its session (or None, where the feature is off), which dies with it.
        self.engines: weakref.WeakSet[Any] = weakref.WeakSet()
        with ExitStack() as hooks:
            for one in self._hooks():
                hooks.callback(one.remove)
            # All are in: only remove() takes them out now.
            self._hooks_in = hooks.pop_all()

    def _hooks(self) -> Iterator[hook.Hook]:
        vllm = self.vllm
        yield hook.before(vllm.EngineArgs, "create_engine_config")(self._place_gears)
        yield hook.after(vllm.LLM, "__init__")(self._llm_made)
        yield hook.after(vllm.LLMEngine, "__init__")(self._engine_made)
        yield hook.before(vllm.LLM, "_run_engine")(self._rollout_begins)
        yield hook.around(vllm.LLMEngine, "step")(self._step)
        yield hook.around(vllm.LLMEngine, "has_unfinished_requests_dp")(self._unfinished)
        yield hook.before(vllm.InputBatch, "add_request")(vllm.clear_stale_row)
        yield hook.around(vllm.InputBatch, "swap_states")(vllm.swap_masks)

    def remove(self) -> None:
        sessions = [engine.__dict__.get(_SESSION) for engine in self.engines]
        if busy := sum(session.busy() for session in sessions if session is not None):
            raise RuntimeError(
                f"{busy} sequences or their results are between ranks: step the engines until "
                "has_unfinished_requests() is False on all ranks (generate([]) does), then disable"
            )
        self._hooks_in.close()
        for engine in list(self.engines):
            session = engine.__dict__.pop(_SESSION, None)
            if session is not None:
                session.close()
        self.engines.clear()

    def session(self, engine: Any) -> Session | None:
        """The engine's session; made at its first sight, which all ranks of a group come to together."""
        try:
            return engine.__dict__[_SESSION]
        except KeyError:
            self._engine_made(engine)
            return engine.__dict__[_SESSION]

    # --- Engine construction ---

    def _place_gears(self, args: Any, *_args: Any, **_kwargs: Any) -> None:
        # Both ways in pass by here, and nothing has read the config before.
        if self.config.multi_graph:
            self.vllm.set_gears(args, self.config.graph_batch_sizes)

    def _llm_made(self, llm: Any, *_args: Any, **_kwargs: Any) -> None:
        engine = llm.llm_engine
        if not isinstance(engine, self.vllm.LLMEngine):
            log.warning(
                "rebalancing is off for this engine: it is a V0 engine; set VLLM_USE_V1=1 before importing vllm"
            )

    def _engine_made(self, engine: Any, *_args: Any, **_kwargs: Any) -> None:
        engine.__dict__[_SESSION] = None
        self.engines.add(engine)
        facts = self.vllm.group_facts(engine, self.config.graph_batch_sizes)
        if facts is None:
            log.info("rebalancing is off for this engine: it has no DP group in this process")
            return

        def make_state() -> Any:
            return self.vllm.EngineState(engine, facts.dp_rank, _native.count_pinned)

        session = join(facts, make_state, self.config)
        if session is not None:
            engine.__dict__[_SESSION] = session
            weakref.finalize(engine, session.close)

    # --- The step loop ---

    def _rollout_begins(self, llm: Any, *_args: Any, **_kwargs: Any) -> None:
        engine = llm.llm_engine
        if isinstance(engine, self.vllm.LLMEngine) and (session := self.session(engine)) is not None:
            session.begin()

    def _step(self, original: Any, engine: Any) -> list:
        # Looked up here first: one call less in every step.
        session = engine.__dict__.get(_SESSION) or self.session(engine)
        if session is None:
            return original(engine)
        return session.step(original, engine)

    def _unfinished(self, original: Any, engine: Any, has_unfinished: bool) -> bool:
        session = engine.__dict__.get(_SESSION) or self.session(engine)
        if session is None:
            return original(engine, has_unfinished)
        return session.unfinished(original, engine)


def enable_rollout_rebalance(config: RolloutRebalanceConfig | Mapping[str, Any] | None = None) -> bool:
    """Installs the hooks in this process. Twice is once.

    Args:
        config: settings, as an object or a mapping of field names; None takes those of the environment.

    Returns:
        Whether the hooks are in. False when the settings say so, or when no adapter knows the installed vLLM (one
        message says which are known; vLLM is left as it is).

    Raises:
        ValueError: names the setting that cannot be used.
    """
    global _installed
    logs.set_up()
    config = RolloutRebalanceConfig.resolve(config)
    if not config.enable:
        return False
    with _lock:
        if _installed is not None:
            if _installed.config != config:
                log.warning("rebalancing is already enabled; its first settings stay until it is disabled")
            return True
        try:
            vllm = adapters.load()
        except adapters.UnsupportedVersion as error:
            log.warning("rebalancing is off in this process: %s", error)
            return False
        _native.reset_stats()
        _installed = _Installed(vllm, config)
        return True


def disable_rollout_rebalance() -> None:
    """Takes the hooks out again: the original objects where nobody patched on top, else a pass-through. Twice is once.

    Call it between rollouts, on all ranks.

    Raises:
        RuntimeError: requests of this rank run elsewhere, or the other way round, which only the hooks can bring home.
    """
    global _installed
    with _lock:
        if _installed is not None:
            _installed.remove()
            _installed = None
