"""Whatever a request asks of vLLM, it yields the same: it moves, or it is pinned for a counted reason, or vLLM itself
refuses it. A test for every row of `docs/features.md`, and the document has these rows.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from bed import features, rollout, workload
from bed.features import CHOICES, ENGINES, MOVED, PATTERN, PINNED, REFUSALS, REFUSED, REQUESTS, STAND_INS
from bed.rollout import Case, Pair
from bed.verify import total, verify
from seqshift.cpu_bed.engine import make_llm
from seqshift.cpu_bed.model import EOS_TOKEN_ID, SPELLING, model_path, words

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


def structured(ctx):
    """A model that can spell what the grammars want, unhooked and hooked."""
    with rollout.hooks(OFTEN, "shuffle"):
        llm = make_llm(ctx, model=SPELLING)
    work = features.spelled(ctx.dp_rank)
    (plain,) = rollout.run_rollouts(ctx, llm, [work], hooked=False)
    (hooked,) = rollout.run_rollouts(ctx, llm, [work], hooked=True, config=OFTEN, plan="shuffle")
    return [Pair(Case("spelled", {}, OFTEN, "shuffle"), plain, hooked)]


def test_structured_output_is_what_was_asked_for(bed):
    ranks = bed.run(structured, deadline=180)
    verify(ranks)
    assert total(ranks, "sequences_moved") >= 8
    known = words(SPELLING)
    found = set()
    for (pair,) in ranks:
        assert pair.hooked.stats["pinned"] == {"structured_output": 8}
        for index, output in enumerate(pair.hooked.outputs):
            ids = output.outputs[0].token_ids
            text = "".join(known[i] for i in ids if i != EOS_TOKEN_ID)
            if index % 3 == 0:
                value = json.loads(text)
                assert set(value) == {"name", "scores"}
                assert 4 <= len(value["scores"]) <= 9
                found.add(text)
            elif index % 6 == 1:
                assert text in CHOICES
            elif index % 6 == 4:
                assert re.fullmatch(PATTERN, text)
    # Not one answer over and over.
    assert len(found) >= 4


@pytest.mark.parametrize("feature", REFUSALS, ids=lambda f: f.name)
def test_vllm_refuses(ranks, feature):
    for _, texts in ranks:
        assert feature.reason in texts[feature.name]


def stand_ins(ctx):
    """The reasons that the adapter gives for a running request that is changed in one way after the other."""
    from seqshift.adapters.vllm_0_9_1 import EngineState

    engine = make_llm(ctx).llm_engine
    prompts, (params,) = workload.Workload((workload.prompt(0, 0, 20),), (workload.sampling(50),)).as_vllm()
    engine.add_request("one", prompts[0], params)
    engine.step()
    request = engine.engine_core.engine_core.scheduler.requests["one"]
    runner = engine.model_executor.driver_worker.worker.model_runner
    changes = {
        "multimodal inputs": patch.object(request, "has_encoder_inputs", True),
        "M-RoPE positions": patch.object(runner, "uses_mrope", True),
        "logits_processors, if vLLM let them pass": patch.object(request.sampling_params, "logits_processors", [len]),
    }

    def verdict():
        reasons = []
        running, *_ = EngineState(engine, 0, reasons.append).detail()
        return [movable for _, _, movable in running], reasons

    found = {"unchanged": verdict()}
    for name, change in changes.items():
        with change:
            found[name] = verdict()
    return found


def test_stand_ins(bed):
    (found,) = bed.run(stand_ins, dp=1)
    assert found.pop("unchanged") == ([True], [])
    assert found == {feature.name: ([False], [feature.reason]) for feature in STAND_INS}


def fields(ctx):
    """What vLLM accepts, and what it says to engines that it refuses."""
    import dataclasses

    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs

    texts = {}
    for feature in ENGINES:
        if feature.outcome == REFUSED:
            try:
                EngineArgs(model_path(), **feature.options).create_engine_config()
            except NotImplementedError as error:
                texts[feature.name] = str(error)
    return list(SamplingParams.__struct_fields__), [f.name for f in dataclasses.fields(EngineArgs)], texts


@pytest.fixture(scope="module")
def accepted(bed):
    (found,) = bed.run(fields, dp=1)
    return found


@pytest.mark.parametrize("feature", [f for f in ENGINES if f.outcome == REFUSED], ids=lambda f: f.name)
def test_vllm_refuses_such_an_engine(accepted, feature):
    assert "VLLM_USE_V1=1 is not supported" in accepted[2][feature.name]


ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")


def slow_grammar(ctx):
    """Lengths of what an unhooked group generates whose rank 1 has nothing but a request that waits for its grammar."""
    from vllm.sampling_params import GuidedDecodingParams
    from vllm.v1.structured_output import StructuredOutputManager

    create = StructuredOutputManager._async_create_grammar

    def slowly(manager, request):
        time.sleep(2)
        return create(manager, request)

    StructuredOutputManager._async_create_grammar = slowly
    llm = make_llm(ctx)
    guided = {"guided_decoding": GuidedDecodingParams(choice=CHOICES), "ignore_eos": False}
    work = workload.given(ctx.dp_rank, [[40], [10]], **(guided if ctx.dp_rank else {}))
    return [len(o.outputs[0].token_ids) for o in rollout.run_rollout(llm, work, hooked=False).outputs]


def test_a_rank_that_waits_for_a_grammar_does_not_stop_its_group(bed):
    """The bed mends what is vLLM's: such a rank runs no forward, for which its peers would wait."""
    (plain,), (guided,) = bed.run(slow_grammar, deadline=90)
    assert plain == 40
    assert 0 < guided <= 10


def rows():
    """First column -> (second column, whole row) of the document's tables."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in DOCUMENT.splitlines() if line[:1] == "|"]
    return {name: (outcome, rest) for name, outcome, *rest in cells if name not in ("feature", "---")}


def test_the_document_has_these_rows():
    expected = {}
    for feature in (*REQUESTS, *REFUSALS, *STAND_INS):
        expected[feature.name] = f"{PINNED} (`{feature.reason}`)" if feature.outcome == PINNED else feature.outcome
    for feature in ENGINES:
        expected[feature.name] = feature.outcome
    assert {name: outcome for name, (outcome, _) in rows().items()} == expected
    for feature in ENGINES:
        arguments, test = rows()[feature.name][1]
        assert set(re.findall(r"`(\w+)`", arguments)) == set(feature.arguments), feature.name
        assert feature.test or feature.outcome == REFUSED
        if feature.test:
            assert f"`{feature.test}`" in test
            assert (ROOT / "tests" / feature.test).exists()


def test_nothing_that_vllm_accepts_is_missing(accepted):
    sampling, engine, _ = accepted
    named = set(re.findall(r"`(\w+)`", DOCUMENT)) | set(rows())
    # Those with an underscore are made by vLLM from the others.
    assert [name for name in sampling if name not in named and not name.startswith("_")] == []
    assert [name for name in engine if name not in named] == []
    assert len(engine) > 100
