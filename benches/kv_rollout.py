"""Rollouts of two long sequences that go to and fro between two ranks, for the benches of moving KV."""

from __future__ import annotations

import os
import time
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
    """Two sequences of `size` on an engine of two ranks, which decode `steps` tokens from rank 0 on, `times` times."""

    ctx: RankContext
    size: Size
    steps: int
    prompt_tokens: int
    times: int = 1

    def hooked(self, seen: Callable[[float, dict, dict], None], **settings: Any) -> dict[str, Any]:
        """Makes the engine and sends both sequences to the other rank at every check; the final `seqshift.stats()`.

        `seen(seconds, before, after)` gets the time of every check, from the moment in which both ranks have come to
        it to its end, and the stats around it.
        """
        import seqshift
        import torch
        from seqshift.session import Session

        os.environ["SEQSHIFT_TEST_PLAN"] = "shuffle"
        common = {"backend": "mock", "graph_batch_sizes": [16, 8, 4, 2, 1], "profile": False}
        assert seqshift.enable_rollout_rebalance({**common, **settings, "check_interval": STEPS_BETWEEN_CHECKS})
        self.llm = make(self.ctx, self.size)

        check = Session._check

        def timed(session):
            before = seqshift.stats()
            torch.distributed.barrier()
            start = time.perf_counter()
            check(session)
            seconds = time.perf_counter() - start
            seen(seconds, before, seqshift.stats())

        Session._check = timed
        try:
            self._generate(lambda engine, original: original(engine))
        finally:
            Session._check = check
        stats = seqshift.stats()
        seqshift.disable_rollout_rebalance()
        return stats

    def unhooked(self, at_check: Callable[[], None]) -> None:
        """The same once more without hooks; `at_check()` is called where checks were, on both ranks."""
        steps = 0

        def step(engine, original):
            nonlocal steps
            outputs = original(engine)
            steps = steps % self.steps + 1
            if steps % STEPS_BETWEEN_CHECKS == 0 and steps < self.steps:
                at_check()
            return outputs

        self._generate(step)

    def prompts(self) -> list[dict]:
        """Of both sequences."""
        tokens = range(self.prompt_tokens)
        return [{"prompt_token_ids": [2 + (7 * i + s) % 1000 for i in tokens]} for s in range(SEQUENCES)]

    def _generate(self, step: Callable) -> None:
        from vllm import SamplingParams
        from vllm.v1.engine.llm_engine import LLMEngine

        original = LLMEngine.step
        LLMEngine.step = lambda engine: step(engine, original)
        try:
            for _ in range(self.times):
                self.llm.generate(
                    self.prompts() if self.ctx.dp_rank == 0 else [],
                    SamplingParams(max_tokens=self.steps, ignore_eos=True, temperature=0.0, detokenize=False),
                    use_tqdm=False,
                )
        finally:
            LLMEngine.step = original


def make(ctx: RankContext, size: Size) -> Any:
    """The engine of a rank."""
    from seqshift.cpu_bed.engine import make_llm

    return make_llm(
        ctx,
        model=MODEL,
        max_model_len=max(1024, 2 * size.tokens),
        max_num_seqs=SEQUENCES,
        block_size=size.block_tokens,
        # Twice, since a copy in the background has blocks at both ends.
        kv_mib=2 * SEQUENCES * size.mib + 128,
        prefix_caching=False,
    )
