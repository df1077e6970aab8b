"""The hooks go in and out without a trace: twice is once, the very same objects come back, and a patch that somebody
put on top goes on working.
"""

from __future__ import annotations

from bed import rollout, workload
from seqshift.cpu_bed.compare import assert_equal
from seqshift.cpu_bed.engine import make_llm


def attributes():
    """Every attribute of every class that vLLM's engine is made of, by identity."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.entrypoints.llm import LLM
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.engine.output_processor import OutputProcessor
    from vllm.v1.worker.gpu_input_batch import InputBatch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    classes = (LLM, LLMEngine, EngineArgs, EngineCore, OutputProcessor, Scheduler, KVCacheManager, InputBatch)
    return {(cls, name): value for cls in (*classes, GPUModelRunner) for name, value in vars(cls).items()}


def changed(before, after):
    return sorted(
        f"{c.__name__}.{n}" for c, n in before.keys() | after.keys() if before.get((c, n)) is not after.get((c, n))
    )


def in_and_out(ctx):
    import seqshift

    original = attributes()
    assert seqshift.enable_rollout_rebalance({"enable": False}) is False
    off = changed(original, attributes())
    assert seqshift.enable_rollout_rebalance(rollout.CONFIG) is True
    once = attributes()
    assert seqshift.enable_rollout_rebalance(rollout.CONFIG) is True
    twice = attributes()
    seqshift.disable_rollout_rebalance()
    out = attributes()
    seqshift.disable_rollout_rebalance()
    return {
        "off": off,
        "in": changed(original, once),
        "again": changed(once, twice),
        "out": changed(original, out),
        "out again": changed(original, attributes()),
        "same entry": seqshift.init_rollout_rebalance is seqshift.enable_rollout_rebalance,
    }


def test_twice_is_once_and_disable_restores_the_same_objects(bed):
    (found,) = bed.run(in_and_out, dp=1)
    assert {"LLM._run_engine", "LLMEngine.step"} <= set(found["in"])
    assert found["same entry"]
    assert [found[k] for k in ("off", "again", "out", "out again")] == [[], [], [], []]


def patched(ctx):
    """A foreign patch goes onto our hooks; then they are taken out under it, and put in again."""
    import seqshift
    from vllm.v1.engine.llm_engine import LLMEngine

    llm = make_llm(ctx)
    work = workload.busy(ctx.dp_rank)
    (plain,) = rollout.run_rollouts(ctx, llm, [work], hooked=False)
    calls = []
    runs = [plain]
    with rollout.hooks({"check_interval": 5}, "shuffle"):
        ours = LLMEngine.step

        def foreign(self):
            calls.append(len(runs))
            return ours(self)

        LLMEngine.step = foreign
        runs.append(rollout.run_rollout(llm, work, hooked=True))
    moved = [runs[-1].stats["sequences_moved"]]
    kept = LLMEngine.step is foreign
    runs += rollout.run_rollouts(ctx, llm, [work], hooked=False)
    moved.append(seqshift.stats()["sequences_moved"] - moved[0])
    (again,) = rollout.run_rollouts(ctx, llm, [work], hooked=True, config={"check_interval": 5}, plan="shuffle")
    moved.append(again.stats["sequences_moved"])
    return [run.outputs for run in [*runs, again]], [calls.count(i) for i in (1, 2, 3)], moved, kept


def test_a_foreign_patch_stays_and_ours_becomes_a_pass_through(bed):
    ranks = bed.run(patched, deadline=180)
    for rank, (outputs, calls, moved, kept) in enumerate(ranks):
        assert kept
        assert all(calls), "the foreign patch was lost"
        for what, one in zip(("hooked", "disabled", "enabled again"), outputs[1:]):
            assert_equal(outputs[0], one, f"rank {rank}, {what}")
        assert moved[1] == 0
    assert sum(r[2][0] for r in ranks) >= 50
    assert sum(r[2][2] for r in ranks) >= 50


def from_environment(ctx):
    """No line of code asks for the hooks: vLLM's plugin entry point puts them in."""
    import seqshift

    llm = make_llm(ctx)
    prompts, params = workload.main(ctx.dp_rank).as_vllm()
    llm.generate(prompts, params, use_tqdm=False)
    hooked = seqshift.stats()
    user = {"torchair_graph_config": {"enabled": True, "graph_batch_sizes": [16]}}
    gears = llm.llm_engine.vllm_config.additional_config["torchair_graph_config"]["graph_batch_sizes"]
    seqshift.disable_rollout_rebalance()
    from seqshift.cpu_bed.engine import TORCHAIR

    return hooked["sequences_moved"], gears, user == TORCHAIR


def test_the_environment_alone_enables_it(bed):
    env = {
        "ROLLOUT_REBALANCE_ENABLE": "1",
        "ROLLOUT_REBALANCE_CHECK_INTERVAL": "20",
        "ROLLOUT_REBALANCE_GRAPH_BATCH_SIZES": "16,8,4,2,1",
        "SEQSHIFT_BACKEND": "mock",
    }
    ranks = bed.run(from_environment, env=env)
    assert sum(moved for moved, _, _ in ranks) >= 8
    for _, gears, untouched in ranks:
        assert sorted(gears) == [1, 2, 4, 8, 16]
        assert untouched
