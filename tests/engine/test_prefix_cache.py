"""Prefix caching on (vLLM's default) or off: outputs, cached-token counts and blocks are as unhooked, and what moved
can be hit by later requests on either rank: what a failed move has left there cannot, nor can salted prompts without
their salt.
"""

from __future__ import annotations

from dataclasses import replace

from bed import rollout, workload
from bed.mock_control import Action, MockControl
from bed.rollout import Case, run_cases
from bed.verify import total, verify
from seqshift.cpu_bed.compare import assert_equal
from seqshift.cpu_bed.engine import make_llm

OFTEN = {"check_interval": 5}


def test_off(bed):
    cases = [Case("main"), Case("shared", {}, OFTEN, "shuffle")]
    ranks = bed.run(run_cases, cases, engine={"prefix_caching": False}, deadline=180)
    verify(ranks)
    assert total(ranks, "sequences_moved", 0) >= 8
    assert total(ranks, "sequences_moved", 1) >= 50
    assert all(o.num_cached_tokens == 0 for rank in ranks for o in rank[1].hooked.outputs)


def test_a_plain_llm(bed):
    ranks = bed.run(run_cases, [Case("busy", {}, OFTEN, "shuffle")], plain_llm=True, deadline=180)
    verify(ranks)
    assert total(ranks, "sequences_moved") >= 50


def later(ctx):
    """A rollout with and without hooks, and after each, without clearing the cache: it again, and the other rank's."""
    llm = make_llm(ctx)
    first, other = workload.shared(ctx.dp_rank), workload.shared(1 - ctx.dp_rank)
    found = []
    for hooked in (False, True):
        runs = rollout.run_rollouts(ctx, llm, [first], hooked=hooked, config=OFTEN, plan="shuffle")
        again = rollout.run_rollouts(ctx, llm, [first, other], hooked=False, fresh=False)
        found.append([run.outputs for run in runs + again])
        moved = runs[0].stats.get("sequences_moved", 0)
        llm.request_counter.reset()
    return found, moved


def test_later_requests_hit_what_is_cached(bed):
    ranks = bed.run(later, deadline=180)
    assert sum(moved for _, moved in ranks) >= 50
    for rank, ((plain, hooked), _) in enumerate(ranks):
        # Cached blocks stay where they were computed ...
        for one, two, what in zip(plain[:2], hooked[:2], ("the rollout", "the same prompts again")):
            assert_equal(one, two, f"rank {rank}, {what}")
        assert all(o.num_cached_tokens >= 256 for o in hooked[1])
        # ... and are hit where they were moved to.
        assert any(o.num_cached_tokens == 0 for o in plain[2])
        assert all(o.num_cached_tokens >= 256 for o in hooked[2])
        assert_equal(plain[2], hooked[2], f"rank {rank}, the other's prompts", ignore=("num_cached_tokens",))


def rolled_back(ctx, path):
    """Every send has a wrong byte; afterwards the other rank's prompts, without clearing the cache."""
    import torch

    config = {**OFTEN, "deadline_seconds": 8, "max_failures": 1000}
    with rollout.hooks(config, "shuffle"):
        llm = make_llm(ctx)
    first, other = workload.shared(ctx.dp_rank), workload.shared(1 - ctx.dp_rank)

    def then_others():
        (run,) = rollout.run_rollouts(ctx, llm, [other], hooked=False, fresh=False)
        llm.request_counter.reset()
        return run.outputs

    (plain,) = rollout.run_rollouts(ctx, llm, [first], hooked=False)
    found = [(plain.outputs, then_others())]
    with rollout.hooks(config, "shuffle"):
        # The group is joined here, before the rule is armed.
        llm.llm_engine.has_unfinished_requests()
        rule = MockControl(path).arm("HcclBatchSendRecv", Action.CORRUPT, count=0) if ctx.rank == 0 else None
        torch.distributed.barrier()
        run = rollout.run_rollout(llm, first, hooked=True)
        if rule is not None:
            rule.disarm()
    found.append((run.outputs, then_others()))
    return found, run.stats["moves_rolled_back"]


def test_what_a_failed_move_has_left_is_not_hit(bed, tmp_path):
    path = tmp_path / "control"
    MockControl(path)
    ranks = bed.run(rolled_back, path, env={"SEQSHIFT_MOCK_CONTROL": str(path)}, deadline=180)
    assert all(undone >= 10 for _, undone in ranks)
    for rank, ((plain, hooked), _) in enumerate(ranks):
        assert_equal(plain[0], hooked[0], f"rank {rank}")
        assert_equal(plain[1], hooked[1], f"rank {rank}, the other's prompts", ignore=("num_cached_tokens",))


def salted(ctx):
    """Salted prompts move; afterwards both ranks' prompts without the salt, with another one and with the right one."""
    llm = make_llm(ctx)
    works = [workload.shared(rank) for rank in (ctx.dp_rank, 1 - ctx.dp_rank)]

    def with_salt(work, salt):
        prompts = ({"prompt_token_ids": list(prompt), "cache_salt": salt} for prompt in work.prompts)
        return replace(work, prompts=tuple(prompts))

    first = with_salt(works[0], "first")
    (run,) = rollout.run_rollouts(ctx, llm, [first], hooked=True, config=OFTEN, plan="shuffle")
    cached = []
    for salt in (None, "second", "first"):
        again = works if salt is None else [with_salt(work, salt) for work in works]
        # The first of each: those after it hit what it leaves.
        again = [replace(work, prompts=work.prompts[:1], params=work.params[:1]) for work in again]
        runs = rollout.run_rollouts(ctx, llm, again, hooked=False, fresh=False)
        cached.append([run.outputs[0].num_cached_tokens for run in runs])
    return run.stats["sequences_moved"], cached


def test_a_moved_prompt_is_hit_with_its_salt_only(bed):
    for moved, (without, other, right) in bed.run(salted, deadline=120):
        assert moved >= 20
        assert without == [0, 0]
        assert other == [0, 0]
        assert min(right) >= 256
