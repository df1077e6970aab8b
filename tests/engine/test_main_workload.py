"""A hooked rollout moves sequences and returns, field by field, what an unhooked one of the same process returns."""

from __future__ import annotations

import os

from bed import rollout, workload
from bed.observe import lockstep_faults
from seqshift.cpu_bed.compare import assert_equal
from seqshift.cpu_bed.engine import make_llm


def unhooked_then_hooked(ctx, names, plan=None):
    """[(unhooked, hooked) per workload]"""
    llm = make_llm(ctx)
    works = [getattr(workload, name)(ctx.dp_rank) for name in names]
    plain = rollout.run_rollouts(ctx, llm, works, hooked=False)
    if plan:
        os.environ["SEQSHIFT_TEST_PLAN"] = plan
    return list(zip(plain, rollout.run_rollouts(ctx, llm, works, hooked=True)))


def check(names, ranks):
    for rank, pairs in enumerate(ranks):
        for name, (plain, hooked) in zip(names, pairs):
            assert_equal(plain.outputs, hooked.outputs, f"rank {rank}, {name}")
    for index, _ in enumerate(names):
        assert lockstep_faults([pairs[index][1].trace for pairs in ranks]) == []


def test_the_main_workload_moves_eight(bed):
    ranks = bed.run(unhooked_then_hooked, ["main"], deadline=120)
    print([pairs[0][1].stats for pairs in ranks])
    check(["main"], ranks)
    assert sum(pairs[0][1].stats["sequences_moved"] for pairs in ranks) >= 8


def test_shuffle(bed):
    names = ["busy", "main"]
    ranks = bed.run(unhooked_then_hooked, names, "shuffle", deadline=120)
    print([[p[1].stats for p in pairs] for pairs in ranks])
    check(names, ranks)
