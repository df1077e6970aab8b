"""vLLM's log statistics: each request is counted once, at its origin, as if it had stayed."""

from __future__ import annotations

from bed import rollout, workload
from bed.observe import metrics
from bed.rollout import Case
from bed.verify import verify
from seqshift.cpu_bed.engine import make_llm

OFTEN = {"check_interval": 5}
# Counted at the origin, whoever ran the request.
PER_REQUEST = (
    "vllm:request_success",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_params_n",
    "vllm:request_params_max_tokens",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:time_to_first_token_seconds",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
)


def counted(ctx):
    llm = make_llm(ctx, log_stats=True)
    pairs, deltas = [], []
    for case in (Case("main"), Case("several", {}, OFTEN, "shuffle")):
        work = getattr(workload, case.work)(ctx.dp_rank)
        marks = [metrics(llm)]
        (plain,) = rollout.run_rollouts(ctx, llm, [work], hooked=False)
        marks.append(metrics(llm))
        (hooked,) = rollout.run_rollouts(ctx, llm, [work], hooked=True, config=case.config, plan=case.plan)
        marks.append(metrics(llm))
        pairs.append(rollout.Pair(case, plain, hooked))
        deltas.append([{k: b[k] - a.get(k, 0) for k in b} for a, b in zip(marks, marks[1:])])
    return pairs, deltas


def test_each_request_is_counted_once_at_its_origin(bed):
    ranks = bed.run(counted, deadline=180)
    verify([pairs for pairs, _ in ranks])
    for rank, (pairs, deltas) in enumerate(ranks):
        for pair, (plain, hooked) in zip(pairs, deltas):
            assert sum(v for k, v in plain.items() if k.startswith("vllm:request_success")) > 0
            for name in plain:
                if name.startswith(PER_REQUEST):
                    assert hooked[name] == plain[name], f"{pair.case}, rank {rank}: {name}"
