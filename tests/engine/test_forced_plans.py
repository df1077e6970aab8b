"""Forced plans: sequences hop between ranks, come home, drain their rank and return, and nothing changes.

Plans that lower gears move few requests and seldom twice; rows and ids left behind show only here.
"""

from __future__ import annotations

import pytest
from bed.rollout import Case, run_cases
from bed.verify import total, verify

OFTEN = {"check_interval": 5}
CASES = [
    Case(work, options, OFTEN, plan)
    for plan in ("shuffle", "pingpong")
    for work, options in (("busy", {}), ("main", {}), ("mixed", {}), ("shared", {}))
]


@pytest.fixture(scope="module")
def ranks(bed):
    return bed.run(run_cases, CASES, deadline=300)


@pytest.mark.parametrize("case", range(len(CASES)), ids=[str(c) for c in CASES])
def test_nothing_changes(ranks, case):
    verify([[rank[case]] for rank in ranks])
    assert total(ranks, "sequences_moved", case) >= 50
    assert total(ranks, "sequences_received", case) == total(ranks, "sequences_moved", case)
    assert total(ranks, "moves_rolled_back", case) == 0


def test_sequences_come_home_and_leave_again(ranks):
    homecomings = 0
    for rank in ranks:
        own = {o.request_id for o in rank[0].plain.outputs}
        present = [own & set(batch) for batch in rank[0].hooked.trace.batches]
        homecomings += sum(len(after - before) for before, after in zip(present[1:], present[2:]))
    assert homecomings >= 10


def test_a_drained_rank_runs_dummy_forwards(ranks):
    pingpong = CASES.index(next(c for c in CASES if c.plan == "pingpong"))
    busy = ranks[0][pingpong].hooked.trace
    drained = [i for i, batch in enumerate(busy.batches) if not batch]
    assert drained
    assert any(busy.batches[i + 1 :] and any(busy.batches[i + 1 :]) for i in drained)
