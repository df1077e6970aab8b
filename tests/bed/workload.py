"""Workloads: what each DP rank passes to `generate`, by name.

A builder takes a DP rank and returns a `Workload`; it is a pure function of its arguments, so that every process
builds the same. It runs in a rank, since SamplingParams is vLLM's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from seqshift.cpu_bed.model import EOS_TOKEN_ID, VOCABULARY

# Prompts and words keep clear of the special token.
FIRST_TOKEN = 2


@dataclass(frozen=True)
class Workload:
    """Prompts (token ids, text or vLLM's own form) of one rank with the SamplingParams of each."""

    prompts: tuple[Any, ...]
    params: tuple[Any, ...]
    # Further arguments of `generate`.
    call: dict[str, Any] = field(default_factory=dict)
    # Number of steps -> indices of requests that are aborted after them.
    aborts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    # Tokens that a step may compute, where these are fewer than the engine's own.
    budget: int | None = None

    def as_vllm(self) -> tuple[list[Any], list[Any]]:
        """Arguments of `generate`; the parameters are copies, since vLLM changes them."""
        prompts = [{"prompt_token_ids": list(p)} if isinstance(p, tuple) else p for p in self.prompts]
        return prompts, [p.clone() for p in self.params]

    def with_params(self, **changes: Any) -> Workload:
        """The same prompts with some parameters of every request changed."""
        changed = []
        for params in self.params:
            copy = params.clone()
            for name, value in changes.items():
                setattr(copy, name, value)
            changed.append(copy)
        return replace(self, params=tuple(changed))


def prompt(rank: int, index: int, length: int) -> tuple[int, ...]:
    """A prompt of random tokens of its own; no two share a prefix."""
    source = random.Random(f"{rank}/{index}/{length}")
    return tuple(source.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(length))


def text(rank: int, index: int, length: int) -> str:
    """The same as text."""
    return " ".join(f"t{token}" for token in prompt(rank, index, length))


def sampling(tokens: int, **options: Any) -> Any:
    """SamplingParams of a request that ends after exactly `tokens` tokens unless a stop condition ends it."""
    from vllm import SamplingParams

    return SamplingParams(**{"max_tokens": tokens, "ignore_eos": True, "temperature": 0.0, **options})


def lengths(rank: int, long: int = 16, short: int = 4, first: int = 150, step: int = 10, few: int = 20) -> list[int]:
    """Output lengths of the main workload: rank 0 holds the long tail, every other rank `short` short ones."""
    return [first + step * i for i in range(long)] if rank == 0 else [few] * short


def prompt_length(index: int) -> int:
    """Every fourth prompt spans three KV blocks of 128 tokens."""
    return 300 if index % 4 == 3 else 24 + 5 * index


def main(rank: int, **options: Any) -> Workload:
    """The main workload: gears [16, 8, 4, 2, 1] and a check every 20 steps move exactly 8 sequences at DP=2.

    Most prompts have 300 tokens, so that whichever move, some carry three or more KV blocks. `options` are sampling
    parameters of every request; greedy without any.
    """
    outputs = lengths(rank)
    return Workload(
        tuple(prompt(rank, i, 300 if i % 4 else 24 + 5 * i) for i in range(len(outputs))),
        tuple(sampling(n, **options) for n in outputs),
    )


def given(rank: int, outputs: list[list[int]], prompts: int = 30, **options: Any) -> Workload:
    """Requests of the lengths `outputs[rank]`, with prompts of `prompts` tokens."""
    return Workload(
        tuple(prompt(rank, i, prompts) for i in range(len(outputs[rank]))),
        tuple(sampling(n, **options) for n in outputs[rank]),
    )


def repeated(rank: int, outputs: list[list[int]], copies: int = 4, prompts: int = 200) -> Workload:
    """`given`, each prompt for `copies` requests, as verl repeats a prompt instead of asking for n > 1."""
    return Workload(
        tuple(prompt(rank, i // copies, prompts) for i in range(len(outputs[rank]))),
        tuple(sampling(n, logprobs=1) for n in outputs[rank]),
    )


def queued(rank: int) -> Workload:
    """Eight requests on rank 0; on 1, two of four slots are free after step 10, for two that wait and may not move."""
    work = given(rank, [[80] * 8, [60, 60, 10, 10, 20, 20]])
    for params in work.params[4:] if rank > 0 else ():
        params.prompt_logprobs = 0
    return work


def cached(rank: int) -> Workload:
    """Rank 0 has many; on 1 the last one waits for blocks to compute a long prompt anew that running ones hold."""
    if rank == 0:
        return given(rank, [[95] * 11])
    begin = prompt(rank, 77, 897)
    prompts = tuple(begin + prompt(rank, i, 5) for i in range(3))
    return Workload(
        (*prompts[:2], prompt(rank, 3, 40), prompts[2]),
        (sampling(20), sampling(80), sampling(20), sampling(10, prompt_logprobs=0)),
    )


def staggered(rank: int) -> Workload:
    """Parents of five samples that end at random lengths and do not all begin at once."""
    stop = list(range(5, 22))
    return Workload(
        tuple(prompt(rank, i, 280) for i in range(0 if rank else 4)),
        tuple(
            sampling(110, n=5, temperature=1.0, seed=100 + i, logprobs=1, stop_token_ids=stop)
            for i in range(0 if rank else 4)
        ),
    )


def compact(rank: int) -> Workload:
    """The main workload with short prompts: fewer KV blocks than the rows of the block table held before."""
    outputs = lengths(rank)
    return Workload(
        tuple(prompt(rank, 100 + i, 20) for i in range(len(outputs))),
        tuple(sampling(n) for n in outputs),
    )


def shared(rank: int) -> Workload:
    """Prompts of 290 tokens of which the first 280 are the same for all on a rank: they share two KV blocks."""
    head = prompt(rank, 0, 280)
    return Workload(
        tuple(head + prompt(rank, i, 10) for i in range(8)),
        tuple(sampling(60 + 10 * i, logprobs=1) for i in range(8)),
    )


def nothing(rank: int, empty: int = 1) -> Workload:
    """The main workload, with no request at all on one rank."""
    return Workload((), ()) if rank == empty else main(rank)


def busy(rank: int, requests: int = 8, first: int = 60, step: int = 9, **options: Any) -> Workload:
    """Requests on every rank, of staggered lengths: for forced plans, which move in all directions."""
    outputs = [first + step * i + 4 * rank for i in range(requests)]
    return Workload(
        tuple(prompt(rank, i, prompt_length(i)) for i in range(requests)),
        tuple(sampling(n, **options) for n in outputs),
    )


def seeded(rank: int, base: Any = busy, one_seed: bool = False) -> Workload:
    """Temperature 1 with a seed per request, or the same seed for all."""
    work = base(rank, temperature=1.0, logprobs=1)
    for index, params in enumerate(work.params):
        params.seed = 4711 if one_seed else 1000 * rank + index
    return work


def several(rank: int, n: int = 4) -> Workload:
    """n completions per prompt, seeded; half of the prompts fill more than one block, which the children share."""
    return Workload(
        tuple(prompt(rank, i, 280 if i % 2 else 40) for i in range(3)),
        tuple(sampling(70 + 20 * i, n=n, temperature=1.0, seed=50 * rank + i, logprobs=1) for i in range(3)),
    )


def mixed(rank: int) -> Workload:
    """Every request with sampling parameters of its own, different ones on each rank, and every field in use."""
    shift = 10 * rank
    some = list(range(100 + shift, 400 + shift, 3))
    table = [
        {"temperature": 0.7, "seed": 1 + rank, "top_k": 20, "logprobs": 2},
        {"temperature": 1.3, "seed": 2 + rank, "top_p": 0.8, "min_p": 0.01, "logprobs": 0},
        {"repetition_penalty": 1.3 + 0.1 * rank, "logprobs": 2},
        {"presence_penalty": 0.9, "frequency_penalty": 0.4 + 0.1 * rank, "logprobs": None},
        {"ignore_eos": False, "min_tokens": 70 + rank, "logit_bias": {EOS_TOKEN_ID: 30.0}, "logprobs": 2},
        {"stop_token_ids": [5 + rank, 900], "logit_bias": {5 + rank: 3.0}, "temperature": 1.0, "seed": 11},
        {"stop": [f"t{31 + rank} t", "7 t9"], "temperature": 1.0, "seed": 12, "logprobs": 0},
        {"logit_bias": {40 + rank: 4.0, 41: -100.0}, "logprobs": 2},
        {"allowed_token_ids": some, "temperature": 1.0, "seed": 13, "logprobs": 2},
        {"bad_words": [f"t{i}" for i in range(50 + rank, 300)], "logprobs": 0},
        {"prompt_logprobs": 2, "logprobs": 2},
        {"detokenize": False, "logprobs": 0},
        {"skip_special_tokens": False, "spaces_between_special_tokens": False, "include_stop_str_in_output": True,
         "stop": [" t77"], "temperature": 1.0, "seed": 14},
        {"temperature": 1.0, "seed": 15, "allowed_token_ids": some[::2], "logit_bias": {some[0]: 2.0}},
        {"temperature": 1.0, "seed": 16, "n": 2, "logprobs": 1},
    ]  # fmt: skip
    outputs = [90 + 7 * i + shift for i in range(len(table))]
    return Workload(
        tuple(prompt(rank, i, prompt_length(i)) for i in range(len(table))),
        tuple(sampling(n, **options) for n, options in zip(outputs, table)),
    )


def verl(rank: int) -> Workload:
    """What verl's vllm_rollout_spmd asks for: n=1, logprobs=0, no detokenizer, unseeded temperature 1."""
    return main(rank, temperature=1.0, logprobs=0, detokenize=False)


def texts(rank: int) -> Workload:
    """Text prompts: RequestOutput.prompt is kept."""
    outputs = lengths(rank, long=8, first=60, step=8)
    return Workload(
        tuple(text(rank, i, 30 + 40 * (i % 4)) for i in range(len(outputs))),
        tuple(sampling(n) for n in outputs),
    )


def stopping(rank: int, stops: dict[int, Any] | None = None) -> Workload:
    """Greedy requests of which some end by a stop string, a stop token or EOS before their length.

    `stops[index]` are sampling parameters of that request of rank 0 (`stop`, `stop_token_ids`, ...); a test takes
    them from an earlier output, so that the stop lies where it wants it.
    """
    work = main(rank)
    if rank == 0:
        for index, options in (stops or {}).items():
            params = list(work.params)
            params[index] = sampling(lengths(0)[index], **options)
            work = replace(work, params=tuple(params))
    return work
