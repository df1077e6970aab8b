"""DP of 1, 3 and 4, and TP=2 x DP=2, where every shard moves its part of the KV over its own DP group."""

from __future__ import annotations

from bed.rollout import Case, run_cases
from bed.verify import total, verify

OFTEN = {"check_interval": 5}


def test_dp_of_one_does_nothing(bed):
    (rank,) = bed.run(run_cases, [Case("busy")], dp=1)
    (pair,) = rank
    assert pair.plain.outputs == pair.hooked.outputs
    assert pair.hooked.stats["checks"] == pair.hooked.stats["sequences_moved"] == 0


def test_dp_of_three(bed):
    cases = [Case("main"), Case("busy", {"requests": 6}, OFTEN, "shuffle")]
    ranks = bed.run(run_cases, cases, dp=3, deadline=240)
    verify(ranks)
    assert total(ranks, "sequences_moved", 0) >= 8
    assert total(ranks, "sequences_moved", 1) >= 50
    assert all(rank[0].hooked.stats["sequences_received"] for rank in ranks[1:])


def test_dp_of_four(bed):
    ranks = bed.run(run_cases, [Case("busy", {"requests": 4, "first": 40}, OFTEN, "shuffle")], dp=4, deadline=240)
    verify(ranks)
    assert total(ranks, "sequences_moved") >= 50


def test_two_shards_by_two_ranks(bed):
    cases = [Case("main"), Case("seeded", {}, OFTEN, "shuffle"), Case("busy", {}, OFTEN, "pingpong")]
    ranks = bed.run(run_cases, cases, dp=2, tp=2, deadline=300)
    verify(ranks, tp=2)
    for shard in (0, 1):
        assert total(ranks[shard::2], "sequences_moved", 0) >= 8
        assert total(ranks[shard::2], "sequences_moved", 1) >= 50
        assert total(ranks[shard::2], "sequences_moved", 2) >= 50
    for name in ("sequences_moved", "kv_bytes_moved", "checks"):
        for first, second in zip(ranks[::2], ranks[1::2]):
            assert [p.hooked.stats[name] for p in first] == [p.hooked.stats[name] for p in second]
