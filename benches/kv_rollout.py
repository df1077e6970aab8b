"""Rollouts of two long sequences that go to and fro between two ranks, for the benches of moving KV."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from seqshift.cpu_bed.model import DEEP
from seqshift.cpu_bed.ranks import RankContext

SEQUENCES = 2
STEPS_BETWEEN_CHECKS = 3
MIB = 1 << 20
# 64 layers; 32 KiB of KV per token.
MODEL = replace(DEEP, dtype="bfloat16", positions=16384)


@dataclass(frozen=True)
class Size:
    """MiB of KV of one sequence, once it has decoded its tokens, and tokens per block."""

    mib: int
    block_tokens: int = 128

    @property
    def tokens(self) -> int:
        """Tokens of that many bytes, two bytes per element."""
        return self.mib * MIB // MODEL.kv_bytes_per_token(2)


@dataclass
class Rollout:
    """What is left of one on this rank."""

    llm: Any
    prompts: list[dict]
    stats: dict[str, Any]


def rollout(ctx: RankContext, size: Size, steps: int, prompt_tokens: int, seen: Callable, **settings: Any) -> Rollout:
    """Both sequences begin on rank 0 and are sent to the other rank at every check, for `steps` tokens.

    `seen(before, after)` gets `seqshift.stats()` around every step.
    """
    import seqshift
    from seqshift.cpu_bed.engine import make_llm
    from vllm import SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

    os.environ["SEQSHIFT_TEST_PLAN"] = "shuffle"
    common = {"backend": "mock", "graph_batch_sizes": [16, 8, 4, 2, 1], "profile": False}
    assert seqshift.enable_rollout_rebalance({**common, **settings, "check_interval": STEPS_BETWEEN_CHECKS})
    llm = make_llm(
        ctx,
        model=MODEL,
        max_model_len=max(1024, 2 * size.tokens),
        max_num_seqs=SEQUENCES,
        block_size=size.block_tokens,
        # Twice, since a copy in the background has blocks at both ends.
        kv_mib=2 * SEQUENCES * size.mib + 128,
        prefix_caching=False,
    )
    original = LLMEngine.step

    def step(engine):
        before = seqshift.stats()
        outputs = original(engine)
        seen(before, seqshift.stats())
        return outputs

    LLMEngine.step = step
    prompts = [{"prompt_token_ids": [2 + (7 * i + s) % 1000 for i in range(prompt_tokens)]} for s in range(SEQUENCES)]
    try:
        llm.generate(
            prompts if ctx.dp_rank == 0 else [],
            SamplingParams(max_tokens=steps, ignore_eos=True, temperature=0.0, detokenize=False),
            use_tqdm=False,
        )
    finally:
        LLMEngine.step = original
    stats = seqshift.stats()
    seqshift.disable_rollout_rebalance()
    return Rollout(llm, prompts, stats)
