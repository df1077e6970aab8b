"""Prefix caching on (vLLM's default) or off: outputs, cached-token counts and blocks are as unhooked, and what moved
can be hit by later requests on either rank.
"""

from __future__ import annotations

from bed import rollout, workload
from bed.rollout import Case, run_cases
from bed.verify import total, verify
from seqshift.cpu_bed.compare import assert_equal
from seqshift.cpu_bed.engine import make_llm

OFTEN = {"check_interval": 5}


def test_off(bed):
    cases = [Case("main"), Case("shared", {}, OFTEN, "shuffle")]
    ranks = bed.run(run_cases, cases, engine={"prefix_caching": False}, deadline=180)
    verify(ranks)
    assert total(ranks, "sequences_moved", 0) >= 8
    assert total(ranks, "sequences_moved", 1) >= 50
    assert all(o.num_cached_tokens == 0 for rank in ranks for o in rank[1].hooked.outputs)


def test_a_plain_llm(bed):
    ranks = bed.run(run_cases, [Case("busy", {}, OFTEN, "shuffle")], plain_llm=True, deadline=180)
    verify(ranks)
    assert total(ranks, "sequences_moved") >= 50


def later(ctx):
    """A rollout with and without hooks, and after each, without clearing the cache: it again, and the other rank's."""
    llm = make_llm(ctx)
    first, other = workload.shared(ctx.dp_rank), workload.shared(1 - ctx.dp_rank)
    found = []
    for hooked in (False, True):
        runs = rollout.run_rollouts(ctx, llm, [first], hooked=hooked, config=OFTEN, plan="shuffle")
        again = rollout.run_rollouts(ctx, llm, [first, other], hooked=False, fresh=False)
        found.append([run.outputs for run in runs + again])
        moved = runs[0].stats.get("sequences_moved", 0)
        llm.request_counter.reset()
    return found, moved


def test_later_requests_hit_what_is_cached(bed):
    ranks = bed.run(later, deadline=180)
    assert sum(moved for _, moved in ranks) >= 50
    for rank, ((plain, hooked), _) in enumerate(ranks):
        # Cached blocks stay where they were computed ...
        for one, two, what in zip(plain[:2], hooked[:2], ("the rollout", "the same prompts again")):
            assert_equal(one, two, f"rank {rank}, {what}")
        assert all(o.num_cached_tokens >= 256 for o in hooked[1])
        # ... and are hit where they were moved to.
        assert any(o.num_cached_tokens == 0 for o in plain[2])
        assert all(o.num_cached_tokens >= 256 for o in hooked[2])
        assert_equal(plain[2], hooked[2], f"rank {rank}, the other's prompts", ignore=("num_cached_tokens",))
