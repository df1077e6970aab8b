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
    Case("main", {"temperature": 1.0, "seed": 3}, OFTEN),
]


@pytest.fixture(scope="module")
def tight(bed):
    return bed.run(run_cases, TIGHT, {"kv_mib": 20, "max_num_seqs": [16, 6]}, deadline=180)


@pytest.mark.parametrize("case", range(len(TIGHT)), ids=["shuffle", "gears"])
def test_both_ranks_short_of_kv_and_of_unequal_slots(tight, case):
    verify([[rank[case]] for rank in tight], **PREEMPTED)
    assert tight[0][case].plain.trace.repeated_tokens > 0
    assert total(tight, "sequences_moved", case) >= 8


# Eight sequences of two blocks each against a short one: a lower gear wants four of them moved.
TWO_BLOCKS = {"outputs": [[70 + 3 * i for i in range(8)], [4]], "prompts": 150}
# Sequences that arrive with one block and grow to three.
GROWING = {
    "outputs": [[260 + 3 * i for i in range(8)], [12]],
    "prompts": 100,
    "temperature": 1.0,
    "seed": 6,
    "logprobs": 1,
}
SHORT = {
    "planned": Case("given", TWO_BLOCKS, OFTEN, free_blocks={1: 5}),
    "forced": Case("given", TWO_BLOCKS, OFTEN, "shuffle", {1: 5}),
    "growing": Case("given", GROWING, {"check_interval": 20}, free_blocks={1: 10}),
    "growing, forced": Case("given", GROWING, {"check_interval": 20}, "shuffle", {1: 10}),
}


@pytest.fixture(scope="module")
def short(bed):
    ranks = bed.run(run_cases, list(SHORT.values()), deadline=180)
    return {name: [[rank[case]] for rank in ranks] for case, name in enumerate(SHORT)}


@pytest.mark.parametrize("name", SHORT)
def test_nothing_changes_at_a_destination_that_is_short_of_kv(short, name):
    verify(short[name], **PREEMPTED)


def test_a_plan_moves_only_what_fits(short):
    ranks = short["planned"]
    assert total(ranks, "moves_rejected") == 0
    assert total(ranks, "sequences_moved") >= 1
    # Two blocks each, of five.
    assert max(len(batch) for batch in ranks[1][0].hooked.trace.batches[OFTEN["check_interval"] :]) <= 2


def test_what_does_not_fit_is_rejected_and_runs_on(short):
    ranks = short["forced"]
    assert total(ranks, "sequences_moved") >= 2
    assert total(ranks, "moves_rejected") >= 4
    assert any("KV blocks wanted" in reason for reason in total(ranks, "failures"))


@pytest.mark.parametrize("name", ["growing", "growing, forced"])
def test_a_moved_request_is_preempted_and_moved_again(short, name):
    """Where its KV was taken from it, or after it has been computed anew."""
    ranks = short[name]
    assert all(rank[0].plain.trace.repeated_tokens == 0 for rank in ranks)
    assert sum(rank[0].hooked.trace.repeated_tokens for rank in ranks) > 100
    visits = [batch for batch in ranks[1][0].hooked.trace.batches if batch]
    foreign = {i for batch in visits for i in batch if i.startswith("seqshift/0/")}
    assert total(ranks, "sequences_moved") > len(foreign) >= 4


def test_a_preempted_request_is_not_left_waiting_where_others_have_room(short):
    pair = short["growing"][0][0]
    longest = max(GROWING["outputs"][0])
    # Resumed where it was preempted, it would begin when the others have finished.
    assert len(pair.hooked.trace.batches) <= longest + 20
