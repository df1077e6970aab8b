"""An engine is used in every way that vLLM allows: several rollouts, new KV tensors, no requests on a rank, no
`LLM.generate`, ids that come again, and a second engine after the first.
"""

from __future__ import annotations

import gc

from bed import rollout, workload
from bed.observe import reset_prefix_cache, runner_of
from bed.rollout import Case
from bed.verify import total, verify
from seqshift.cpu_bed.compare import record
from seqshift.cpu_bed.engine import make_llm

OFTEN = {"check_interval": 5}


def engines(ctx):
    """Two engines one after the other, hooks in all the time; on the first, new KV tensors between two rollouts."""
    work = workload.busy(ctx.dp_rank)
    llm = make_llm(ctx)
    (plain,) = rollout.run_rollouts(ctx, llm, [work], hooked=False)
    runs = []
    with rollout.hooks(OFTEN, "shuffle"):
        runs.append(rollout.run_rollout(llm, work, hooked=True))
        renew_kv_tensors(llm)
        runs.append(rollout.run_rollout(llm, work, hooked=True))
        del llm
        gc.collect()
        # No additional_config this time.
        llm = make_llm(ctx, additional_config=None)
        runs.append(rollout.run_rollout(llm, work, hooked=True))
    return [rollout.Pair(Case("busy", {}, OFTEN, "shuffle"), plain, run) for run in runs]


def renew_kv_tensors(llm):
    """What sleep and wake-up or a new `initialize_kv_cache` do: other tensors under the same layer names."""
    runner = runner_of(llm)
    context = runner.vllm_config.compilation_config.static_forward_context
    old = list(runner.kv_caches)
    runner.kv_caches.clear()
    for index, tensor in enumerate(old):
        runner.kv_caches.append(tensor.new_zeros(tensor.shape))
        for layer in context.values():
            if layer.kv_cache[0] is tensor:
                layer.kv_cache[0] = runner.kv_caches[index]
        tensor.fill_(float("nan"))


def test_new_kv_tensors_and_a_second_engine(bed):
    ranks = bed.run(engines, deadline=180)
    verify(ranks)
    for case in range(3):
        assert total(ranks, "sequences_moved", case) >= 50


def several_rollouts(ctx):
    """Four rollouts with the hooks in all the time: twice the main one, one without requests on rank 1, one without
    any request, and the main one driven by `LLMEngine.step`.
    """
    llm = make_llm(ctx)
    cases = [Case("main"), Case("nothing"), Case("main")]
    works = [getattr(workload, case.work)(ctx.dp_rank) for case in cases]
    empty = workload.Workload((), ())
    plain = rollout.run_rollouts(ctx, llm, works, hooked=False)
    with rollout.hooks():
        hooked = [rollout.run_rollout(llm, work, hooked=True) for work in works]
        none = rollout.run_rollout(llm, empty, hooked=True)
        stepped = by_steps(llm, works[0])
    pairs = [rollout.Pair(*one) for one in zip(cases, plain, hooked)]
    return pairs, none.outputs, stepped


def by_steps(llm, work):
    """`LLMEngine.add_request` and `step` without `LLM.generate`."""
    import seqshift

    reset_prefix_cache(llm)
    before = seqshift.stats()["sequences_moved"]
    engine = llm.llm_engine
    prompts, params = work.as_vllm()
    for index, (prompt, one) in enumerate(zip(prompts, params)):
        engine.add_request(f"request {index}", prompt, one)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += [o for o in engine.step() if o.finished]
    outputs.sort(key=lambda o: int(o.request_id.split()[1]))
    return record(outputs), seqshift.stats()["sequences_moved"] - before


def test_several_rollouts_of_one_engine(bed):
    ranks = bed.run(several_rollouts, deadline=180)
    pairs = [pairs for pairs, _, _ in ranks]
    verify(pairs)
    for case in range(3):
        assert total(pairs, "sequences_moved", case) >= 8
    for rank_pairs, none, (stepped, _) in ranks:
        assert none == []
        # The same requests under ids that are no numbers.
        assert [o.request_id for o in stepped] == [f"request {i}" for i in range(len(stepped))]
        assert [o.outputs for o in stepped] == [o.outputs for o in rank_pairs[0].plain.outputs]
    assert sum(moved for _, _, (_, moved) in ranks) >= 8


def reused_id(ctx):
    """While a request is away, it is aborted at its origin and another one of the same id is added."""
    import seqshift

    llm = make_llm(ctx)
    engine = llm.llm_engine
    work = workload.main(ctx.dp_rank)
    prompts, params = work.as_vllm()
    other = workload.Workload((workload.prompt(0, 500, 40),), (workload.sampling(60),))
    (expected,) = rollout.run_rollouts(
        ctx, llm, [other if ctx.dp_rank == 0 else workload.Workload((), ())], hooked=False
    )
    (plain,) = rollout.run_rollouts(ctx, llm, [work], hooked=False)
    reset_prefix_cache(llm)
    scheduler = engine.engine_core.engine_core.scheduler
    done, again, steps = [], None, 0
    with rollout.hooks():
        for index, (prompt, one) in enumerate(zip(prompts, params)):
            engine.add_request(str(index), prompt, one)
        while engine.has_unfinished_requests():
            done += [o for o in engine.step() if o.finished]
            steps += 1
            if steps == 30 and ctx.dp_rank == 0:
                away = [i for i in engine.output_processor.request_states if i not in scheduler.requests]
                again = away[0]
                engine.abort_request([again])
                prompts, (one,) = other.as_vllm()
                engine.add_request(again, prompts[0], one)
    moved = seqshift.stats()["sequences_moved"]
    from bed.observe import state

    return (
        again,
        record(sorted(done, key=lambda o: int(o.request_id))),
        plain.outputs,
        expected.outputs,
        moved,
        state(llm),
    )


def test_an_id_is_reused_while_its_first_bearer_is_away(bed):
    ranks = bed.run(reused_id, deadline=120)
    again, done, plain, other, moved, _ = ranks[0]
    assert moved >= 8
    assert again is not None
    assert [o.request_id for o in done] == [o.request_id for o in plain]
    for one, expected in zip(done, plain):
        if one.request_id == again:
            assert one.outputs == other[0].outputs
        else:
            assert one == expected
    assert ranks[1][1] == ranks[1][2]
    for rank in ranks:
        assert rank[-1]["scheduler.requests"] == []
        assert rank[-1]["referenced_blocks"] == {}
