"""Where rebalancing cannot work it is off on all ranks alike, with one clear message, and vLLM is unharmed."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest
from bed import rollout, workload
from seqshift.cpu_bed.compare import assert_equal
from seqshift.cpu_bed.engine import make_llm, make_plain_llm

DEADLINE = 4


def differently(ctx, how):
    """Every rank is hooked, but rank 1 is not like rank 0."""
    import seqshift

    config = {**rollout.CONFIG, "deadline_seconds": DEADLINE}
    other = ctx.dp_rank == 1
    if how == "setting" and other:
        config["check_interval"] = 30
    elif how == "gears" and other:
        config["graph_batch_sizes"] = [16, 4, 1]
    llm = make_llm(ctx, max_model_len=768 if how == "context" and other else 1024)
    work = workload.busy(ctx.dp_rank, requests=4)
    (plain,) = rollout.run_rollouts(ctx, llm, [work], hooked=False)
    if how == "engine" and other:
        llm.llm_engine.vllm_config.kv_transfer_config = object()
    if how != "hooks" or not other:
        assert seqshift.enable_rollout_rebalance(config)
    # The stale rows are the product's to mend only where its hooks are in.
    again = [rollout.run_rollout(llm, work, hooked=False) for _ in range(2)]
    stats = seqshift.stats()
    seqshift.disable_rollout_rebalance()
    return plain.outputs, [run.outputs for run in again], stats, messages(ctx)


def messages(ctx):
    """The lines of this rank's log that say that the feature is off."""
    sys.stdout.flush()
    sys.stderr.flush()
    lines = Path(ctx.log_path).read_text(errors="replace").splitlines()
    return [line for line in lines if "rebalancing is off" in line]


@pytest.mark.parametrize(
    ("how", "words", "silent"),
    [
        ("setting", "config differs between ranks", []),
        ("gears", "differs between ranks", []),
        ("context", "max_model_len differs between ranks (0: 1024, 1: 768)", []),
        ("engine", "rank 1: kv_transfer_config is set", []),
        ("hooks", "rank 1 did not answer within 4 s", [1]),
    ],
)
def test_ranks_that_differ(bed, how, words, silent):
    ranks = bed.run(differently, how, deadline=90)
    for rank, (plain, again, stats, found) in enumerate(ranks):
        for run in again:
            assert_equal(plain, run, f"rank {rank}")
        assert stats["checks"] == stats["sequences_moved"] == 0
        if rank in silent:
            assert found == []
        else:
            assert len(found) == 1, found
            assert words in found[0]


def unknown_version(ctx):
    import seqshift
    import vllm
    from vllm.v1.engine.llm_engine import LLMEngine

    step = LLMEngine.step
    vllm.__version__ = "0.9.7"
    enabled = seqshift.enable_rollout_rebalance(rollout.CONFIG)
    return enabled, LLMEngine.step is step, messages(ctx)


def test_an_unknown_version(bed):
    ((enabled, untouched, found),) = bed.run(unknown_version, dp=1)
    assert enabled is False
    assert untouched
    assert len(found) == 1
    assert "0.9.7" in found[0]
    assert "0.9.1" in found[0]


def v0_engine(ctx):
    """The parent has imported vLLM with VLLM_USE_V1=1; here its names are made again without it."""
    import seqshift
    import vllm.engine.llm_engine
    import vllm.entrypoints.llm

    assert os.environ["VLLM_USE_V1"] == "0"
    module = importlib.reload(vllm.engine.llm_engine)
    vllm.entrypoints.llm.LLMEngine = module.LLMEngine
    seqshift.enable_rollout_rebalance(rollout.CONFIG)
    llm = make_plain_llm(ctx)
    prompts, params = workload.busy(0, requests=2, first=10).as_vllm()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return type(llm.llm_engine).__module__, [len(o.outputs[0].token_ids) for o in outputs], messages(ctx)


def test_a_v0_engine(bed):
    ((module, lengths, found),) = bed.run(v0_engine, dp=1, env={"VLLM_USE_V1": "0"})
    assert module == "vllm.engine.llm_engine"
    assert lengths == [10, 19]
    assert len(found) == 1
    assert "V0" in found[0]


# What makes an engine unfit -> a word of the reason.
UNFIT = {
    "pipeline": "pipeline parallelism",
    "speculative": "speculative decoding",
    "groups": "one group of full attention",
    "process": "another process",
    "workers": "other processes",
}


def unfit_engines(ctx):
    """The reasons that the adapter gives for one real engine, changed in one way after the other."""
    from unittest.mock import patch

    from seqshift.adapters import vllm_0_9_1

    engine = make_llm(ctx).llm_engine
    config, core = engine.vllm_config, engine.engine_core.engine_core
    changes = {
        "pipeline": patch.object(config.parallel_config, "pipeline_parallel_size", 2),
        "speculative": patch.object(config, "speculative_config", object()),
        "groups": patch.object(core.scheduler.kv_cache_config, "kv_cache_groups", [object(), object()]),
        "process": patch.object(engine, "engine_core", object()),
        "workers": patch.object(core, "model_executor", object()),
    }
    reasons = {"none": vllm_0_9_1.group_facts(engine, [4]).unfit}
    for name, change in changes.items():
        with change:
            reasons[name] = vllm_0_9_1.group_facts(engine, [4]).unfit
    return reasons


def test_engines_of_other_kinds_are_unfit(bed):
    for reasons in bed.run(unfit_engines):
        assert reasons.pop("none") is None
        assert reasons.keys() == UNFIT.keys()
        for name, words in UNFIT.items():
            assert words in reasons[name], name


def bad_settings(ctx):
    import seqshift

    llm = make_llm(ctx)
    work = workload.busy(0, requests=2, first=10)
    texts = []
    for bad in ({"check_interval": -1}, {"graph_batch_sizes": []}, {"backend": "gpu"}, {"chek_interval": 3}):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            seqshift.enable_rollout_rebalance(bad)
        texts.append((next(iter(bad)), str(error.value)))
    (run,) = rollout.run_rollouts(ctx, llm, [work], hooked=False)
    return texts, [len(o.outputs[0].token_ids) for o in run.outputs]


def test_a_bad_setting_names_the_field_and_leaves_vllm_alone(bed):
    ((texts, lengths),) = bed.run(bad_settings, dp=1)
    for field, text in texts:
        assert field in text
    assert lengths == [10, 19]
