"""To its caller a request that runs elsewhere looks as if it had stayed: its id, counts, errors, aborts and outputs."""

from __future__ import annotations

import pytest
from bed import rollout, workload
from bed.observe import reset_prefix_cache, state
from bed.rollout import Case, run_cases
from bed.verify import EMPTY, total, verify
from seqshift.cpu_bed.compare import record
from seqshift.cpu_bed.engine import make_llm

INTERVAL = 5
OFTEN = {"check_interval": INTERVAL}
COUNT = 10
DUPLICATE_AT = 23


def ids(rank):
    """No numbers, some with what other software puts into them, and alike on both ranks but for one."""
    names = ["src_rank_0", "src_rank_1_7", "seqshift/0/1/2", "a b", "7", "-1", "é/ü", "x" * 300, "None"]
    return [*names, f"own {rank}"]


def drive(ctx, llm, aborts):
    """Steps an engine through requests with such ids; what a caller sees at every step.

    `aborts[step]` are positions of requests that rank 0 aborts before that step.
    """
    reset_prefix_cache(llm)
    engine = llm.llm_engine
    core = engine.engine_core.engine_core
    names = ids(ctx.dp_rank)
    prompts, params = workload.busy(ctx.dp_rank, requests=COUNT, first=40, step=7).as_vllm()
    for name, prompt, one in zip(names, prompts, params):
        engine.add_request(name, prompt, one)
    unfinished, seen, done, errors, held = [], set(), {}, [], []
    while engine.has_unfinished_requests():
        step = len(unfinished)
        gone = [names[i] for i in aborts.get(step, ())] if ctx.dp_rank == 0 else []
        before = engine.get_num_unfinished_requests()
        alive = {name for name in gone if name in engine.output_processor.request_states}
        engine.abort_request(gone)
        assert engine.get_num_unfinished_requests() == before - len(alive)
        if step == DUPLICATE_AT:
            with pytest.raises(ValueError, match="already running") as error:
                engine.add_request(names[-2], prompts[0], params[0])
            errors.append(str(error.value))
        outputs = engine.step()
        unfinished.append(engine.get_num_unfinished_requests())
        held.append(sorted(core.scheduler.requests))
        seen |= {o.request_id for o in outputs}
        done.update({o.request_id: o for o in outputs if o.finished})
    finished = [done[name] for name in names if name in done]
    return record(finished), unfinished, seen, errors, held, state(llm)


def without(record_of, gone):
    return [o for o in record_of if o.request_id not in gone]


# Every phase between two checks, and one request twice.
ABORTS = {18: [0], 19: [1], 20: [2, 9], 21: [3], 22: [4, 4], 26: [0]}
ABORTED = [0, 1, 2, 9, 3, 4]


def caller(ctx, aborts):
    import seqshift

    with rollout.hooks(OFTEN):
        llm = make_llm(ctx)
    plain = drive(ctx, llm, aborts)
    runs = []
    for plan in ("shuffle", "pingpong", None):
        with rollout.hooks(OFTEN, plan):
            before = seqshift.stats()["sequences_moved"]
            # The same ids again and again.
            runs.append((drive(ctx, llm, aborts), seqshift.stats()["sequences_moved"] - before))
    return plain, runs


@pytest.fixture(scope="module")
def whole(bed):
    return bed.run(caller, {}, deadline=240)


@pytest.fixture(scope="module")
def aborting(bed):
    return bed.run(caller, ABORTS, deadline=240)


def test_outputs_and_ids(whole):
    for rank, (plain, runs) in enumerate(whole):
        for hooked, _ in runs:
            assert hooked[0] == plain[0]
            assert len(hooked[0]) == COUNT
            assert hooked[2] <= set(ids(rank)), "an output of a foreign request"
    assert sum(runs[0][1] for _, runs in whole) >= 50


def test_counts(whole):
    """A request counts until its last token is back: at the next check, or when the group drains."""
    for plain, runs in whole:
        counts = plain[1]
        for hooked, _ in runs:
            for step, count in enumerate(hooked[1]):
                assert count >= (counts[step] if step < len(counts) else 0)
                assert count <= counts[max(0, min(step, len(counts)) - INTERVAL - 1)]
            assert hooked[1][-1] == 0


def test_an_id_in_use_is_refused_wherever_its_request_runs(whole):
    for plain, runs in whole:
        assert len(plain[3]) == 1
        for hooked, _ in runs:
            assert hooked[3] == plain[3]


def test_tables(whole, aborting):
    for ranks in (whole, aborting):
        for plain, runs in ranks:
            for hooked, _ in runs:
                assert {name: hooked[-1][name] for name in EMPTY if hooked[-1][name]} == {}
                assert hooked[-1]["free_blocks"] == plain[-1]["free_blocks"]


def test_aborts_are_final_at_once_and_reach_the_rank_that_runs_it(aborting):
    names = ids(0)
    for rank, (plain, runs) in enumerate(aborting):
        for hooked, _ in runs:
            # What the others yield does not depend on it.
            assert hooked[0] == plain[0]
            assert len(hooked[0]) == COUNT - (len(ABORTED) if rank == 0 else 0)
    assert sum(runs[0][1] for _, runs in aborting) >= 30
    # Under every plan.
    assert all(sum(moved for _, moved in runs) > 0 for runs in zip(*(runs for _, runs in aborting)))
    for _, runs in aborting:
        for hooked, _ in runs:
            # From the next check on no rank holds it.
            for held in hooked[4][max(ABORTS) + INTERVAL :]:
                foreign = [i for i in held if i.startswith("seqshift/0/")]
                assert not [i for i in foreign for gone in ABORTED if i.split("/", 3)[3] == names[gone]]


def streams(ctx):
    """Requests that stream, with deltas or everything so far, alone or as two samples; what has come in the end."""
    from vllm.sampling_params import RequestOutputKind

    with rollout.hooks(OFTEN):
        llm = make_llm(ctx)
    engine = llm.llm_engine
    kinds = [RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE]

    def run():
        reset_prefix_cache(llm)
        work = workload.busy(ctx.dp_rank, logprobs=1, temperature=1.0, seed=5)
        for index, (prompt, params) in enumerate(zip(*work.as_vllm())):
            params.output_kind = kinds[index % 2]
            params.n = 1 + index % 4 // 2
            engine.add_request(f"{index}", prompt, params)
        texts, tokens, logprobs, finishes = {}, {}, {}, {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                for one in output.outputs:
                    key = output.request_id, one.index
                    ids = [(int(i), p[i].logprob) for i, p in zip(one.token_ids, one.logprobs)]
                    delta = int(output.request_id) % 2 == 0
                    texts[key] = texts.get(key, "") * delta + one.text
                    tokens[key] = tokens.get(key, []) * delta + list(one.token_ids)
                    logprobs[key] = logprobs.get(key, []) * delta + ids
                    finishes[key] = (one.finish_reason, one.cumulative_logprob)
        return texts, tokens, logprobs, finishes

    plain = run()
    with rollout.hooks(OFTEN, "shuffle"):
        hooked = run()
    import seqshift

    return plain, hooked, seqshift.stats()["sequences_moved"]


def test_streams(bed):
    ranks = bed.run(streams, deadline=180)
    for plain, hooked, _ in ranks:
        assert len(plain[0]) == 12
        for what, one, other in zip(("text", "tokens", "logprobs", "finish"), plain, hooked):
            assert one == other, what
    assert sum(moved for _, _, moved in ranks) >= 50


def parents(ctx):
    """Rank 0 aborts a parent of four samples, everything, or one sample, while some of them are away."""
    with rollout.hooks(OFTEN):
        llm = make_llm(ctx)
    engine = llm.llm_engine
    found = []
    with rollout.hooks(OFTEN, "shuffle"):
        for what in ("parent", "all", "sample"):
            for index, (prompt, params) in enumerate(zip(*workload.several(ctx.dp_rank).as_vllm())):
                engine.add_request(f"{index}", prompt, params)
            ids = {"parent": ["0"], "all": list(engine.output_processor.request_states), "sample": ["1_0"]}
            done, step = [], 0
            while engine.has_unfinished_requests():
                if step == 22 and ctx.dp_rank == 0:
                    engine.abort_request(ids[what])
                done += [o.request_id for o in engine.step() if o.finished]
                step += 1
            after = state(llm)
            left = [name for name in EMPTY if after[name] and name != "output_processor.parent_requests"]
            found.append((sorted(done), left, "process_outputs" in vars(engine.output_processor)))
    return found


def test_samples_of_an_aborted_parent(bed):
    first, second = bed.run(parents, deadline=180)
    # Without all its samples vLLM never finishes a parent.
    assert first == [(["1", "2"], [], False), ([], [], False), (["1", "2"], [], False)]
    assert second == [(["0", "1", "2"], [], False)] * 3


TOGETHER = [
    # Twelve sequences finish in and just after the step of the check; the others go on.
    Case("given", {"outputs": [[120 + 3 * i for i in range(8)], [20 + late] * 12]}, {"check_interval": 20}, plan)
    for late, plan in ((0, None), (1, None), (0, "shuffle"))
]


@pytest.fixture(scope="module")
def together(bed):
    return bed.run(run_cases, TOGETHER, deadline=240)


@pytest.mark.parametrize("case", range(len(TOGETHER)), ids=["in", "after", "shuffle"])
def test_all_of_a_rank_finish_in_the_step_of_the_check(together, case):
    verify([[rank[case]] for rank in together])
    assert total(together, "sequences_moved", case) >= 4
