"""A caller that steps its engine by hand may do what vLLM lets it do: ask for unfinished requests more than once, end,
reuse or leave requests between the group's last word and the step that delivers the last results, call `generate`
while the group's rollout is under way, and abort requests after rebalancing has switched itself off.
"""

from __future__ import annotations

import pytest
from bed import rollout, workload
from bed.observe import reset_prefix_cache, state
from bed.verify import EMPTY
from bed.workload import Workload, prompt, sampling
from seqshift.cpu_bed.compare import record
from seqshift.cpu_bed.engine import make_llm

# Of rank 0's four requests some are away when they end, at the same step as the group.
AWAY_AT_THE_END = [[55] * 4, [12, 30]]


def begin(llm, work):
    """An engine's requests, its prefix cache cleared."""
    reset_prefix_cache(llm)
    for index, (text, params) in enumerate(zip(*work.as_vllm())):
        llm.llm_engine.add_request(str(index), text, params)


def records(done):
    return record(sorted(done, key=lambda output: int(output.request_id)))


def left(llm):
    return {name: value for name, value in state(llm).items() if name in EMPTY and value}


def at_the_end(ctx):
    """Three rollouts; between the group's last word and the next step the caller asks again, disables, reuses an id."""
    import seqshift

    llm = make_llm(ctx)
    engine = llm.llm_engine
    work = workload.given(ctx.dp_rank, AWAY_AT_THE_END)
    other = Workload((prompt(0, 500, 40),), (sampling(33),))
    plain, alone = rollout.run_rollouts(ctx, llm, [work, other], hooked=False)
    acted = []

    def asks_again():
        acted.append(engine.has_unfinished_requests())

    def disables():
        with pytest.raises(RuntimeError, match="sequences or their results are between ranks"):
            seqshift.disable_rollout_rebalance()
        acted.append("refused")

    def reuses():
        acted.append("0" in {output.request_id for _, output in session.adapter.delivery})
        if ctx.dp_rank == 0:
            engine.abort_request(["0"])
            (text,), (params,) = other.as_vllm()
            engine.add_request("0", text, params)

    runs = []
    for act in (asks_again, disables, reuses):
        with rollout.hooks({"check_interval": 10}, "pingpong"):
            begin(llm, work)
            done, waits = [], True
            while engine.has_unfinished_requests():
                session = engine.__dict__["_seqshift_session"]
                if waits and session._delivering:
                    waits = False
                    act()
                done += [output for output in engine.step() if output.finished]
        runs.append((records(done), left(llm)))
    return plain.outputs, alone.outputs[0], acted, runs


def test_between_the_last_word_and_the_step_that_delivers(bed):
    ranks = bed.run(at_the_end, deadline=120)
    for rank, (plain, _, acted, runs) in enumerate(ranks):
        assert acted == [True, "refused", rank == 0]
        assert [done for done, _ in runs[:2]] == [plain, plain], f"rank {rank}"
        assert [tables for _, tables in runs] == [{}] * 3, f"rank {rank}"
    (plain, alone, _, runs), other = ranks
    assert runs[2][0][0].outputs == alone.outputs
    assert runs[2][0][1:] == plain[1:]
    assert other[3][2][0] == other[0]


def generate_midway(ctx):
    """Rank 0 steps by hand, then generates more, while rank 1 is in one `generate`; without and with hooks."""
    llm = make_llm(ctx)
    engine = llm.llm_engine
    work = workload.given(ctx.dp_rank, [[60] * 5, [70] * 3])

    def drive():
        reset_prefix_cache(llm)
        llm.request_counter.reset()
        if ctx.dp_rank == 1:
            return record(llm.generate(*work.as_vllm(), use_tqdm=False))
        for index, (text, params) in enumerate(zip(*work.as_vllm())):
            engine.add_request(str(1000 + index), text, params)
        for _ in range(13):
            assert engine.has_unfinished_requests()
            engine.step()
        return record(llm.generate(*workload.given(0, [[30] * 2]).as_vllm(), use_tqdm=False))

    plain = drive()
    with rollout.hooks({"check_interval": 5, "deadline_seconds": 5}, "shuffle"):
        import seqshift

        hooked, moved = drive(), seqshift.stats()["sequences_moved"]
    return plain, hooked, moved


def test_generate_in_the_middle_of_the_groups_rollout(bed):
    ranks = bed.run(generate_midway, deadline=90)
    assert [len(plain) for plain, _, _ in ranks] == [7, 3]
    assert sum(moved for _, _, moved in ranks) > 0
    for plain, hooked, _ in ranks:
        assert hooked == plain


def aborts_after_the_end_of_checks(ctx):
    """A fault switches rebalancing off while long requests are away; then their origin aborts them."""
    import seqshift

    llm = make_llm(ctx)
    engine = llm.llm_engine
    work = workload.given(ctx.dp_rank, [[400] * 4 + [30] * 2, [40] * 3])

    def drive(hooked):
        begin(llm, work)
        done, steps, away = [], 0, []
        while engine.has_unfinished_requests():
            if hooked and steps == 8 and ctx.dp_rank == 1:
                session = engine.__dict__["_seqshift_session"]
                session.adapter.counts = fails_once(session.adapter, "counts")
            if steps == 20 and ctx.dp_rank == 0:
                here = engine.engine_core.engine_core.scheduler.requests
                away = [name for name in engine.output_processor.request_states if name not in here]
                engine.abort_request(["0", "1", "2", "3"])
            done += [output for output in engine.step() if output.finished]
            steps += 1
        return records(done), steps, away, left(llm)

    plain = drive(False)
    with rollout.hooks({"check_interval": 5, "max_failures": 1}, "shuffle"):
        hooked, stats = drive(True), seqshift.stats()
    return plain, hooked, stats


def fails_once(adapter, name):
    def fail():
        delattr(adapter, name)
        raise RuntimeError("injected")

    return fail


def test_aborts_arrive_after_rebalancing_is_off(bed):
    ranks = bed.run(aborts_after_the_end_of_checks, deadline=120)
    assert set(ranks[0][1][2]) & {"0", "1", "2", "3"}, "nothing to abort was away"
    for (plain, steps, _, _), hooked, stats in ranks:
        assert stats["faults"] == 1
        assert (hooked[0], hooked[3]) == (plain, {})
        # The next check's step, and the one that delivers.
        assert hooked[1] <= steps + 6
