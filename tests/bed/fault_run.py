"""Runs cells of the fault matrix in a rank, one hooked rollout each, on one engine and against one unhooked rollout."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from seqshift.cpu_bed.engine import make_llm
from seqshift.cpu_bed.ranks import RankContext

from bed import rollout, workload
from bed.fault_cells import DEADLINE_SECONDS, STOPS, Cell, Frame, Mock, Raises, Slow
from bed.mock_control import MockControl
from bed.observe import state
from bed.rollout import Pair, Rollout
from bed.waits import Wait, timed
from bed.workload import Workload

CONFIG = {"check_interval": 4, "deadline_seconds": DEADLINE_SECONDS, "staging_mib": 8, "comm_buffer_mib": 4}
CELL_SECONDS = 60
TEST_FAULT = "SEQSHIFT_TEST_FAULT"
TEST_PRECOPY = "SEQSHIFT_TEST_PRECOPY"
OFF_MESSAGE = "off for the rest of the rollout"


@dataclass
class Outcome:
    """What one rank saw of one cell."""

    # None when the rollout stopped.
    pair: Pair | None
    # (injection, how often it was met)
    met: list[tuple[str, int]]
    # Warnings that the feature is off for the rest of the rollout.
    warnings: int
    joined: bool
    error: str | None = None
    seconds: float = 0.0
    waits: list[Wait] = field(default_factory=list)
    # After a rollout that stopped: requests of other ranks, and the tables once the own ones are aborted.
    foreign: list[str] = field(default_factory=list)
    after: dict[str, Any] = field(default_factory=dict)


def work(dp_rank: int) -> Workload:
    """Four requests per rank that move at every check; one of them has three KV blocks."""
    return workload.busy(dp_rank, requests=4, first=22, step=6)


def run_cells(ctx: RankContext, cells: list[Cell], plan: str = "shuffle") -> list[Outcome]:
    """All cells one after the other. SEQSHIFT_MOCK_CONTROL must name a file of this rank's own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    control = MockControl(os.environ["SEQSHIFT_MOCK_CONTROL"])
    with rollout.hooks(CONFIG, plan):
        llm = make_llm(ctx)
    (plain,) = rollout.run_rollouts(ctx, llm, [work(ctx.dp_rank)], hooked=False)
    outcomes = []
    for cell in cells:
        config = {**CONFIG, "max_failures": 3 if cell.lasting else 1000}
        outcomes.append(run_cell(ctx, llm, cell, plain, control, work=work(ctx.dp_rank), config=config, plan=plan))
    return outcomes


def run_cell(
    ctx: RankContext,
    llm: Any,
    cell: Cell,
    plain: Rollout,
    control: MockControl,
    *,
    work: Workload,
    config: dict[str, Any],
    plan: str | None,
    seconds: int = CELL_SECONDS,
) -> Outcome:
    """One cell: a hooked rollout of `work`, whose unhooked one was `plain`. It may take so many seconds."""
    mine = cell.of(ctx.dp_rank, ctx.tp_rank)
    print(f"--- {cell}", flush=True)
    began = time.monotonic()
    # Ends this process, and so the scenario, with the other ranks' stacks.
    signal.alarm(seconds)
    with contextlib.ExitStack() as stack:
        met = [stack.enter_context(_armed(one, control, None, ctx)) for one in mine if _is_early(one)]
        if cell.precopy:
            os.environ[TEST_PRECOPY] = "always"
            stack.callback(os.environ.pop, TEST_PRECOPY)
        with rollout.hooks({**config, **cell.config}, plan), _warnings() as warnings:
            # The first look at the group joins it.
            llm.llm_engine.has_unfinished_requests()
            session = llm.llm_engine.__dict__["_seqshift_session"]
            met += [stack.enter_context(_armed(one, control, session, ctx)) for one in mine if not _is_early(one)]
            waits = stack.enter_context(timed(session))
            together()
            try:
                hooked = rollout.run_rollout(llm, work, hooked=True)
                outcome = Outcome(Pair(rollout.Case("cell", plan=plan), plain, hooked), [], 0, session is not None)
            except BaseException as error:
                if cell.outcome != STOPS:
                    raise
                outcome = Outcome(None, [], 0, session is not None, f"{type(error).__name__}: {error}")
                outcome.foreign = abandon(llm)
            outcome.warnings, outcome.waits = len(warnings), waits
        outcome.met = [(name, count()) for name, count in met]
    control.reset()
    if outcome.pair is None:
        # What was aborted leaves the runner with the next step.
        rollout.run_rollout(llm, workload.busy(ctx.dp_rank, requests=1, first=2), hooked=False)
        outcome.after = state(llm)
    signal.alarm(0)
    outcome.seconds = time.monotonic() - began
    return outcome


def called(ctx: RankContext) -> dict[str, int]:
    """Calls of the mock's symbols in one engine with one hooked rollout, from its making to its end."""
    with rollout.hooks(CONFIG, "shuffle"):
        llm = make_llm(ctx)
        rollout.run_rollout(llm, work(ctx.dp_rank), hooked=True)
    return MockControl(os.environ["SEQSHIFT_MOCK_CONTROL"]).called(ctx.rank)


def together() -> None:
    """Waits for all ranks."""
    import torch

    torch.distributed.barrier()


def abandon(llm: Any) -> list[str]:
    """Aborts what a stopped rollout has left, as its caller would; returns requests of other ranks."""
    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    own = list(engine.output_processor.request_states)
    foreign = [request_id for request_id in scheduler.requests if request_id not in own]
    engine.abort_request(own)
    engine.should_execute_dummy_batch = False
    return foreign


def _is_early(one: Any) -> bool:
    return isinstance(one, Frame) or (isinstance(one, Mock) and one.early)


@contextlib.contextmanager
def _warnings() -> Iterator[list[str]]:
    """The warnings that the session logs meanwhile and that say that it is off."""
    from seqshift import session

    seen: list[str] = []
    log = session.log

    class Listening:
        def __getattr__(self, name: str) -> Any:
            return getattr(log, name)

        def warning(self, message: str, *args: Any) -> None:
            if OFF_MESSAGE in message:
                seen.append(message)
            log.warning(message, *args)

    session.log = Listening()
    try:
        yield seen
    finally:
        session.log = log


@contextlib.contextmanager
def _armed(one: Any, control: MockControl, session: Any, ctx: RankContext) -> Iterator[tuple[str, Any]]:
    """Makes an injection; yields its name and what says how often it was met."""
    if isinstance(one, Mock):
        rule = control.arm(one.symbol, one.action, first=one.first, count=one.count, value=one.value)
        hits: list[int] = []
        try:
            yield str(one), lambda: hits[0] if hits else rule.hits
        finally:
            hits.append(rule.hits)
            rule.release()
            rule.disarm()
    elif isinstance(one, Frame):
        from seqshift import _native

        rank = ctx.tp_rank if one.kind == "Shard" else ctx.dp_rank
        os.environ[TEST_FAULT] = (
            f"rank={rank},kind={one.kind},action={one.action},nth={one.first},times={one.count},"
            f"milliseconds={one.milliseconds}"
        )
        before = _native.test_faults()
        try:
            yield str(one), lambda: _native.test_faults() - before
        finally:
            del os.environ[TEST_FAULT]
    else:
        with _replaced(one, session.adapter) as calls:
            yield str(one), lambda: calls[0]


@contextlib.contextmanager
def _replaced(one: Raises | Slow, adapter: Any) -> Iterator[list[int]]:
    """An adapter's method that fails or is slow; yields how often it did."""
    original = getattr(adapter, one.method)
    calls, hits = [0], [0]

    def hit() -> bool:
        calls[0] += 1
        count = getattr(one, "count", 1)
        found = calls[0] >= one.first and (count == 0 or calls[0] < one.first + count)
        hits[0] += found
        return found

    def replacement(*args: Any, **kwargs: Any) -> Any:
        if hit():
            if isinstance(one, Slow):
                if one.interrupt_after is not None:
                    threading.Timer(one.interrupt_after, os.kill, (os.getpid(), signal.SIGINT)).start()
                time.sleep(one.seconds)
            elif one.interrupt:
                signal.raise_signal(signal.SIGINT)
            else:
                raise RuntimeError(f"injected in {one.method}")
        return original(*args, **kwargs)

    setattr(adapter, one.method, replacement)
    try:
        yield hits
    finally:
        delattr(adapter, one.method)
