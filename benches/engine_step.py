"""What the hooks cost a step when there is nothing to move, at DP=2 on the real engine.

Per step: the time in the hooked `has_unfinished_requests_dp`, `step` and `process_outputs`, less the time in the
originals (and so less the collectives) that they wrap. The same two layers of timers around the unhooked methods give
what the timers themselves cost in the same place, which is taken off. Checks are left out: the interval is longer than
the run.

Prints one JSON document; exits with 1 if a bound does not hold.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import statistics
import sys
import time
import tracemalloc

from seqshift.cpu_bed.ranks import Bed, RankContext

STEPS = 1500
WARM_UP = 100
STEP_BOUND_MICROSECONDS = 20.0
# Interned integers and the like; growth per step would be thousands of times this.
GROWTH_BOUND_BYTES = 4096


class Timers:
    """Adds up the nanoseconds of calls of methods, until removed."""

    def __init__(self, methods) -> None:
        self.total = 0
        self._found = [(owner, name, vars(owner)[name]) for owner, name in methods]
        for owner, name, inner in self._found:
            setattr(owner, name, self._timed(inner))

    def _timed(self, inner):
        @functools.wraps(inner)
        def call(*args, **kwargs):
            start = time.perf_counter_ns()
            try:
                return inner(*args, **kwargs)
            finally:
                self.total += time.perf_counter_ns() - start

        return call

    def remove(self) -> None:
        for owner, name, inner in self._found:
            setattr(owner, name, inner)


class PerStep:
    """Between two layers of timers per step: microseconds that the outer one took and the inner one did not."""

    def __init__(self, engine_class, inner, outer) -> None:
        self.costs = []
        self.sizes = []
        self._timers = inner + outer
        self._engine_class, self._step = engine_class, engine_class.step
        step = self._step

        def per_step(engine):
            outputs = step(engine)
            self.costs.append((sum(t.total for t in outer) - sum(t.total for t in inner)) / 1000)
            for timers in self._timers:
                timers.total = 0
            if tracemalloc.is_tracing() and len(self.costs) in (WARM_UP, STEPS - 10):
                self.sizes.append(own_memory())
            return outputs

        engine_class.step = per_step

    def remove(self) -> None:
        self._engine_class.step = self._step


def rank(ctx: RankContext) -> dict:
    """Rollouts of `STEPS` steps, unhooked and hooked; microseconds per step and bytes of growth."""
    import seqshift
    from seqshift.cpu_bed.engine import make_llm
    from vllm import SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.engine.output_processor import OutputProcessor

    llm = make_llm(ctx, max_model_len=STEPS + 64)
    engine_methods = [(LLMEngine, "has_unfinished_requests_dp"), (LLMEngine, "step")]
    # It runs within step, whose original therefore holds its hook: it is taken apart.
    within = [(OutputProcessor, "process_outputs")]

    def rollout() -> PerStep:
        outer = [Timers(engine_methods), Timers(within)]
        costs = PerStep(LLMEngine, inner, outer)
        llm.generate(
            {"prompt_token_ids": [5 + ctx.dp_rank, 6, 7]},
            SamplingParams(max_tokens=STEPS, ignore_eos=True, temperature=0.0, detokenize=False),
            use_tqdm=False,
        )
        costs.remove()
        for timers in reversed(outer):
            timers.remove()
        return costs

    inner = [Timers(engine_methods), Timers(within)]
    unhooked = rollout()
    assert seqshift.enable_rollout_rebalance(
        {"backend": "mock", "check_interval": 10 * STEPS, "graph_batch_sizes": [16, 8, 4, 2, 1], "profile": False}
    )
    hooked = rollout()
    # Tracing slows allocations, so this rollout is not timed.
    tracemalloc.start()
    traced = rollout()
    assert seqshift.stats()["steps"] == 2 * STEPS
    assert seqshift.stats()["checks"] == 0
    return {
        "timers": unhooked.costs[WARM_UP:],
        "hooked": hooked.costs[WARM_UP:],
        "growth_bytes": traced.sizes[1] - traced.sizes[0],
    }


def own_memory() -> int:
    """Bytes that this package's Python code holds."""
    own = tracemalloc.Filter(True, "*/seqshift/*")
    traces = tracemalloc.take_snapshot().filter_traces([own])
    return sum(statistic.size for statistic in traces.statistics("filename"))


def main() -> int:
    bed = Bed().start()
    try:
        # Under its module name: ranks import the function.
        ranks = bed.run(importlib.import_module("engine_step").rank, deadline=300)
    finally:
        bed.stop()
    hooked = [cost for one in ranks for cost in one["hooked"]]
    timers = statistics.median(cost for one in ranks for cost in one["timers"])
    median = statistics.median(hooked) - timers
    quartiles = [quartile - timers for quartile in statistics.quantiles(hooked, n=4)]
    growth = max(one["growth_bytes"] for one in ranks)
    held = {
        "own code per step": median <= STEP_BOUND_MICROSECONDS,
        "no growth with steps": growth <= GROWTH_BOUND_BYTES,
    }
    document = {
        "steps": STEPS,
        "own_microseconds_per_step": {"median": median, "quartiles": [quartiles[0], quartiles[2]]},
        "timers_microseconds_per_step": timers,
        "growth_bytes": growth,
        "load": os.getloadavg()[0],
        "cpus": os.cpu_count(),
        "held": held,
    }
    print(json.dumps(document, indent=2))
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
