"""What a caller does in the middle of a rollout, while sequences are away, neither hangs the group nor loses any."""

from __future__ import annotations

import pytest
from bed import rollout


def interrupted(ctx):
    """Rank 0 aborts all that it runs itself between `has_unfinished_requests` and `step`, and tries to disable."""
    import seqshift

    def abort(engine):
        if ctx.dp_rank != 0:
            return [], ""
        with pytest.raises(RuntimeError) as error:
            seqshift.disable_rollout_rebalance()
        aborted = list(engine.engine_core.engine_core.scheduler.requests)
        engine.abort_request(aborted)
        return aborted, str(error.value)

    run = rollout.stepped(ctx, 30, abort)
    return *run.acted, run.outputs, run.plain


def test_aborts_before_a_step_and_a_refused_disable(bed):
    ranks = bed.run(interrupted, deadline=120)
    aborted, refusal, done, plain = ranks[0]
    assert len(aborted) == 8
    assert "8 sequences or their results are between ranks" in refusal
    assert done == [o for o in plain if o.request_id not in aborted]
    assert ranks[1][2] == ranks[1][3]
