"""Random rollouts in a rank, many per engine start, each unhooked and hooked, half of them with a random fault."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import pickle
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqshift.cpu_bed.engine import make_llm
from seqshift.cpu_bed.ranks import RankContext

from bed import rollout, workload
from bed.fault_cells import DEADLINE_SECONDS, LOAD, ON, START, Cell, Mock, matrix
from bed.fault_run import CELL_SECONDS, CONFIG, run_cell
from bed.mock_control import Action, MockControl
from bed.workload import Workload

# Tokens per step where none are drawn: vLLM's own number, which no rollout needs.
PLENTY = 8192
# Output length of requests that are aborted, and what keeps them from ending before.
ABORTED_TOKENS = 500
ENDLESS = {"ignore_eos": True, "stop": [], "stop_token_ids": [], "guided": None}


@dataclass(frozen=True)
class Group:
    """An engine start: DP ranks, and the engines' options."""

    dp: int
    max_num_seqs: int = 16
    prefix_caching: bool = True


@dataclass(frozen=True)
class Draw:
    """One random rollout."""

    number: int
    works: tuple[tuple[tuple[int, int, dict], ...], ...]
    """By DP rank: (prompt length, output length, sampling options) of each request."""
    aborts: tuple[dict[int, tuple[int, ...]], ...]
    """By DP rank: number of steps -> requests that are aborted after them, long before their end."""
    config: dict[str, Any]
    plan: str | None
    cell: Cell
    alike: int
    """So many requests in a row begin with the same tokens."""
    budget: int | None
    """Tokens per step."""


@dataclass
class Usage:
    """What a rank holds between two rollouts."""

    rss: int
    handles: int
    threads: int
    mock: tuple[int, ...]


def options(source: random.Random, greedy: bool) -> dict[str, Any]:
    """Sampling parameters of one request; whatever is random is seeded. `guided` is a grammar."""
    chosen: dict[str, Any] = {"logprobs": source.choice((None, None, 0, 2))}
    if not greedy and source.random() < 0.5:
        chosen.update(temperature=source.choice((0.7, 1.0, 1.3)), seed=source.randrange(1 << 30))
        chosen.update(source.choice(({}, {"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.02})))
    extra = [
        {"repetition_penalty": 1.2},
        {"presence_penalty": 0.8, "frequency_penalty": 0.3},
        {"logit_bias": {source.randrange(10, 900): 4.0}},
        {"allowed_token_ids": list(range(source.randrange(10, 90), 800, 3))},
        {"stop": [f"{source.randrange(10)} t{source.randrange(10)}"]},
        {"stop_token_ids": [source.randrange(10, 900)]},
        {"detokenize": False},
        {"min_tokens": 2, "ignore_eos": False},
        {"bad_words": [f"t{i}" for i in range(source.randrange(10, 300), 600)]},
        {"prompt_logprobs": source.choice((0, 2))},
        {"guided": source.choice(({"regex": "(t[0-9]){3,50}"}, {"choice": ["t5t6t5t6t7", "t7t8t9"]}))},
    ]
    for one in source.sample(extra, source.choice((0, 0, 1, 2))):
        chosen.update(one)
    if chosen.get("detokenize") is False:
        chosen.pop("stop", None)
    if "guided" in chosen:
        # What a grammar allows must not be forbidden.
        chosen.pop("allowed_token_ids", None)
        chosen.pop("bad_words", None)
    if "seed" in chosen and source.random() < 0.25:
        chosen["n"] = source.choice((2, 3, 5))
    if source.random() < 0.2:
        chosen["output_kind"] = "DELTA"
    return chosen


def draw(seed: int, number: int, dp: int) -> Draw:
    """Rollout `number`; the same on every rank."""
    source = random.Random(f"{seed}/{number}/{dp}")
    # vLLM's CPU engine cannot compute the prompt of a seeded request in chunks.
    budget = source.choice((None, None, None, 32, 100))
    busiest = source.randrange(dp)
    works, aborts = [], []
    some_are_aborted = source.random() < 0.3
    for rank in range(dp):
        few = 0 if source.random() < 0.1 else source.randint(1, 4)
        requests = source.randint(4, 8) if rank == busiest else few
        longest = 70 if rank == busiest else source.choice((8, 40, 70))
        mine = [
            (source.choice((3, 40, 130, 300)), source.randint(2, longest), options(source, budget is not None))
            for _ in range(requests)
        ]
        ends: dict[int, tuple[int, ...]] = {}
        for index, (length, _, chosen) in enumerate(mine):
            if some_are_aborted and source.random() < 0.3 and "n" not in chosen:
                # So long that it runs then, or waits, wherever it has been moved to.
                mine[index] = (length, ABORTED_TOKENS, {**chosen, **ENDLESS})
                step = source.randint(1, 60)
                ends[step] = (*ends.get(step, ()), index)
        works.append(tuple(mine))
        aborts.append(ends)
    config = {
        **CONFIG,
        "check_interval": source.randint(2, 9),
        "graph_batch_sizes": source.choice(([16, 8, 4, 2, 1], [16, 12, 8, 6, 4, 3, 2, 1], [8, 4], [16, 2])),
        "trigger": source.choice(("interval", "interval", "adaptive")),
        "verify_kv": source.random() < 0.8,
        "max_failures": source.choice((1, 3, 1000)),
    }
    plan = source.choice((None, None, "shuffle", "shuffle", "pingpong"))
    cell = Cell(LOAD, "no fault", 0, 0, ())
    if source.random() < 0.5:
        # What is closed with an error stays open in the mock; an interrupt stops a rollout.
        fitting = [c for c in matrix(dp) if c.outcome == ON and c.step != START]
        # Without a digest nobody sees a wrong byte of KV; so it is documented.
        cell = source.choice([c for c in fitting if config["verify_kv"] or not changes_kv(c)])
    alike = source.choice((1, 1, 3))
    return Draw(number, tuple(works), tuple(aborts), config, plan, cell, alike, budget)


def changes_kv(cell: Cell) -> bool:
    """Whether the fault is wrong bytes of KV rather than missing ones."""
    return any(isinstance(one, Mock) and one.action is Action.CORRUPT for one in cell.injections)


def work_of(one: Draw, rank: int) -> Workload:
    """What a rank passes to generate()."""
    requests = one.works[rank]
    longest = max((length for length, _, _ in requests), default=0)
    return Workload(
        tuple(
            workload.prompt(rank, 1000 * one.number + i // one.alike, longest)[:length]
            for i, (length, _, _) in enumerate(requests)
        ),
        tuple(sampling(tokens, **chosen) for _, tokens, chosen in requests),
        aborts=one.aborts[rank],
        budget=one.budget,
    )


def uncertain(one: Draw, group: Group, rank: int) -> set[str]:
    """Ids of requests whose `num_cached_tokens` depends on what has moved before they began.

    They share a prompt with another request or are several samples, and not all of the rank's begin in its first step.
    """
    counts = [chosen.get("n", 1) for _, _, chosen in one.works[rank]]
    tokens = sum(count * length for count, (length, _, _) in zip(counts, one.works[rank]))
    at_once = sum(counts) <= group.max_num_seqs and tokens <= (one.budget or PLENTY)
    if at_once or not group.prefix_caching:
        return set()
    return {str(index) for index, count in enumerate(counts) if one.alike > 1 or count > 1}


def longest_steps(one: Draw, group: Group) -> int:
    """So many steps the rollout takes at most, if a rank keeps its slots full while requests wait.

    Graham's bound for list scheduling (1966): all the work over the slots, and the longest request. It is taken over
    all ranks, since a plan may send everything to one of them.
    """
    lengths, prompts = [0], 0
    for rank, requests in enumerate(one.works):
        ends = {index: step for step, indices in one.aborts[rank].items() for index in indices}
        for index, (prompt, tokens, chosen) in enumerate(requests):
            samples = chosen.get("n", 1)
            # An abort is final where the request runs with the next check.
            lengths += [min(tokens, ends.get(index, tokens) + one.config["check_interval"])] * samples
            prompts += samples * prompt
    # Of a step's tokens, those that the slots' decoding does not need are left for prompts.
    chunks = prompts / ((one.budget or PLENTY) - group.max_num_seqs)
    return math.ceil(sum(lengths) / group.max_num_seqs + max(lengths) + chunks)


def longest_seconds(one: Draw, group: Group) -> int:
    """How long the hooked rollout may take: a fault that lasts may cost every check its deadline until it is off."""
    if not one.cell.lasting:
        return CELL_SECONDS
    every = 1 if one.config["trigger"] == "adaptive" else one.config["check_interval"]
    checks = longest_steps(one, group) // every
    return CELL_SECONDS + DEADLINE_SECONDS * min(checks, one.config["max_failures"])


def sampling(tokens: int, guided: dict[str, Any] | None = None, output_kind: str | None = None, **chosen: Any) -> Any:
    """SamplingParams of what `options` has drawn."""
    from vllm.sampling_params import GuidedDecodingParams, RequestOutputKind

    if output_kind is not None:
        chosen["output_kind"] = RequestOutputKind[output_kind]
    if guided is not None:
        chosen["guided_decoding"] = GuidedDecodingParams(**guided)
    return workload.sampling(tokens, **chosen)


def usage(baseline: Usage | None) -> Usage:
    """What this rank holds now; waits a moment for threads of what was closed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    until = time.monotonic() + 10
    while True:
        threads = len(os.listdir("/proc/self/task"))
        if baseline is None or threads <= baseline.threads or time.monotonic() > until:
            break
        os.sched_yield()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Usage(pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd")), threads, mock_live())


def mock_live() -> tuple[int, ...]:
    """Live objects of the mock in this process, by kind."""
    import seqshift

    library = ctypes.CDLL(str(Path(seqshift.__file__).with_name("_mock") / "libascendcl.so"))
    count = library.seqshiftMockLive
    count.restype = ctypes.c_int64
    return tuple(count(what) for what in range(7))


def soak(ctx: RankContext, seed: int, numbers: range, group: Group, folder: Path) -> list[Usage]:
    """Runs these rollouts in a rank. What it saw goes to files, so that it does not count as growth."""
    control = MockControl(Path(os.environ["SEQSHIFT_MOCK_CONTROL"]))
    with rollout.hooks(CONFIG):
        llm = make_llm(ctx, max_num_seqs=group.max_num_seqs, prefix_caching=group.prefix_caching)
    seen: list[Usage] = []
    for number in numbers:
        one = draw(seed, number, ctx.dp_size)
        work = work_of(one, ctx.dp_rank)
        (plain,) = rollout.run_rollouts(ctx, llm, [work], hooked=False)
        options = {"config": one.config, "plan": one.plan, "seconds": longest_seconds(one, group)}
        outcome = run_cell(ctx, llm, one.cell, plain, control, work=work, **options)
        (folder / f"{number}-{ctx.rank}").write_bytes(pickle.dumps(outcome))
        del plain, outcome
        seen.append(usage(seen[0] if seen else None))
    return seen
