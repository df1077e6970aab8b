"""Random rollouts, many per engine start, each unhooked and hooked, half of them with a random fault.

`python -m bed.soak` (make soak) runs 200 of them over DP 2, 3 and 4 and ends with what has grown.
SEQSHIFT_SOAK_ROLLOUTS says how many, SEQSHIFT_SOAK_SEED repeats a run.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqshift.cpu_bed.engine import make_llm
from seqshift.cpu_bed.ranks import RankContext

from bed import rollout, workload
from bed.fault_cells import LOAD, ON, START, Cell, matrix
from bed.fault_run import CONFIG, Outcome, run_cell
from bed.mock_control import MockControl
from bed.verify import verify
from bed.workload import Workload

SEED, ROLLOUTS = "SEQSHIFT_SOAK_SEED", "SEQSHIFT_SOAK_ROLLOUTS"
SECONDS_PER_ROLLOUT = 40
# Growth is measured after so large a part of an engine's rollouts, and only where there are enough of them.
WARM_UP = 0.4
FEWEST_FOR_GROWTH = 30
MOST_GROWTH = 0.01


@dataclass(frozen=True)
class Draw:
    """One random rollout."""

    number: int
    works: tuple[tuple[tuple[int, int, dict], ...], ...]
    """By DP rank: (prompt length, output length, sampling options) of each request."""
    config: dict[str, Any]
    plan: str | None
    cell: Cell


@dataclass
class Usage:
    """What a rank holds between two rollouts."""

    rss: int
    handles: int
    threads: int
    mock: tuple[int, ...]


@dataclass
class Found:
    """What a soak has found."""

    rollouts: int = 0
    faults: int = 0
    moved: int = 0
    problems: list[str] = field(default_factory=list)
    growth: list[float] = field(default_factory=list)


def options(source: random.Random) -> dict[str, Any]:
    """Sampling parameters of one request; whatever is random is seeded."""
    chosen: dict[str, Any] = {"logprobs": source.choice((None, None, 0, 2))}
    if source.random() < 0.5:
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
        {"min_tokens": 4, "ignore_eos": False},
    ]
    for one in source.sample(extra, source.choice((0, 0, 1, 2))):
        chosen.update(one)
    if chosen.get("detokenize") is False:
        chosen.pop("stop", None)
    if source.random() < 0.1:
        chosen["n"] = 2
    return chosen


def draw(seed: int, number: int, dp: int, slots: int) -> Draw:
    """Rollout `number`; the same on every rank."""
    source = random.Random(f"{seed}/{number}/{dp}")
    busiest = source.randrange(dp)
    works = []
    for rank in range(dp):
        few = 0 if source.random() < 0.1 else source.randint(1, 4)
        requests = source.randint(4, 8) if rank == busiest else few
        longest = 70 if rank == busiest else source.choice((8, 40, 70))
        works.append(
            tuple(
                (source.choice((3, 40, 130, 300)), source.randint(2, longest), options(source)) for _ in range(requests)
            )
        )
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
        cell = source.choice([c for c in matrix(dp) if c.outcome == ON and c.step != START])
    return Draw(number, tuple(works), config, plan, cell)


def work_of(one: Draw, rank: int) -> Workload:
    """What a rank passes to generate()."""
    requests = one.works[rank]
    return Workload(
        tuple(workload.prompt(rank, 1000 * one.number + i, length) for i, (length, _, _) in enumerate(requests)),
        tuple(workload.sampling(tokens, **chosen) for _, tokens, chosen in requests),
    )


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


def soak(ctx: RankContext, seed: int, numbers: range, slots: int, folder: Path) -> list[Usage]:
    """Runs these rollouts in a rank. What it saw goes to files, so that it does not count as growth."""
    control = MockControl(Path(os.environ["SEQSHIFT_MOCK_CONTROL"]))
    with rollout.hooks(CONFIG):
        llm = make_llm(ctx, max_num_seqs=slots, prefix_caching=slots == 16)
    seen: list[Usage] = []
    for number in numbers:
        one = draw(seed, number, ctx.dp_size, slots)
        work = work_of(one, ctx.dp_rank)
        (plain,) = rollout.run_rollouts(ctx, llm, [work], hooked=False)
        outcome = run_cell(ctx, llm, one.cell, plain, control, work=work, config=one.config, plan=one.plan)
        (folder / f"{number}-{ctx.rank}").write_bytes(pickle.dumps(outcome))
        del plain, outcome
        seen.append(usage(seen[0] if seen else None))
    return seen


def judge(one: Draw, ranks: list[Outcome], found: Found) -> None:
    """Checks one rollout."""
    pairs = [[outcome.pair] for outcome in ranks]
    found.rollouts += 1
    found.faults += any(count for outcome in ranks for _, count in outcome.met)
    found.moved += sum(pair.hooked.stats["sequences_moved"] for (pair,) in pairs)
    try:
        verify(pairs)
        for name in ("checks", "faults"):
            values = [pair.hooked.stats[name] for (pair,) in pairs]
            assert len(set(values)) == 1, f"{name} differ: {values}"
    except AssertionError as error:
        found.problems.append(f"rollout {one.number}, {one.cell}, plan {one.plan}, {one.config}: {error}")


def grown(seen: list[Usage], where: str, found: Found) -> None:
    """Checks what a rank held after each of its rollouts."""
    first, last = seen[0], seen[-1]
    for name in ("handles", "threads"):
        if getattr(last, name) > getattr(first, name):
            values = [getattr(one, name) for one in seen]
            found.problems.append(f"{where}: {name} grew from {values[0]} to {values[-1]}: {values}")
    if last.mock != first.mock:
        found.problems.append(f"{where}: live objects of the mock: {first.mock} after the first, {last.mock} now")
    if len(seen) >= FEWEST_FOR_GROWTH:
        begin = int(WARM_UP * len(seen))
        part = max(3, len(seen) // 10)
        before = statistics.median(one.rss for one in seen[begin : begin + part])
        growth = statistics.median(one.rss for one in seen[-part:]) / before - 1
        found.growth.append(growth)
        if growth >= MOST_GROWTH:
            found.problems.append(f"{where}: RSS grew by {growth:.2%}: {[one.rss >> 20 for one in seen]} MiB")


def run_soak(bed: Any, seed: int, rollouts: int, groups: tuple[tuple[int, int], ...]) -> Found:
    """Shares the rollouts among groups of (DP ranks, max_num_seqs), each one engine start."""
    found = Found()
    before = set(os.listdir("/dev/shm"))
    first = 0
    for index, (dp, slots) in enumerate(groups):
        count = (rollouts - first) // (len(groups) - index)
        numbers, first = range(first, first + count), first + count
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            env = {rank: {"SEQSHIFT_MOCK_CONTROL": str(folder / f"control{rank}")} for rank in range(dp)}
            deadline = 120 + SECONDS_PER_ROLLOUT * len(numbers)
            ranks = bed.run(soak, seed, numbers, slots, folder, dp=dp, rank_env=env, deadline=deadline)
            for number in numbers:
                outcomes = [pickle.loads((folder / f"{number}-{rank}").read_bytes()) for rank in range(dp)]
                judge(draw(seed, number, dp, slots), outcomes, found)
        for rank, seen in enumerate(ranks):
            grown(seen, f"DP={dp}, rank {rank}", found)
        print(f"DP={dp}: {len(numbers)} rollouts, RSS {[seen[-1].rss >> 20 for seen in ranks]} MiB", flush=True)
    if left := set(os.listdir("/dev/shm")) - before:
        found.problems.append(f"left in /dev/shm: {left}")
    return found


def new_seed() -> int:
    """The seed that the environment gives, or a new one; printed, since it repeats a run."""
    seed = int(os.environ.get(SEED) or time.time_ns() % 1_000_000)
    print(f"{SEED}={seed}", flush=True)
    return seed


GROUPS = ((2, 16), (3, 6), (4, 16))


def main() -> int:
    """Runs the soak."""
    from seqshift.cpu_bed.ranks import Bed

    seed = new_seed()
    bed = Bed().start()
    try:
        found = run_soak(bed, seed, int(os.environ.get(ROLLOUTS) or 200), GROUPS)
    finally:
        bed.stop()
    growth = f", RSS grew by at most {max(found.growth):.2%}" if found.growth else ""
    print(f"{found.rollouts} rollouts, {found.faults} with a fault that was met, {found.moved} sequences moved{growth}")
    print("\n".join(found.problems) or "no difference, nothing left")
    return int(bool(found.problems))


if __name__ == "__main__":
    sys.exit(main())
