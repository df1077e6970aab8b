"""A copy in the background, forced for KV that is small: decoding goes on while full blocks travel, the stop sends the
rest, and outputs, lockstep, tables and free blocks are as unhooked. What ends meanwhile does not move.
"""

from __future__ import annotations

import pytest
from bed import rollout
from bed.rollout import Case, run_cases
from bed.verify import total, verify
from seqshift.cpu_bed.model import DEFAULT

ALWAYS = {"SEQSHIFT_TEST_PRECOPY": "always"}
OFTEN = {"check_interval": 5}
BLOCK_BYTES = 128 * DEFAULT.kv_bytes_per_token(4)
CASES = [
    Case("main"),
    Case("main", {}, {"trigger": "adaptive"}),
    Case("busy", {}, OFTEN, "shuffle"),
    Case("mixed", {}, OFTEN, "shuffle"),
    Case("shared", {}, OFTEN, "pingpong"),
]


@pytest.fixture(scope="module")
def ranks(bed):
    return bed.run(run_cases, CASES, env=ALWAYS, deadline=300)


@pytest.mark.parametrize("case", range(len(CASES)), ids=[str(c) for c in CASES])
def test_nothing_changes(ranks, case):
    verify([[rank[case]] for rank in ranks])
    assert total(ranks, "sequences_moved", case) >= (8 if case < 2 else 30)
    assert total(ranks, "precopied_bytes", case) > 0
    assert total(ranks, "moves_rolled_back", case) == 0, total(ranks, "failures", case)


def test_the_stop_sends_only_what_was_not_copied(ranks):
    hooked = ranks[0][0].hooked
    precopied, moved = hooked.stats["precopied_bytes"], hooked.stats["kv_bytes_moved"]
    # Half of the main workload's moved sequences have one full block at the check, or more.
    assert precopied >= 4 * BLOCK_BYTES
    assert precopied % BLOCK_BYTES == 0
    assert moved > precopied
    assert ranks[1][0].hooked.stats["precopied_bytes"] == 0


def test_the_drained_rank_takes_part_in_every_check(ranks):
    for case in range(len(CASES)):
        assert len({rank[case].hooked.stats["checks"] for rank in ranks}) == 1
        assert len({rank[case].hooked.stats["precopy_rounds"] for rank in ranks}) == 1


def test_dp_of_three(bed):
    cases = [CASES[0], Case("busy", {"requests": 6}, OFTEN, "shuffle")]
    ranks = bed.run(run_cases, cases, dp=3, env=ALWAYS, deadline=240)
    verify(ranks)
    for case in (0, 1):
        assert total(ranks, "sequences_moved", case) >= 8
        assert total(ranks, "precopied_bytes", case) > 0


def test_two_shards_by_two_ranks(bed):
    ranks = bed.run(run_cases, [CASES[0], CASES[2]], dp=2, tp=2, env=ALWAYS, deadline=300)
    verify(ranks, tp=2)
    for shard in (0, 1):
        assert total(ranks[shard::2], "sequences_moved", 0) >= 8
        assert total(ranks[shard::2], "sequences_moved", 1) >= 30
        assert total(ranks[shard::2], "precopied_bytes", 1) > 0


def test_without_prefix_caching(bed):
    ranks = bed.run(run_cases, [CASES[2]], {"prefix_caching": False}, env=ALWAYS, deadline=180)
    verify(ranks)
    assert total(ranks, "precopied_bytes") > 0


def test_switched_off_or_not_worth_it_it_is_not_used(bed):
    off = bed.run(run_cases, [Case("main", {}, {"precopy": False})], env=ALWAYS)
    small = bed.run(run_cases, [Case("main")])
    for ranks in (off, small):
        verify(ranks)
        assert total(ranks, "sequences_moved") >= 8
        assert total(ranks, "precopied_bytes") == total(ranks, "precopy_rounds") == 0


# The check has been made at the start of the step before.
MIDWAY = rollout.CONFIG["check_interval"] + 1


def aborting(ctx):
    """Rank 0 aborts two of the sequences that are being copied, between the two checks of the copy."""

    def abort(engine):
        if ctx.dp_rank != 0:
            return []
        # Of sixteen that run, eight are being copied; the planner takes those with the fewest blocks.
        running = sorted(engine.engine_core.engine_core.scheduler.running, key=lambda r: r.num_tokens)
        aborted = [r.request_id for r in running[:2]]
        engine.abort_request(aborted)
        return aborted

    run = rollout.stepped(ctx, MIDWAY, abort)
    return run.acted, run.outputs, run.plain, run.stats, run.free_blocks


def disabling(ctx):
    """Every rank takes the hooks out between the two checks of a copy, and goes on without them."""
    import seqshift

    run = rollout.stepped(ctx, MIDWAY, lambda _: seqshift.disable_rollout_rebalance())
    return run.outputs == run.plain, run.stats["precopy_aborted"], run.free_blocks


def test_hooks_taken_out_during_the_copy(bed):
    ranks = bed.run(disabling, env=ALWAYS, deadline=120)
    for same, _, (before, after) in ranks:
        assert same
        assert before == after
    # Rank 1 may have left first, and so have ended the copy.
    (_, aborted, _), (_, nothing, _) = ranks
    assert (aborted["the engine has left its group"], nothing) == (8, {})


def test_an_abort_during_the_copy(bed):
    ranks = bed.run(aborting, env=ALWAYS, deadline=120)
    aborted, done, plain, stats, (before, after) = ranks[0]
    assert len(aborted) == 2
    assert done == [o for o in plain if o.request_id not in aborted]
    assert ranks[1][1] == ranks[1][2]
    assert stats["precopied_bytes"] > 0
    assert stats["sequences_moved"] >= 6
    assert sum(stats["precopy_aborted"].values()) >= 1, stats
    assert before == after
    assert ranks[1][4][0] == ranks[1][4][1]
