"""What a request, or an engine, can ask of vLLM 0.9.1, and what becomes of it: the rows of `docs/features.md`.

`tests/engine/test_features.py` shows each row, and compares the document with these lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bed import workload
from bed.workload import Workload, prompt, sampling

MOVED, PINNED, REFUSED, OFF = "moved", "pinned", "refused", "off"


@dataclass(frozen=True)
class Feature:
    """A row; `options` are the sampling parameters of a request that uses it."""

    name: str
    outcome: str = MOVED
    options: dict[str, Any] = field(default_factory=dict)
    # Of a pinned one: the reason in stats()["pinned"]; of a refused one: words of vLLM's error.
    reason: str = ""


SEEDED = {"temperature": 1.0, "seed": 21}
SOME = list(range(100, 400, 3))

# One request of each runs on every rank, in one batch.
REQUESTS = (
    Feature("greedy"),
    Feature("temperature", options={"temperature": 0.7, "seed": 20}),
    Feature("seed", options=SEEDED),
    Feature("n", options={**SEEDED, "n": 2}),
    Feature("top_p", options={**SEEDED, "top_p": 0.8}),
    Feature("top_k", options={**SEEDED, "top_k": 20}),
    Feature("min_p", options={**SEEDED, "min_p": 0.05}),
    Feature("presence_penalty", options={"presence_penalty": 0.9}),
    Feature("frequency_penalty", options={"frequency_penalty": 0.5}),
    Feature("repetition_penalty", options={"repetition_penalty": 1.3}),
    Feature("stop", options={**SEEDED, "stop": ["7 t7", "1 t1"]}),
    Feature("include_stop_str_in_output", options={**SEEDED, "stop": ["8 t"], "include_stop_str_in_output": True}),
    Feature("stop_token_ids", options={**SEEDED, "stop_token_ids": list(range(5, 30))}),
    Feature("ignore_eos", options={"ignore_eos": False, "logit_bias": {1: 3.0}, **SEEDED}),
    Feature("max_tokens", options={"max_tokens": 77}),
    Feature("min_tokens", options={"ignore_eos": False, "logit_bias": {1: 50.0}, "min_tokens": 45}),
    Feature("logprobs", options={"logprobs": 5}),
    Feature("prompt_logprobs", options={"prompt_logprobs": 3}),
    Feature("detokenize", options={"detokenize": False}),
    Feature("skip_special_tokens", options={"skip_special_tokens": False, "logit_bias": {1: 9.0}, **SEEDED}),
    Feature("spaces_between_special_tokens", options={"spaces_between_special_tokens": False, **SEEDED}),
    Feature("truncate_prompt_tokens", options={"truncate_prompt_tokens": 8}),
    Feature("output_kind", options={"output_kind": "FINAL_ONLY"}),
    Feature("logit_bias", options={"logit_bias": {40: 4.0, 41: -100.0}}),
    Feature("allowed_token_ids", options={**SEEDED, "allowed_token_ids": SOME}),
    Feature("bad_words", options={**SEEDED, "bad_words": [f"t{i}" for i in range(50, 500)]}),
    Feature("extra_args", options={"extra_args": {"note": [1, {"deep": None}]}}),
    Feature("cache_salt"),
    Feature("structured output: choice", PINNED, {"guided": {"choice": ["t5t6", "t7t8t9"]}}, "structured_output"),
    Feature("structured output: regex", PINNED, {"guided": {"regex": "(t[0-9]){40}"}}, "structured_output"),
    Feature("structured output: JSON", PINNED, {"guided": {"json": {"type": "integer"}}}, "structured_output"),
    Feature("extra_args that cannot be encoded", PINNED, {"extra_args": {"call": print}}, "sampling_params"),
    Feature("kv_transfer_params", PINNED, {"extra_args": {"kv_transfer_params": {"a": 1}}}, "kv_transfer_params"),
)

# What vLLM 0.9.1's V1 engine does not accept.
REFUSALS = (
    Feature("logits_processors", REFUSED, {"logits_processors": [len]}, "logits processors"),
    Feature("best_of", REFUSED, {"temperature": 1.0, "best_of": 2, "n": 1}, "best_of"),
    Feature("greedy n > 1", REFUSED, {"temperature": 0.0, "n": 2}, "n must be 1"),
    Feature("priority", REFUSED, {"call": {"priority": [1]}}, "priority"),
    Feature("prompt_adapter", REFUSED, {"call": {"prompt_adapter_request": True}}, "prompt_adapter"),
    Feature("LoRA without enable_lora", REFUSED, {"call": {"lora_request": True}}, "LoRA is not enabled"),
    Feature("more logprobs than max_logprobs", REFUSED, {"logprobs": 500}, "max allowed"),
)


def request(feature: Feature, rank: int, index: int) -> tuple[Any, Any]:
    """(prompt, SamplingParams) of a request that uses a feature."""
    from vllm.sampling_params import GuidedDecodingParams, RequestOutputKind

    options = dict(feature.options)
    tokens = options.pop("max_tokens", 60 + index)
    if kind := options.get("output_kind"):
        options["output_kind"] = RequestOutputKind[kind]
    if guided := options.pop("guided", None):
        options["guided_decoding"] = GuidedDecodingParams(**guided)
    text: Any = prompt(rank, 900 + index, 140 if index % 3 == 0 else 20)
    if feature.name == "truncate_prompt_tokens":
        text = workload.text(rank, 900 + index, 30)
    if feature.name == "cache_salt":
        text = {"prompt_token_ids": list(text), "cache_salt": f"salt {rank}"}
    return text, sampling(tokens, **options)


def features(rank: int) -> Workload:
    """One request per feature."""
    prompts, params = zip(*(request(feature, rank, i) for i, feature in enumerate(REQUESTS)))
    return Workload(prompts, params)
