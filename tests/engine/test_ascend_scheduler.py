"""The same under vllm_ascend 0.9.1's own scheduler, which models like Qwen get on an NPU."""

from __future__ import annotations

from bed.rollout import Case, run_cases
from bed.verify import total, verify

OFTEN = {"check_interval": 5}


def test_moves_under_the_ascend_scheduler(bed):
    cases = [Case("main"), Case("busy", {}, OFTEN, "shuffle"), Case("several", {}, OFTEN, "pingpong")]
    ranks = bed.run(run_cases, cases, engine={"ascend_scheduler": True}, deadline=180)
    verify(ranks)
    assert total(ranks, "sequences_moved", 0) >= 8
    assert total(ranks, "sequences_moved", 1) >= 50
    assert total(ranks, "sequences_moved", 2) >= 50
