"""A sequence moves only if that strictly lowers the group's gear or gives a waiting request a place."""

from __future__ import annotations

from collections import Counter

import pytest
from bed.rollout import CONFIG, Case, run_cases
from bed.verify import total, verify

OFTEN = {"check_interval": 1}
GEARS = sorted(CONFIG["graph_batch_sizes"])
CASES = {
    "main": Case("main", {}, OFTEN),
    "seeded": Case(
        "given", {"outputs": [[60 + 7 * i for i in range(12)], [40] * 6], "seed": 1, "temperature": 1.0}, OFTEN
    ),
    "adaptive": Case("main", {}, {"trigger": "adaptive", "check_interval": 1000}),
    "three ranks": Case("given", {"outputs": [[30] * 2 + [90] * 4, [20] * 4 + [60] * 2, [10] * 5]}, OFTEN),
}


@pytest.fixture(scope="module")
def ranks(bed):
    two = bed.run(run_cases, [CASES[name] for name in ("main", "seeded", "adaptive")], deadline=180)
    three = bed.run(run_cases, [CASES["three ranks"]], dp=3, deadline=180)
    groups = {name: [[rank[i]] for rank in two] for i, name in enumerate(("main", "seeded", "adaptive"))}
    return {**groups, "three ranks": three}


def gear(counts):
    return next((g for g in GEARS if g >= max(counts)), max(counts))


def identity(rank, request_id):
    """(origin, id there), wherever it runs."""
    if request_id.startswith("seqshift/"):
        _, origin, _, request_id = request_id.split("/", 3)
        rank = int(origin)
    return rank, request_id


@pytest.mark.parametrize("name", CASES)
def test_every_move_lowers_the_gear(ranks, name):
    group = ranks[name]
    verify(group)
    moves = 0
    places = None
    for batches in zip(*(rank[0].hooked.trace.batches for rank in group)):
        now = {identity(rank, i): rank for rank, batch in enumerate(batches) for i in batch}
        before, places = places or now, now
        moved = [one for one, rank in now.items() if before[one] != rank]
        if moved:
            moves += len(moved)
            # Those that are still there, where they were.
            unmoved = Counter(before[one] for one in now)
            assert gear(Counter(now.values()).values()) < gear(unmoved.values())
    assert moves == total(group, "sequences_moved") >= 1
