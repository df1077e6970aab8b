"""One engine's part in the rebalancing of its DP group: when checks run, and what a step becomes.

Lockstep: in every step each rank runs one forward, real or dummy. A check runs at the start of a step on all ranks
alike; the all-reduce that ends a rollout is where all ranks exchange the last results, and a rollout that had results
on their way takes one more step, with a dummy forward on every rank, to deliver them.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
from pathlib import Path
from typing import Any, Callable

from seqshift import _native
from seqshift.agreement import ON, agree, verdict_key
from seqshift.config import RolloutRebalanceConfig
from seqshift.logs import log

TEST_PLAN = "SEQSHIFT_TEST_PLAN"
TEST_PRECOPY = "SEQSHIFT_TEST_PRECOPY"
_MOCK_DIR = Path(__file__).with_name("_mock")
# Numbers this process's engines; the ranks of a group make theirs in the same order.
_engines = itertools.count(1)


class Session:
    """Joins an engine to its group. `adapter` is an EngineState of the vLLM line in use."""

    def __init__(self, adapter: Any, group: _native.Group, config: RolloutRebalanceConfig) -> None:
        self.adapter = adapter
        self.group = group
        self.max_failures = config.max_failures
        self.adaptive = config.trigger == "adaptive"
        self.check_interval = config.check_interval
        self.steps = 0
        self.faults = 0
        self.checking = True
        self._due = False
        # The step of the next check, where a copy in the background gives it.
        self._resume: int | None = None
        self._moved = False
        self._delivering = False
        # Whether a rollout of the group is under way: it has been asked for work, and has not drained.
        self._under_way = False
        self._layout: Any = None
        self._broken: str | None = None
        self._closed = False

    def begin(self) -> None:
        """The caller begins a rollout; unless it joins the one that the group is in, steps are counted from zero."""
        if not self._under_way:
            self.restart()

    def restart(self) -> None:
        """The group begins a rollout: steps are counted from zero."""
        self.steps = 0
        self.faults = 0
        self.checking = True
        self._due = False
        self._cancel()
        self.group.restart()
        # Nothing is between ranks now. If it goes on failing, settling the next check does, and stops this rank.
        self._attempt("listen")

    def step(self, original: Callable[[Any], list], engine: Any) -> list:
        """One engine step."""
        if self._delivering:
            self._delivering = False
        else:
            if self.steps == 0:
                self._resolve_layout()
            elif self._resume is not None:
                if self.steps == self._resume:
                    self._check()
            elif not self.checking:
                if self._moved and self.steps % self.check_interval == 0:
                    self._give_back()
            elif self._due if self.adaptive else self.steps % self.check_interval == 0:
                self._check()
            self.steps += 1
            self.group.step(self.steps)
        try:
            if self.adapter.away and not self._insist("has_work"):
                # What ran here has been aborted since the group was asked, but sequences of this rank run elsewhere.
                engine.should_execute_dummy_batch = True
            outputs = original(engine)
            if self.adapter.delivery:
                # A dummy step passes by the output processor.
                outputs = [*outputs, *self._insist("deliver", as_long_as=lambda: self.adapter.delivery)]
        except Exception as error:
            self._end(error)
            raise
        return outputs

    def unfinished(self, original: Callable[[Any, bool], bool], engine: Any) -> bool:
        """Whether any rank has work; `original` takes the engine and its answer to the group's all-reduce."""
        if self._delivering:
            # Asked once more before the step that delivers: all ranks know the answer.
            return True
        try:
            if self.adaptive:
                # The same all-reduce, with every rank's counts in it.
                slots = self.adapter.reduce(self._insist("slot"))
                self._due = self.group.observe(self.steps, slots)
                unfinished = any(slots)
            else:
                unfinished = original(engine, self._insist("has_work"))
        except Exception as error:
            self._end(error)
            raise
        if unfinished:
            self._under_way = True
            return True
        self._cancel()
        if self._moved:
            self._moved = False

            def drain() -> bool:
                returned = self.group.drain(self.adapter)
                if returned:
                    self._insist("settle")
                return returned

            if self._together(drain):
                self._delivering = True
                return True
        self._under_way = False
        self.restart()
        return False

    def busy(self) -> int:
        """Sequences that need the group: away from here, of another rank, or with results not delivered on any rank."""
        if self._broken:
            return 0
        return len(self.adapter.away) + len(self.adapter.foreign) + max(self.adapter.queued(), int(self._delivering))

    def close(self) -> None:
        """Leaves the group."""
        if self._closed:
            return
        self._closed = True
        self._attempt("listen", False)
        self._resume = None
        try:
            self.group.cancel(self.adapter, leaving=True)
        except RuntimeError as error:
            log.error("KV blocks stay taken: %s", error)
        else:
            # Nothing writes to them, and a check that failed may have left some.
            self._attempt("dismiss_all")
        self.group.close()

    def _resolve_layout(self) -> None:
        """KV tensors may have been made anew since the last rollout."""
        try:
            layout = self.adapter.kv_layout()
            if layout != self._layout:
                self._layout = None
                self.group.set_layout(layout)
                self._layout = layout
        except Exception as error:
            # The peers learn of it at the next check; this rank must not leave them before.
            self._layout = None
            log.warning("the KV caches cannot be used: %s", error)

    def _readable(self) -> Any:
        """The adapter, or one that the check ends with on all ranks."""
        if self._layout is None:
            self._resolve_layout()
        try:
            if self._layout is None:
                raise RuntimeError("the KV caches cannot be used")
            if (stream := self.adapter.producer()) is not None:
                self.group.set_producer(stream)
            return self.adapter
        except Exception as error:
            return _Unreadable(self.adapter, error)

    def _check(self) -> None:
        self._due = False

        def check() -> tuple[int, int, int | None]:
            done = self.group.check(self._readable(), self.steps)
            self._insist("settle")
            return done

        committed, faults, self._resume = self._together(check)
        self._moved |= committed > 0
        # Outcomes are equal on all ranks, so all switch off alike.
        self.faults += faults
        if self.faults >= self.max_failures:
            self.checking = False
            log.warning("rebalancing is off for the rest of the rollout after %d faults", self.faults)

    def _give_back(self) -> None:
        """Results and aborts still travel when rebalancing is off."""

        def give_back() -> None:
            self.group.give_back(self.adapter, self.steps)
            self._insist("settle")

        self._together(give_back)

    def _end(self, error: Exception) -> None:
        """The engine has failed. Its collectives say that a connection is closed, not whose: name the rank."""
        if self._broken is not None:
            return
        self._broken = f"{type(error).__name__}: {error}"
        gone = self.group.end(self._broken)
        self._leave()
        if gone is not None:
            raise RuntimeError(f"{gone}; this rank's engine failed with: {self._broken}") from error

    def _leave(self) -> None:
        """Leaves the group after an error; nothing of other ranks' requests stays here."""
        self.close()
        self._attempt("abandon")

    def _insist(self, method: str, *args: Any, as_long_as: Callable[[], Any] = lambda: True) -> Any:
        """Calls a method of the adapter, and once more if it raises and `as_long_as` holds: it may be repeated then."""
        try:
            return getattr(self.adapter, method)(*args)
        except Exception as error:
            if not as_long_as():
                raise
            log.warning("the adapter's %s failed and is called once more: %s", method, error)
            return getattr(self.adapter, method)(*args)

    def _attempt(self, method: str, *args: Any) -> None:
        """The same where this rank goes on, or leaves, in any case."""
        try:
            self._insist(method, *args)
        except Exception as error:
            log.error("the adapter's %s failed twice: %s", method, error)

    def _cancel(self) -> None:
        """Ends a copy in the background: the group has drained, which all ranks learn at once."""
        if self._broken is None:
            self._together(lambda: self.group.cancel(self.adapter))
            self._resume = None

    def _together(self, exchange: Callable[[], Any]) -> Any:
        """Runs an exchange with the group; if it fails, the peers must not wait for this rank."""
        if self._broken is not None:
            raise RuntimeError(
                f"this engine left its group after an error ({self._broken}): abort its requests and call "
                "disable_rollout_rebalance() and enable_rollout_rebalance() on all ranks"
            )
        try:
            return exchange()
        except BaseException as error:
            self._broken = f"{type(error).__name__}: {error}"
            self._leave()
            raise


class _Unreadable:
    """An adapter whose counts cannot be had: such a check only returns results."""

    def __init__(self, adapter: Any, error: Exception) -> None:
        self._adapter = adapter
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def counts(self) -> Any:
        raise self._error


def join(facts: Any, make_adapter: Callable[[], Any], config: RolloutRebalanceConfig) -> Session | None:
    """Agrees with all ranks of the engine's group and joins it; None when the feature is off for this engine.

    `facts` is the adapter's GroupFacts; `make_adapter` makes the EngineState and may raise what makes this engine
    unfit. All ranks come to the same answer, and each logs it once.
    """
    # Other groups may use the same store.
    scope = f"{min(facts.members)}/engine"
    engine = next(_engines)
    while facts.store.check([verdict_key(f"{scope}/{engine}/fit")]):
        # Decided without this rank: it was not hooked then. Its peers count from the next one on.
        engine = next(_engines)
    words = {
        "version": _native.__version__,
        "vllm": facts.version,
        "config": config.agreement_hash(),
        "gears": list(facts.gears),
        "max_num_seqs": facts.max_num_seqs,
        "max_model_len": facts.max_model_len,
        "test_plan": os.environ.get(TEST_PLAN, ""),
        "test_precopy": os.environ.get(TEST_PRECOPY, ""),
        "host": facts.host,
        "machine": _machine(),
        "secret": secrets.token_hex(16),
        "ports": {},
    }

    def settle(topic: str, unfit: str | None, seconds: float = config.deadline_seconds) -> dict[int, dict]:
        topic = f"{scope}/{engine}/{topic}"
        verdict, heard = agree(
            facts.store, topic, facts.member, facts.members, {**words, "unfit": unfit}, _judge, seconds
        )
        if verdict != ON:
            raise _Off(verdict)
        return heard

    adapter = group = None
    try:
        # Each round ends alike on all ranks, so that none goes on alone.
        unfit = facts.unfit
        if unfit is None:
            adapter, unfit = _tried(make_adapter)
        heard = settle("fit", unfit)
        secret = bytes.fromhex(heard[min(heard)]["secret"])
        listeners, unfit = _tried(lambda: {name: _native.Listener(secret) for name in ("dp", "tp")})
        words["ports"] = {name: one.port for name, one in (listeners or {}).items()}
        heard = settle("ports", unfit)
        group, unfit = _tried(lambda: _connect(facts, config, adapter, listeners, heard))
        # Connecting has a deadline of its own, counted from a moment that differs a little between ranks.
        settle("ready", unfit, config.deadline_seconds + 5)
    except _Off as off:
        log.warning("rebalancing is off for this engine: %s", off)
        if group is not None:
            group.close()
        return None
    if plan := words["test_plan"]:
        log.warning("%s=%s replaces the planner: for tests only", TEST_PLAN, plan)
    if test := words["test_precopy"]:
        log.warning("%s=%s copies KV in the background however little it is: for tests only", TEST_PRECOPY, test)
    return Session(adapter, group, config)


class _Off(Exception):
    """The verdict that the feature is off, with its reason."""


def _tried(make: Callable[[], Any]) -> tuple[Any, str | None]:
    """(what was made, None) or (None, what went wrong)."""
    try:
        return make(), None
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def _judge(heard: dict[int, dict]) -> str:
    """The verdict on everybody's words: ON, or what is wrong and where."""
    leader = min(heard)
    for member, words in sorted(heard.items()):
        if words["unfit"]:
            return f"rank {member}: {words['unfit']}"
    for name in ("version", "vllm", "config", "gears", "max_model_len", "test_plan", "test_precopy"):
        for member, words in sorted(heard.items()):
            if words[name] != heard[leader][name]:
                return (
                    f"{name} differs between ranks ({leader}: {heard[leader][name]}, {member}: {words[name]}): "
                    "give all ranks the same settings"
                )
    return ON


def _connect(
    facts: Any, config: RolloutRebalanceConfig, adapter: Any, listeners: dict, heard: dict[int, dict]
) -> _native.Group:
    def end(name: str, members: list[int]) -> tuple | None:
        if len(members) == 1:
            return None
        here = _machine()
        addresses = []
        for member in members:
            words = heard[member]
            host = "127.0.0.1" if words["machine"] == here else words["host"]
            addresses.append(f"{host}:{words['ports'][name]}")
        return listeners[name], members.index(facts.member), addresses

    options = {
        "gears": list(facts.gears),
        "block_size": adapter.block_size,
        # The trigger decides alike only from what is alike.
        "max_num_seqs": min(words["max_num_seqs"] for words in heard.values()),
        "library_dir": library_dir(config, facts.on_npu),
        "device": facts.device,
        "adaptive": config.trigger == "adaptive",
        "forced_plan": os.environ.get(TEST_PLAN) or None,
        "test_precopy": os.environ.get(TEST_PRECOPY, ""),
    }
    names = ("minimum_gain", "deadline_seconds", "staging_mib", "comm_buffer_mib", "verify_kv", "precopy")
    options.update((name, getattr(config, name)) for name in (*names, "profile", "profile_interval", "check_interval"))
    group = _native.Group(end("dp", facts.dp_members), end("tp", facts.tp_members), options)
    group.set_layout(adapter.kv_layout())
    group.start()
    return group


def library_dir(config: RolloutRebalanceConfig, on_npu: bool) -> str | None:
    """Where the native libraries are; None is the usual search for CANN. `auto` is CANN on an NPU, else the mock."""
    backend = config.backend
    if backend == "auto":
        backend = "cann" if on_npu else "mock"
    return os.environ.get("SEQSHIFT_CANN_LIB_DIR") or (str(_MOCK_DIR) if backend == "mock" else None)


def _machine() -> str:
    """Equal for two processes that reach each other through the loopback interface."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}/{socket.gethostname()}"
