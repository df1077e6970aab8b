"""vLLM 0.9.1 lets a request inherit the logit bias or the allowed tokens of another that had its row before, and one
take another's when their rows are swapped; while the hooks are in, it does not.
"""

from __future__ import annotations

import pytest
from bed import rollout, workload
from seqshift.cpu_bed.compare import differences
from seqshift.cpu_bed.engine import make_llm

ROWS = 4


def inherited(ctx, options, of_its_own):
    """The last of four requests has `options`, moves to a freed row and leaves its own; then four others come, of which
    the first has `of_its_own`.
    """
    llm = make_llm(ctx, max_num_seqs=ROWS)

    def work(first, outputs, index, special):
        return workload.Workload(
            tuple(workload.prompt(0, first + i, 20) for i in range(ROWS)),
            tuple(workload.sampling(n, **(special if i == index else {})) for i, n in enumerate(outputs)),
        )

    works = [work(0, [10, 40, 40, 60], ROWS - 1, options), work(10, [30] * ROWS, 0, of_its_own)]
    faulty = rollout.run_rollouts(ctx, llm, works, hooked=False, repair=False)
    mended = rollout.run_rollouts(ctx, llm, works, hooked=False)
    hooked = rollout.run_rollouts(ctx, llm, works, hooked=True)
    return [runs[1].outputs for runs in (faulty, mended, hooked)]


@pytest.mark.parametrize(
    ("options", "of_its_own"),
    [
        ({"logit_bias": {77: 100.0}}, {}),
        # The mask is applied only when some request has one.
        ({"allowed_token_ids": [70, 71, 72]}, {"allowed_token_ids": [80, 81, 82]}),
    ],
    ids=["logit_bias", "allowed_token_ids"],
)
def test_a_row_is_clean_while_the_hooks_are_in(bed, options, of_its_own):
    ((faulty, mended, hooked),) = bed.run(inherited, options, of_its_own, dp=1)
    # Else this test would prove nothing.
    assert differences(mended, faulty)
    assert differences(mended, hooked) == []


ALLOWED = [70, 71, 72]


def swapped(ctx):
    """A fourth request comes in while the first decodes in row 0; its prompt takes that row."""
    llm = make_llm(ctx, max_num_seqs=3)
    work = workload.Workload(
        tuple(workload.prompt(0, i, 20) for i in range(4)),
        tuple(
            workload.sampling(n, **({} if i else {"allowed_token_ids": ALLOWED})) for i, n in enumerate([40, 5, 40, 9])
        ),
    )
    runs = [rollout.run_rollouts(ctx, llm, [work], hooked=False, repair=repair)[0] for repair in (False, True)]
    runs += rollout.run_rollouts(ctx, llm, [work], hooked=True)
    return [run.outputs for run in runs]


def test_rows_are_swapped_with_their_allowed_tokens(bed):
    ((faulty, mended, hooked),) = bed.run(swapped, dp=1)
    assert set(faulty[3].outputs[0].token_ids) <= set(ALLOWED), "vLLM no longer has this fault"
    assert set(mended[3].outputs[0].token_ids) - set(ALLOWED)
    assert set(mended[0].outputs[0].token_ids) <= set(ALLOWED)
    assert differences(mended, hooked) == []
