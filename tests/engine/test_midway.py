"""What a caller does in the middle of a rollout, while sequences are away, neither hangs the group nor loses any."""

from __future__ import annotations

import pytest
from bed import rollout, workload
from seqshift.cpu_bed.compare import record
from seqshift.cpu_bed.engine import make_llm


def interrupted(ctx):
    """Rank 0 aborts all that it runs itself between `has_unfinished_requests` and `step`, and tries to disable."""
    import seqshift

    with rollout.hooks():
        llm = make_llm(ctx)
    work = workload.main(ctx.dp_rank)
    (plain,) = rollout.run_rollouts(ctx, llm, [work], hooked=False)
    llm.reset_prefix_cache()
    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    prompts, params = work.as_vllm()
    done, steps, aborted, refusal = [], 0, [], ""
    with rollout.hooks():
        for index, (prompt, one) in enumerate(zip(prompts, params)):
            engine.add_request(str(index), prompt, one)
        while engine.has_unfinished_requests():
            if steps == 30 and ctx.dp_rank == 0:
                with pytest.raises(RuntimeError) as error:
                    seqshift.disable_rollout_rebalance()
                refusal = str(error.value)
                aborted = list(scheduler.requests)
                engine.abort_request(aborted)
            done += [o for o in engine.step() if o.finished]
            steps += 1
    done.sort(key=lambda o: int(o.request_id))
    return aborted, refusal, record(done), plain.outputs


def test_aborts_before_a_step_and_a_refused_disable(bed):
    ranks = bed.run(interrupted, deadline=120)
    aborted, refusal, done, plain = ranks[0]
    assert len(aborted) == 8
    assert "8 sequences are between ranks" in refusal
    assert done == [o for o in plain if o.request_id not in aborted]
    assert ranks[1][2] == ranks[1][3]
