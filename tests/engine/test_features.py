"""Whatever a request asks of vLLM, it yields the same: it moves, or it is pinned for a counted reason, or vLLM itself
refuses it. One test per row of `docs/features.md`.
"""

from __future__ import annotations

import pytest
from bed import features, rollout
from bed.features import MOVED, PINNED, REFUSALS, REQUESTS
from bed.rollout import Case, Pair
from bed.verify import verify
from seqshift.cpu_bed.engine import make_llm

OFTEN = {"check_interval": 2}


def everything(ctx):
    """All requests in one batch, unhooked and hooked; then what vLLM refuses."""
    case = Case("features", {}, OFTEN, "shuffle")
    with rollout.hooks(OFTEN, "shuffle"):
        llm = make_llm(ctx, max_num_seqs=48)
    work = features.features(ctx.dp_rank)
    (plain,) = rollout.run_rollouts(ctx, llm, [work], hooked=False)
    (hooked,) = rollout.run_rollouts(ctx, llm, [work], hooked=True, config=OFTEN, plan="shuffle")
    return [Pair(case, plain, hooked)], refusals(llm)


def refusals(llm):
    from vllm.lora.request import LoRARequest
    from vllm.prompt_adapter.request import PromptAdapterRequest

    arguments = {
        "lora_request": LoRARequest("one", 1, "/nowhere"),
        "prompt_adapter_request": PromptAdapterRequest("one", 1, "/nowhere", 3),
    }
    texts = {}
    for index, feature in enumerate(REFUSALS):
        options = dict(feature.options)
        call = {name: arguments.get(name, value) for name, value in options.pop("call", {}).items()}
        try:
            one = features.Feature(feature.name, options=options)
            prompt, params = features.request(one, 0, index)
            llm.generate([{"prompt_token_ids": list(prompt)}], [params], use_tqdm=False, **call)
        except (ValueError, TypeError) as error:
            texts[feature.name] = str(error)
    return texts


@pytest.fixture(scope="module")
def ranks(bed):
    return bed.run(everything, deadline=240)


def test_all_together(ranks):
    verify([pairs for pairs, _ in ranks])


def visitors(ranks, origin):
    """Ids of the requests of one rank that have run on another."""
    prefix = f"seqshift/{origin}/"
    names = {
        i
        for rank, (pairs, _) in enumerate(ranks)
        if rank != origin
        for batch in pairs[0].hooked.trace.batches
        for i in batch
        if i.startswith(prefix)
    }
    # Samples of one parent are "0_7", "1_7".
    return {int(name.split("/", 3)[3].split("_")[-1]) for name in names}


@pytest.mark.parametrize("index", range(len(REQUESTS)), ids=[f.name for f in REQUESTS])
def test_a_request(ranks, index):
    feature = REQUESTS[index]
    for pairs, _ in ranks:
        assert pairs[0].hooked.outputs[index] == pairs[0].plain.outputs[index]
    # On one rank it may end before its turn to leave.
    assert any(index in visitors(ranks, rank) for rank in range(len(ranks))) == (feature.outcome == MOVED)


def test_pinned_requests_are_counted_by_reason(ranks):
    expected = {}
    for feature in REQUESTS:
        if feature.outcome == PINNED:
            expected[feature.reason] = expected.get(feature.reason, 0) + 1
    for pairs, _ in ranks:
        assert pairs[0].hooked.stats["pinned"] == expected


@pytest.mark.parametrize("feature", REFUSALS, ids=lambda f: f.name)
def test_vllm_refuses(ranks, feature):
    for _, texts in ranks:
        assert feature.reason in texts[feature.name]
