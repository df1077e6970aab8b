"""Rollouts in a rank: the same workloads without and with the product's hooks, on one engine."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from seqshift.cpu_bed.compare import OutputRecord, record
from seqshift.cpu_bed.engine import make_llm, make_plain_llm, repaired_rows
from seqshift.cpu_bed.ranks import RankContext

from bed import workload
from bed.observe import Observer, Trace, reset_prefix_cache, state
from bed.streams import generate
from bed.workload import Workload

# The main workload's configuration: moves exactly 8 sequences at the first check.
CONFIG = {"check_interval": 20, "graph_batch_sizes": [16, 8, 4, 2, 1], "backend": "mock", "profile": False}
TEST_PLAN = "SEQSHIFT_TEST_PLAN"


@dataclass
class Rollout:
    """One call of generate() on one rank; plain values."""

    outputs: list[OutputRecord]
    trace: Trace
    before: dict[str, Any]
    after: dict[str, Any]
    seconds: float
    # seqshift.stats() of this rollout alone: counters are differences, other values those at its end.
    stats: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A workload by its builder's name in `bed.workload`, and how the hooked run of it is set up."""

    work: str
    options: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    # None, "shuffle" or "pingpong".
    plan: str | None = None
    # Free KV blocks that a DP rank has at the start of the hooked run, where not all.
    free_blocks: dict[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.work} {self.options or ''} {self.plan or 'gears'}"


@dataclass
class Pair:
    """The unhooked and the hooked run of a case on one rank."""

    case: Case
    plain: Rollout
    hooked: Rollout


def run_rollout(
    llm: Any, work: Workload, *, hooked: bool, repair: bool = True, fresh: bool = True, free_blocks: int | None = None
) -> Rollout:
    """Runs one workload. The hooks must be in when `hooked`, and out otherwise.

    `repair` mends vLLM's stale rows in an unhooked run; a hooked one relies on the product for that. `fresh` clears
    the prefix cache and starts request ids at 0, so that runs can be compared. With `free_blocks`, all other KV blocks
    are held until the end.
    """
    if fresh:
        reset_prefix_cache(llm)
        llm.request_counter.reset()
    prompts, params = work.as_vllm()
    before = state(llm)
    seen = _stats() if hooked else {}
    guard = repaired_rows() if repair and not hooked else contextlib.nullcontext()
    start = time.perf_counter()
    around = (guard, held_blocks(llm, free_blocks), aborting(llm, work.aborts), budget(llm, work.budget))
    with Observer(llm) as trace, contextlib.ExitStack() as stack:
        for one in around:
            stack.enter_context(one)
        outputs = generate(llm, prompts, params, **work.call)
    seconds = time.perf_counter() - start
    stats = _difference(seen, _stats()) if hooked else {}
    return Rollout(outputs, trace, before, state(llm), seconds, stats)


@contextlib.contextmanager
def aborting(llm: Any, aborts: dict[int, tuple[int, ...]]) -> Iterator[None]:
    """Aborts requests of a fresh rollout, by index, after so many steps."""
    engine = llm.llm_engine
    if not aborts:
        yield
        return
    steps = 0

    def step() -> list[Any]:
        nonlocal steps
        outputs = type(engine).step(engine)
        steps += 1
        # Here, since the ranks ask each other next who has work.
        if indices := aborts.get(steps):
            engine.abort_request([str(index) for index in indices])
        return outputs

    engine.step = step
    try:
        yield
    finally:
        del engine.step


@contextlib.contextmanager
def budget(llm: Any, tokens: int | None) -> Iterator[None]:
    """A step of the engine computes so many tokens at most, prompts in chunks; None leaves it its own number."""
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    before = scheduler.max_num_scheduled_tokens
    scheduler.max_num_scheduled_tokens = before if tokens is None else tokens
    try:
        yield
    finally:
        scheduler.max_num_scheduled_tokens = before


@contextlib.contextmanager
def held_blocks(llm: Any, free: int | None) -> Iterator[None]:
    """Leaves an idle engine `free` KV blocks; None leaves it all."""
    pool = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    held = [] if free is None else pool.get_new_blocks(pool.get_num_free_blocks() - free)
    try:
        yield
    finally:
        pool.free_blocks(held)


def run_rollouts(
    ctx: RankContext,
    llm: Any,
    works: list[Workload],
    *,
    hooked: bool,
    config: dict[str, Any] | None = None,
    plan: str | None = None,
    **options: Any,
) -> list[Rollout]:
    """Runs workloads one after the other, with the hooks in (enabled before, disabled after) or out."""
    with hooks(config, plan) if hooked else contextlib.nullcontext():
        return [run_rollout(llm, work, hooked=hooked, **options) for work in works]


@contextlib.contextmanager
def hooks(config: dict[str, Any] | None = None, plan: str | None = None) -> Iterator[None]:
    """The product's hooks with the main configuration changed by `config`, and a forced plan if one is named."""
    import seqshift

    if plan is not None:
        os.environ[TEST_PLAN] = plan
    try:
        assert seqshift.enable_rollout_rebalance({**CONFIG, **(config or {})})
        yield
    finally:
        seqshift.disable_rollout_rebalance()
        os.environ.pop(TEST_PLAN, None)


@dataclass
class Stepped:
    """A rollout whose engine was stepped by hand."""

    acted: Any
    outputs: list[OutputRecord]
    plain: list[OutputRecord]
    """Of the same requests without hooks."""
    stats: dict[str, Any]
    free_blocks: tuple[int, int]
    """Before and after."""


def stepped(ctx: RankContext, at: int, act: Callable[[Any], Any]) -> Stepped:
    """The main workload without hooks, then with them: `act(engine)` is called between step `at` and the one before."""
    import seqshift

    with hooks():
        llm = make_llm(ctx)
    work = workload.main(ctx.dp_rank)
    (plain,) = run_rollouts(ctx, llm, [work], hooked=False)
    llm.reset_prefix_cache()
    engine = llm.llm_engine
    free = engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks
    before = free()
    prompts, params = work.as_vllm()
    done, steps, acted = [], 0, None
    with hooks():
        for index, (prompt, one) in enumerate(zip(prompts, params)):
            engine.add_request(str(index), prompt, one)
        while engine.has_unfinished_requests():
            if steps == at:
                acted = act(engine)
            done += [o for o in engine.step() if o.finished]
            steps += 1
        stats = seqshift.stats()
    done.sort(key=lambda o: int(o.request_id))
    return Stepped(acted, record(done), plain.outputs, stats, (before, free()))


def run_cases(
    ctx: RankContext, cases: list[Case], engine: dict[str, Any] | None = None, plain_llm: bool = False
) -> list[Pair]:
    """A scenario: every case unhooked, then every case hooked, on one engine made with the options `engine`.

    An option that is a list has one value per DP rank. Cases with the same workload share the unhooked run.
    """
    options = {k: v[ctx.dp_rank] if isinstance(v, list) else v for k, v in (engine or {}).items()}
    with hooks():
        # The gears are set, and the ranks agree, when the engine is made.
        llm = make_plain_llm(ctx) if plain_llm else make_llm(ctx, **options)
    return run_pairs(ctx, llm, cases)


def run_pairs(ctx: RankContext, llm: Any, cases: list[Case]) -> list[Pair]:
    """The same on an engine that exists."""
    works = [getattr(workload, case.work)(ctx.dp_rank, **case.options) for case in cases]
    plain: dict[str, Rollout] = {}
    for case, work in zip(cases, works):
        key = f"{case.work} {case.options}"
        if key not in plain:
            (plain[key],) = run_rollouts(ctx, llm, [work], hooked=False)
    pairs = []
    for case, work in zip(cases, works):
        free = case.free_blocks.get(ctx.dp_rank)
        (hooked,) = run_rollouts(ctx, llm, [work], hooked=True, config=case.config, plan=case.plan, free_blocks=free)
        pairs.append(Pair(case, plain[f"{case.work} {case.options}"], hooked))
    return pairs


def _stats() -> dict[str, Any]:
    import seqshift

    return seqshift.stats()


def _difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    result = {}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict):
            result[name] = _difference(old or {}, value)
        elif name == "gear" or isinstance(value, bool) or not isinstance(value, (int, float)):
            result[name] = value
        else:
            result[name] = value - (old or 0)
    return result
