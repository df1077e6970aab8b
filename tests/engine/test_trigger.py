"""The adaptive trigger checks when it pays, alike on all ranks, and the results are those of an unhooked rollout."""

from __future__ import annotations

from bed import rollout, workload
from seqshift.cpu_bed.compare import assert_equal
from seqshift.cpu_bed.engine import make_llm

# Only the trigger can find the moment: the interval is longer than the rollout.
ADAPTIVE = {"trigger": "adaptive", "check_interval": 1000}


def twice(ctx):
    """An unhooked rollout, then two adaptive ones: the second starts with what the first has measured."""
    llm = make_llm(ctx)
    work = workload.main(ctx.dp_rank)
    plain = rollout.run_rollouts(ctx, llm, [work], hooked=False)
    return plain + rollout.run_rollouts(ctx, llm, [work, work], hooked=True, config=ADAPTIVE)


def test_adaptive_rollouts_move_early_and_change_nothing(bed):
    ranks = bed.run(twice, deadline=150)
    for rank, (plain, *adaptive) in enumerate(ranks):
        for run in adaptive:
            assert_equal(plain.outputs, run.outputs, f"rank {rank}")
    for runs in zip(*(runs[1:] for runs in ranks)):
        assert {run.stats["steps"] for run in runs} == {300}
        checks = {run.stats["checks"] for run in runs}
        assert len(checks) == 1
        # Not in every step: a check costs a collective.
        assert 1 <= checks.pop() <= 15
        assert sum(run.stats["sequences_moved"] for run in runs) >= 8
