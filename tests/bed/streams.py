"""`generate` for requests of which some stream: their pieces are joined to what `LLM.generate` would return."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seqshift.cpu_bed.compare import CompletionRecord, OutputRecord, record


def generate(llm: Any, prompts: list[Any], params: list[Any], **call: Any) -> list[OutputRecord]:
    """What the requests have yielded in the end; one that was aborted yields nothing.

    A stream's pieces say how much of the prompt was cached for their own sample: `num_cached_tokens` is the sum.
    """
    from vllm.sampling_params import RequestOutputKind

    if all(getattr(one, "output_kind", None) != RequestOutputKind.DELTA for one in params):
        return record(llm.generate(prompts, params, use_tqdm=False, **call))
    engine = llm.llm_engine
    for prompt, one in zip(prompts, params):
        if one.output_kind != RequestOutputKind.DELTA:
            # As `LLM.generate` sets it.
            one.output_kind = RequestOutputKind.FINAL_ONLY
        engine.add_request(str(next(llm.request_counter)), prompt, one)
    found: dict[str, OutputRecord] = {}
    cached: dict[str, dict[tuple[int, ...], int]] = {}
    while engine.has_unfinished_requests():
        for piece in record(engine.step()):
            name = piece.request_id
            found[name] = joined(found[name], piece) if name in found else piece
            samples = tuple(one.index for one in piece.outputs)
            cached.setdefault(name, {})[samples] = piece.num_cached_tokens
    done = [replace(one, num_cached_tokens=sum(cached[name].values())) for name, one in found.items() if one.finished]
    return sorted(done, key=lambda one: int(one.request_id))


def joined(before: OutputRecord, piece: OutputRecord) -> OutputRecord:
    """A request's output with another piece of it."""
    outputs = {one.index: one for one in before.outputs}
    for one in piece.outputs:
        outputs[one.index] = _completion(outputs[one.index], one) if one.index in outputs else one
    return replace(
        piece,
        prompt_logprobs=_chained(before.prompt_logprobs, piece.prompt_logprobs),
        outputs=tuple(outputs[index] for index in sorted(outputs)),
    )


def _completion(before: CompletionRecord, piece: CompletionRecord) -> CompletionRecord:
    return replace(
        piece,
        text=before.text + piece.text,
        token_ids=before.token_ids + piece.token_ids,
        logprobs=_chained(before.logprobs, piece.logprobs),
    )


def _chained(before: Any, after: Any) -> Any:
    return after if before is None else before if after is None else before + after
