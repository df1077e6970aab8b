"""The pause of a migration whose KV is copied in the background, at 256 MiB and at 1 MiB of KV per sequence, DP=2.

As `engine_kv.py`, but with `precopy`, forced for the small one. A migration's pause is the sum over its checks: the one
that begins the copy, those that look at it, and the one that moves the sequences.

Prints one JSON document; exits with 1 if the bound does not hold.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys

from engine_kv import MODEL, SEQUENCES, STEPS_BETWEEN_CHECKS, Size
from seqshift.cpu_bed.ranks import Bed, RankContext

MIGRATIONS = 5
# Pause at the large size over pause at the small one.
BOUND = 2.0
SMALL, LARGE = Size(1, block_tokens=32), Size(256)
# Steps that a migration may take, those between checks included.
STEPS_EACH = 40


def rank(ctx: RankContext, size: Size) -> dict:
    """Seconds of each migration's pause on this rank."""
    import seqshift
    from seqshift.cpu_bed.engine import make_llm
    from vllm import SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

    os.environ.update(SEQSHIFT_TEST_PLAN="shuffle", SEQSHIFT_TEST_PRECOPY="always")
    settings = {"backend": "mock", "graph_batch_sizes": [16, 8, 4, 2, 1], "profile": False}
    assert seqshift.enable_rollout_rebalance({**settings, "check_interval": STEPS_BETWEEN_CHECKS})
    llm = make_llm(
        ctx,
        model=MODEL,
        max_model_len=max(1024, 2 * size.tokens),
        max_num_seqs=SEQUENCES,
        block_size=size.block_tokens,
        kv_mib=2 * SEQUENCES * size.mib + 128,
        prefix_caching=False,
    )
    pauses, checks, original = [], [], LLMEngine.step
    before = seqshift.stats()

    def step(engine):
        nonlocal before
        outputs = original(engine)
        after = seqshift.stats()
        if after["checks"] > before["checks"]:
            checks.append(after["pause_seconds"] - before["pause_seconds"])
        if after["plans"] > before["plans"]:
            pauses.append(list(checks))
            checks.clear()
        before = after
        return outputs

    LLMEngine.step = step
    steps = (MIGRATIONS + 1) * STEPS_EACH if size == LARGE else (MIGRATIONS + 1) * 12
    prompt_tokens = max(size.tokens - steps - 1, size.block_tokens - 3)
    prompts = [{"prompt_token_ids": [2 + (7 * i + s) % 1000 for i in range(prompt_tokens)]} for s in range(SEQUENCES)]
    llm.generate(
        prompts if ctx.dp_rank == 0 else [],
        SamplingParams(max_tokens=steps, ignore_eos=True, temperature=0.0, detokenize=False),
        use_tqdm=False,
    )
    LLMEngine.step = original
    moved = seqshift.stats()
    seqshift.disable_rollout_rebalance()
    return {"pauses": pauses[1:], "moved": moved}


def main() -> int:
    result = {}
    bed = Bed().start()
    try:
        for name, size in (("small", SMALL), ("large", LARGE)):
            ranks = bed.run(rank, size, deadline=400)
            worst = [max(sum(p) for p in pair) for pair in zip(*(r["pauses"] for r in ranks))]
            result[name] = {
                "mib": size.mib,
                "pause_ms": [round(1000 * p, 2) for p in worst],
                "checks_ms": [[round(1000 * c, 2) for c in p] for p in ranks[0]["pauses"]],
                "median_ms": round(1000 * statistics.median(worst), 2),
                "stats": ranks[0]["moved"],
            }
    finally:
        bed.stop()
    ratio = result["large"]["median_ms"] / result["small"]["median_ms"]
    result["ratio"], result["bound"] = round(ratio, 2), BOUND
    print(json.dumps(result, indent=1))
    return int(ratio > BOUND)


if __name__ == "__main__":
    # Under its module name: ranks import what is in it.
    sys.exit(importlib.import_module("engine_precopy").main())
