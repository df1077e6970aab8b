"""What the hooks cost a step when there is nothing to move, at DP=2 on the real engine.

Per step: the time in the hooked `has_unfinished_requests_dp`, `step` and `process_outputs`, less the time in the
originals (and so less the collectives) that they wrap. Checks are left out: the interval is longer than the run. The
timers themselves are in the figure, which makes it an upper bound.

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


def timed(total: list[int], owner: type, name: str) -> None:
    """Adds the nanoseconds of every call of `owner.name` to `total[0]`."""
    inner = vars(owner)[name]

    @functools.wraps(inner)
    def call(*args, **kwargs):
        start = time.perf_counter_ns()
        try:
            return inner(*args, **kwargs)
        finally:
            total[0] += time.perf_counter_ns() - start

    setattr(owner, name, call)


def rank(ctx: RankContext) -> dict:
    """Runs two rollouts of `STEPS` steps; returns microseconds per step and bytes of growth."""
    import seqshift
    from seqshift.cpu_bed.engine import make_llm
    from vllm import SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.engine.output_processor import OutputProcessor

    llm = make_llm(ctx, max_model_len=STEPS + 64)
    inner, outer, inside, around = [0], [0], [0], [0]
    # process_outputs runs within step: its hook's cost is taken apart, since step's original holds it.
    timed(inside, OutputProcessor, "process_outputs")
    hooked = (LLMEngine, "has_unfinished_requests_dp"), (LLMEngine, "step")
    for owner, name in hooked:
        timed(inner, owner, name)
    assert seqshift.enable_rollout_rebalance(
        {"backend": "mock", "check_interval": 10 * STEPS, "graph_batch_sizes": [16, 8, 4, 2, 1], "profile": False}
    )
    for owner, name in hooked:
        timed(outer, owner, name)
    timed(around, OutputProcessor, "process_outputs")
    costs, sizes = [], []
    step = LLMEngine.step

    def per_step(engine):
        outputs = step(engine)
        costs.append((outer[0] - inner[0] + around[0] - inside[0]) / 1000)
        inner[0] = outer[0] = inside[0] = around[0] = 0
        if tracemalloc.is_tracing() and len(costs) % STEPS in (WARM_UP, STEPS - 10):
            sizes.append(own_memory())
        return outputs

    LLMEngine.step = per_step

    def rollout():
        llm.generate(
            {"prompt_token_ids": [5 + ctx.dp_rank, 6, 7]},
            SamplingParams(max_tokens=STEPS, ignore_eos=True, temperature=0.0, detokenize=False),
            use_tqdm=False,
        )

    rollout()
    # Tracing slows allocations, so the second rollout is not timed.
    tracemalloc.start()
    rollout()
    assert seqshift.stats()["checks"] == 0
    return {"microseconds": costs[WARM_UP:STEPS], "growth_bytes": sizes[1] - sizes[0]}


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
    costs = [cost for one in ranks for cost in one["microseconds"]]
    median = statistics.median(costs)
    quartiles = statistics.quantiles(costs, n=4)
    growth = max(one["growth_bytes"] for one in ranks)
    held = {
        "own code per step": median <= STEP_BOUND_MICROSECONDS,
        "no growth with steps": growth <= GROWTH_BOUND_BYTES,
    }
    document = {
        "steps": STEPS,
        "own_microseconds_per_step": {"median": median, "quartiles": [quartiles[0], quartiles[2]]},
        "growth_bytes": growth,
        "load": os.getloadavg()[0],
        "cpus": os.cpu_count(),
        "held": held,
    }
    print(json.dumps(document, indent=2))
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
