"""A sequence moves, once or again, only if that strictly lowers the group's gear or gives a waiting request a place."""

from __future__ import annotations

from collections import Counter

import pytest
from bed.rollout import CONFIG, Case, hooks, run_cases, run_pairs
from bed.verify import total, verify
from seqshift.cpu_bed.engine import make_llm

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


SLOTS = 4
# Many requests wait on one rank, then on none; others wait where nothing runs out.
WAITING = {
    "sixteen against two": Case("given", {"outputs": [[40 + 3 * i for i in range(16)], [10, 12]]}, OFTEN),
    "both have queues": Case("given", {"outputs": [[30, 35, 40, 45, 50] * 2, [40 - 5 * i for i in range(6)]]}, OFTEN),
    "adaptive": Case("given", {"outputs": [[40 + 3 * i for i in range(12)], [10] * 3]}, {"trigger": "adaptive"}),
}
THREE = {"three ranks": Case("given", {"outputs": [[30 + 4 * i for i in range(11)], [15, 50], [8] * 4]}, OFTEN)}


def observed(ctx, cases):
    """Each case, and what ran and waited here before and after each of its checks."""
    from seqshift.session import Session

    with hooks():
        llm = make_llm(ctx, max_num_seqs=SLOTS)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    original, checks = Session._check, []

    def lists():
        return [[identity(ctx.dp_rank, r.request_id) for r in some] for some in (scheduler.running, scheduler.waiting)]

    def check(session):
        before = lists()
        original(session)
        checks.append((before, lists()))

    found = []
    Session._check = check
    try:
        for case in cases:
            checks.clear()
            found.append((*run_pairs(ctx, llm, [case]), list(checks)))
    finally:
        Session._check = original
    return found


@pytest.fixture(scope="module")
def waiting(bed):
    two = bed.run(observed, list(WAITING.values()), deadline=240)
    three = bed.run(observed, list(THREE.values()), dp=3, deadline=180)
    groups = {name: [rank[i] for rank in two] for i, name in enumerate(WAITING)}
    return {**groups, "three ranks": [rank[0] for rank in three]}


def placed(ranks):
    """(rank, 0 if it runs and 1 if it waits) of each sequence of the group."""
    return {one: (rank, kind) for rank, lists in enumerate(ranks) for kind in (0, 1) for one in lists[kind]}


def next_step(places, count):
    """The group's gear in the next step, and how many sequences are in it."""
    sizes = Counter(rank for rank, _ in places.values())
    runs = [min(SLOTS, sizes[rank]) for rank in range(count)]
    return gear(runs), sum(runs)


@pytest.mark.parametrize("name", [*WAITING, *THREE])
def test_every_move_lowers_the_gear_or_gives_a_waiting_request_a_place(waiting, name):
    """Had any one sequence stayed where it was, the gear would be higher, or fewer would run."""
    group = waiting[name]
    pairs = [[pair] for pair, _ in group]
    verify(pairs)
    moves, unblocked = Counter(), 0
    for number, check in enumerate(zip(*(checks for _, checks in group))):
        before, after = (placed([lists[when] for lists in check]) for when in (0, 1))
        assert before.keys() == after.keys()
        reached, running = next_step(after, len(group))
        for one, place in before.items():
            if after[one][0] == place[0]:
                continue
            moves[one] += 1
            stayed_gear, stayed_running = next_step({**after, one: place}, len(group))
            assert stayed_gear > reached or stayed_running < running, f"check {number}: {one}, {moves[one]} times"
            unblocked += stayed_running < running
    assert sum(moves.values()) == total(pairs, "sequences_moved")
    assert unblocked >= 1


def test_sequences_move_again_where_that_helps(waiting):
    """Else the test above would say nothing about it."""
    again = 0
    for group in waiting.values():
        moves = Counter()
        for check in zip(*(checks for _, checks in group)):
            before, after = (placed([lists[when] for lists in check]) for when in (0, 1))
            moves.update(one for one in before if before[one][0] != after[one][0])
        again += sum(count > 1 for count in moves.values())
    assert again >= 1
