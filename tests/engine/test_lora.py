"""Requests with a LoRA adapter are pinned and yield the same; those without move on the same engine."""

from __future__ import annotations

import json
from dataclasses import replace

from bed import rollout, workload
from bed.rollout import Case, Pair
from bed.verify import total, verify
from seqshift.cpu_bed.engine import make_llm
from seqshift.cpu_bed.model import DEFAULT

OFTEN = {"check_interval": 5}
LORA_RANK = 4
REQUESTS = 8


def write_adapter(folder):
    """An adapter of random weights on two of the attention's projections."""
    import numpy
    from safetensors.numpy import save_file

    random = numpy.random.default_rng(5)
    sizes = {"q_proj": DEFAULT.hidden, "v_proj": DEFAULT.hidden * DEFAULT.kv_heads // DEFAULT.heads}
    weights = {}
    for layer in range(DEFAULT.layers):
        for name, size in sizes.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("lora_A", (LORA_RANK, DEFAULT.hidden)), ("lora_B", (size, LORA_RANK))):
                weights[f"{prefix}.{part}.weight"] = (0.2 * random.standard_normal(shape)).astype(numpy.float32)
    config = {"peft_type": "LORA", "r": LORA_RANK, "lora_alpha": 8, "target_modules": list(sizes), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(weights, str(folder / "adapter_model.safetensors"))


def with_and_without(ctx, folder):
    """The same requests without any adapter, and with one in every second request."""
    from vllm.lora.request import LoRARequest

    # vLLM's CPU kernels give requests without an adapter the last slot, which must be empty.
    llm = make_llm(ctx, enable_lora=True, max_lora_rank=8, max_loras=2)
    base = workload.busy(ctx.dp_rank, requests=REQUESTS)
    adapters = [LoRARequest("one", 1, str(folder)) if i % 2 else None for i in range(REQUESTS)]
    adapted = replace(base, call={"lora_request": adapters})
    without, plain = rollout.run_rollouts(ctx, llm, [base, adapted], hooked=False)
    (hooked,) = rollout.run_rollouts(ctx, llm, [adapted], hooked=True, config=OFTEN, plan="shuffle")
    return [Pair(Case("busy", {}, OFTEN, "shuffle"), plain, hooked)], without.outputs


def test_pinned_with_an_adapter_and_moved_without(bed, tmp_path):
    write_adapter(tmp_path)
    ranks = bed.run(with_and_without, tmp_path, deadline=180)
    verify([pairs for pairs, _ in ranks])
    pairs = [pairs for pairs, _ in ranks]
    assert total(pairs, "pinned") == {"lora": len(ranks) * REQUESTS // 2}
    assert total(pairs, "sequences_moved") >= 20
    for (pair,), without in ranks:
        for index, (one, base) in enumerate(zip(pair.plain.outputs, without)):
            assert (one.outputs == base.outputs) == (index % 2 == 0)
