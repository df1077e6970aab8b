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

# What the grammars of `spelled` accept: none of it has room for endless output.
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["alpha", "beta", "gamma"]},
        "scores": {"type": "array", "items": {"enum": [1, 22, 333]}, "minItems": 4, "maxItems": 9},
    },
    "required": ["name", "scores"],
    "additionalProperties": False,
}
CHOICES = ["left,left,right", "right,left,left", "left"]
PATTERN = "[a-f]{20,40}-[0-9]{30}"


def spelled(rank: int) -> Workload:
    """Of three requests one in JSON, one by choice or pattern, and one that is free, for a model that can spell."""
    from vllm.sampling_params import GuidedDecodingParams

    grammars = [{"json": SCHEMA}, {"choice": CHOICES}, None, {"json": SCHEMA}, {"regex": PATTERN}, None]
    params = []
    for index, grammar in enumerate(grammars * 2):
        guided = {} if grammar is None else {"guided_decoding": GuidedDecodingParams(**grammar), "ignore_eos": False}
        random = {"temperature": 1.0, "seed": 60 * rank + index} if index > 5 else {}
        params.append(sampling(120, logprobs=1, **guided, **random))
    return Workload(tuple(prompt(rank, 700 + i, 20 + 30 * i) for i in range(len(params))), tuple(params))


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


@dataclass(frozen=True)
class EngineFeature:
    """A row about an engine; `arguments` are fields of vLLM's EngineArgs, `test` shows it (not of a refusal).

    `options` make vLLM refuse the engine.
    """

    name: str
    outcome: str
    arguments: tuple[str, ...]
    test: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ENGINES = (
    EngineFeature(
        "prefix caching", MOVED, ("enable_prefix_caching", "prefix_caching_hash_algo"), "engine/test_prefix_cache.py"
    ),
    EngineFeature(
        "chunked prefill",
        MOVED,
        _words("enable_chunked_prefill max_num_batched_tokens long_prefill_token_threshold"),
        "engine/test_waiting.py",
    ),
    EngineFeature("slots", MOVED, ("max_num_seqs",), "engine/test_preemption.py"),
    EngineFeature("context length", MOVED, ("max_model_len",), "engine/test_off.py"),
    EngineFeature("another scheduler", MOVED, ("scheduler_cls",), "engine/test_ascend_scheduler.py"),
    EngineFeature(
        "data and tensor parallelism in process",
        MOVED,
        _words("""data_parallel_size data_parallel_size_local data_parallel_address data_parallel_rpc_port
        data_parallel_backend tensor_parallel_size distributed_executor_backend"""),
        "engine/test_topologies.py",
    ),
    EngineFeature("log statistics", MOVED, ("disable_log_stats",), "engine/test_statistics.py"),
    EngineFeature("KV cache events", MOVED, ("kv_events_config",), "engine/test_kv_events.py"),
    EngineFeature("new KV tensors between rollouts", MOVED, ("enable_sleep_mode",), "engine/test_reuse.py"),
    EngineFeature(
        "graph batch sizes",
        MOVED,
        _words("additional_config compilation_config cuda_graph_sizes enforce_eager max_seq_len_to_capture"),
        "test_gears_ascend.py",
    ),
    EngineFeature(
        "LoRA",
        PINNED,
        _words("""enable_lora enable_lora_bias max_loras max_lora_rank fully_sharded_loras max_cpu_loras lora_dtype
        lora_extra_vocab_size long_lora_scaling_factors qlora_adapter_name_or_path"""),
        "engine/test_lora.py",
    ),
    EngineFeature(
        "structured output backends",
        PINNED,
        _words("""guided_decoding_backend guided_decoding_disable_fallback guided_decoding_disable_any_whitespace
        guided_decoding_disable_additional_properties enable_reasoning reasoning_parser"""),
        "engine/test_features.py",
    ),
    EngineFeature(
        "multimodal inputs",
        PINNED,
        _words("""limit_mm_per_prompt mm_processor_kwargs disable_mm_preprocessor_cache disable_chunked_mm_input
        allowed_local_media_path enable_multimodal_encoder_data_parallel"""),
        "engine/test_features.py",
    ),
    EngineFeature("pipeline parallelism", OFF, ("pipeline_parallel_size",), "engine/test_off.py"),
    EngineFeature("KV transfer", OFF, ("kv_transfer_config",), "engine/test_off.py"),
    EngineFeature(
        "speculative decoding, n-gram too", OFF, ("speculative_config", "num_lookahead_slots"), "engine/test_off.py"
    ),
    EngineFeature(
        "several groups of KV layers",
        OFF,
        _words("disable_hybrid_kv_cache_manager disable_sliding_window"),
        "engine/test_off.py",
    ),
    EngineFeature("engine in another process", OFF, (), "engine/test_off.py"),
    EngineFeature("V0 engine", OFF, ("use_v2_block_manager",), "engine/test_off.py"),
    EngineFeature("priority scheduling", REFUSED, ("scheduling_policy",), options={"scheduling_policy": "priority"}),
    EngineFeature(
        "logits processor pattern", REFUSED, ("logits_processor_pattern",), options={"logits_processor_pattern": "x"}
    ),
    EngineFeature("preemption mode", REFUSED, ("preemption_mode",), options={"preemption_mode": "swap"}),
    EngineFeature(
        "synchronous output", REFUSED, ("disable_async_output_proc",), options={"disable_async_output_proc": True}
    ),
    EngineFeature(
        "several scheduler steps",
        REFUSED,
        _words("num_scheduler_steps multi_step_stream_outputs"),
        options={"num_scheduler_steps": 4},
    ),
    EngineFeature("scheduler delay", REFUSED, ("scheduler_delay_factor",), options={"scheduler_delay_factor": 0.5}),
    EngineFeature(
        "prompt adapters",
        REFUSED,
        _words("enable_prompt_adapter max_prompt_adapters max_prompt_adapter_token"),
        options={"enable_prompt_adapter": True, "max_prompt_adapter_token": 8},
    ),
    EngineFeature("prompt embeddings", REFUSED, ("enable_prompt_embeds",), options={"enable_prompt_embeds": True}),
    EngineFeature(
        "concurrent partial prefills",
        REFUSED,
        _words("max_num_partial_prefills max_long_partial_prefills"),
        options={"max_num_partial_prefills": 2, "max_long_partial_prefills": 2},
    ),
    EngineFeature(
        "traces",
        REFUSED,
        _words("otlp_traces_endpoint collect_detailed_traces"),
        options={"otlp_traces_endpoint": "http://localhost:1"},
    ),
    EngineFeature("pooling models", REFUSED, ("task", "override_pooler_config"), options={"task": "embed"}),
)

# Of a request that only an engine on other hardware or with another model can run: how a stand-in shows it.
STAND_INS = (
    Feature("multimodal inputs", PINNED, reason="multimodal"),
    Feature("M-RoPE positions", PINNED, reason="multimodal"),
    Feature("logits_processors, if vLLM let them pass", PINNED, reason="logits_processors"),
)
