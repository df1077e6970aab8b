"""Too little KV: vLLM preempts requests, of its own or moved ones, and what is moved is never taken for complete when
it is not; a destination takes what it has room for, and the rest runs on at its source.
"""

from __future__ import annotations

import pytest
from bed import rollout, workload
from bed.rollout import Case, run_cases
from bed.verify import PREEMPTED, total, verify
from seqshift.cpu_bed.compare import assert_equal
from seqshift.cpu_bed.engine import make_llm

OFTEN = {"check_interval": 5}


def resumed(ctx, kv_mib):
    """Two requests that outgrow 7 blocks: one is preempted and resumed with cached blocks beyond its prompt."""
    llm = make_llm(ctx, kv_mib=kv_mib)
    work = workload.Workload(
        tuple(workload.prompt(0, i, 20) for i in range(2)), tuple(workload.sampling(500, logprobs=1) for _ in range(2))
    )
    (run,) = rollout.run_rollouts(ctx, llm, [work], hooked=False)
    return run.outputs, run.trace.repeated_tokens


def test_the_bed_resumes_a_request_beyond_its_prompt(bed):
    """Without the bed's repair of vLLM's CPU attention this crashes, without any hook."""
    ((tight, repeated),) = bed.run(resumed, 4, dp=1, deadline=60)
    ((roomy, none),) = bed.run(resumed, 64, dp=1, deadline=60)
    assert repeated > 100
    assert none == 0
    assert_equal(roomy, tight, logprob_tolerance=1e-4)


TIGHT = [
    Case("main", {}, OFTEN, "shuffle"),
    Case("main", {"logprobs": 2}, OFTEN, "pingpong"),
    Case("main", {"temperature": 1.0, "seed": 3}, OFTEN),
]


@pytest.fixture(scope="module")
def tight(bed):
    return bed.run(run_cases, TIGHT, {"kv_mib": 20, "max_num_seqs": [16, 6]}, deadline=180)


@pytest.mark.parametrize("case", range(len(TIGHT)), ids=[str(c) for c in TIGHT])
def test_both_ranks_short_of_kv_and_of_unequal_slots(tight, case):
    verify([[rank[case]] for rank in tight], **PREEMPTED)
    assert tight[0][case].plain.trace.repeated_tokens > 0
    assert total(tight, "sequences_moved", case) >= 8
