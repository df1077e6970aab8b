"""A moved sequence is sampled as if it had stayed: greedy or seeded, alone or as one of n, whatever its parameters.

The generator's state travels, not its seed; each request keeps its own parameters, budgets and penalties.
"""

from __future__ import annotations

import pytest
from bed.rollout import Case, run_cases
from bed.verify import total, verify

OFTEN = {"check_interval": 5}
CASES = [
    Case("main", {"temperature": 1.0, "seed": 4711, "logprobs": 2}),
    Case("seeded", {}, OFTEN, "shuffle"),
    Case("seeded", {"one_seed": True}, OFTEN, "shuffle"),
    Case("several", {}, OFTEN, "shuffle"),
    Case("several", {}, OFTEN, "pingpong"),
    Case("texts", {}, OFTEN, "shuffle"),
]


@pytest.fixture(scope="module")
def ranks(bed):
    return bed.run(run_cases, [*CASES, Case("verl")], deadline=240)


@pytest.mark.parametrize("case", range(len(CASES)), ids=[str(c) for c in CASES])
def test_seeded_outputs_are_equal(ranks, case):
    verify([[rank[case]] for rank in ranks])
    assert total(ranks, "sequences_moved", case) >= 8


def test_verls_setting_keeps_lengths_and_fields(ranks):
    """Unseeded sampling: other tokens, but one logprob per token, no text, and the lengths that were asked for."""
    case = len(CASES)
    assert total(ranks, "sequences_moved", case) >= 8
    unlike = ("token_ids", "logprobs", "cumulative_logprob")
    verify([[rank[case]] for rank in ranks], ignore=unlike)
    for rank in ranks:
        for plain, hooked in zip(rank[case].plain.outputs, rank[case].hooked.outputs):
            (expected,), (actual,) = plain.outputs, hooked.outputs
            assert len(actual.token_ids) == len(expected.token_ids)
            assert actual.text == ""
            assert [len(position) for position in actual.logprobs] == [1] * len(actual.token_ids)
            assert [position[0][0] for position in actual.logprobs] == list(actual.token_ids)
            assert actual.cumulative_logprob == pytest.approx(sum(position[0][1] for position in actual.logprobs))
