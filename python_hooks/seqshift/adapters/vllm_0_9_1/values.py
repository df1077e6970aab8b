"""vLLM's objects as plain values, and back: tokens with their log probabilities."""

from __future__ import annotations

from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.outputs import LogprobsLists


def items_of(output: EngineCoreOutput) -> tuple:
    """A token's output as plain values: (token ids, logprob rows, finish, num_cached_tokens)."""
    rows = None
    if output.new_logprobs is not None:
        ids, values, ranks = output.new_logprobs
        rows = list(zip(ids, values, ranks))
    finish = None
    if output.finish_reason is not None:
        finish = (output.finish_reason.name, output.stop_reason)
    return list(output.new_token_ids), rows, finish, output.num_cached_tokens


def output_of(request_id: str, items: tuple) -> EngineCoreOutput:
    """The inverse of `items_of`, under the id that the request has at its origin."""
    token_ids, rows, finish, num_cached_tokens = items
    logprobs = None
    if rows is not None:
        ids, values, ranks = zip(*rows) if rows else ((), (), ())
        logprobs = LogprobsLists(list(ids), list(values), list(ranks))
    reason, stop_reason = (FinishReason[finish[0]], finish[1]) if finish else (None, None)
    return EngineCoreOutput(
        request_id=request_id,
        new_token_ids=token_ids,
        new_logprobs=logprobs,
        finish_reason=reason,
        stop_reason=stop_reason,
        num_cached_tokens=num_cached_tokens,
    )
