"""Rollouts in a rank: the same workload without and with the product's hooks, on one engine."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

from seqshift.cpu_bed.compare import OutputRecord, record
from seqshift.cpu_bed.engine import repaired_rows
from seqshift.cpu_bed.ranks import RankContext

from bed.observe import Observer, Trace, state
from bed.workload import Workload

# The main workload's configuration: moves exactly 8 sequences at the first check.
CONFIG = {"check_interval": 20, "graph_batch_sizes": [16, 8, 4, 2, 1], "backend": "mock", "profile": False}


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


def run_rollout(
    ctx: RankContext, llm: Any, work: Workload, *, hooked: bool, repair: bool = True, fresh: bool = True
) -> Rollout:
    """Runs one workload. The hooks must be in when `hooked`, and out otherwise.

    `repair` mends vLLM's stale rows in an unhooked run; a hooked one relies on the product for that. `fresh` clears
    the prefix cache and starts request ids at 0, so that runs can be compared.
    """
    if fresh:
        llm.reset_prefix_cache()
        llm.request_counter.reset()
    prompts, params = work.as_vllm()
    before = state(llm)
    seen = _stats() if hooked else {}
    guard = repaired_rows() if repair and not hooked else contextlib.nullcontext()
    start = time.perf_counter()
    with Observer(llm) as trace, guard:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    stats = _difference(seen, _stats()) if hooked else {}
    return Rollout(record(outputs), trace, before, state(llm), seconds, stats)


def run_rollouts(
    ctx: RankContext,
    llm: Any,
    works: list[Workload],
    *,
    hooked: bool,
    config: dict[str, Any] | None = None,
    **options: Any,
) -> list[Rollout]:
    """Runs workloads one after the other, with the hooks in (enabled before, disabled after) or out."""
    if not hooked:
        return [run_rollout(ctx, llm, work, hooked=False, **options) for work in works]
    import seqshift

    assert seqshift.enable_rollout_rebalance({**CONFIG, **(config or {})})
    try:
        return [run_rollout(ctx, llm, work, hooked=True, **options) for work in works]
    finally:
        seqshift.disable_rollout_rebalance()


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
