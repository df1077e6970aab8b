"""vLLM 0.9.1 lets a request inherit the logit bias or the allowed tokens of another that had its row before; while the
hooks are in, it does not.
"""

from __future__ import annotations

import pytest
from bed import rollout, workload
from seqshift.cpu_bed.compare import differences
from seqshift.cpu_bed.engine import make_llm

ROWS = 4


def inherited(ctx, options):
    """Four rows: the last request has `options`, moves to a freed row, and leaves its own to a request without."""
    llm = make_llm(ctx, max_num_seqs=ROWS)
    outputs = [10, 40, 40, 60, 30, 30, 30, 30]
    work = workload.Workload(
        tuple(workload.prompt(0, i, 20) for i in range(len(outputs))),
        tuple(workload.sampling(n, **(options if i == ROWS - 1 else {})) for i, n in enumerate(outputs)),
    )
    faulty = rollout.run_rollouts(ctx, llm, [work], hooked=False, repair=False)
    mended = rollout.run_rollouts(ctx, llm, [work], hooked=False)
    hooked = rollout.run_rollouts(ctx, llm, [work], hooked=True)
    return [run.outputs for run in faulty + mended + hooked]


@pytest.mark.parametrize("options", [{"logit_bias": {77: 100.0}}, {"allowed_token_ids": [70, 71, 72]}], ids=str)
def test_a_row_is_clean_while_the_hooks_are_in(bed, options):
    ((faulty, mended, hooked),) = bed.run(inherited, options, dp=1)
    if "logit_bias" in options:
        # Else this test would prove nothing.
        assert differences(mended, faulty)
    assert differences(mended, hooked) == []
