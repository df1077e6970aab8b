"""The soak: random rollouts over several groups, judged, and what their processes hold measured.

`python -m bed.soak_run` (make soak) runs 200 rollouts. SEQSHIFT_SOAK_ROLLOUTS says how many, SEQSHIFT_SOAK_SEED repeats
a run.
"""

from __future__ import annotations

import os
import pickle
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqshift.cpu_bed.compare import OutputRecord

from bed.fault_matrix import late
from bed.fault_run import CELL_SECONDS, Outcome
from bed.seeds import seed_of
from bed.segments import left_behind, segments
from bed.soak import Draw, Group, Usage, draw, longest_seconds, soak, uncertain
from bed.verify import verify
from bed.waits import longest

SEED, ROLLOUTS = "SEQSHIFT_SOAK_SEED", "SEQSHIFT_SOAK_ROLLOUTS"
SECONDS_PER_ROLLOUT = 40
# Growth is measured after so large a part of an engine's rollouts, and only where there are enough of them.
WARM_UP = 0.4
FEWEST_FOR_GROWTH = 30
MOST_GROWTH = 0.01
# A count that reaches a new height so often keeps growing.
FEWEST_RISES = 3
# Where a token budget cuts a prompt depends on what decodes beside it.
CUT_TOLERANCE = 1e-4


@dataclass
class Found:
    """What a soak has found."""

    rollouts: int = 0
    faults: int = 0
    moved: int = 0
    problems: list[str] = field(default_factory=list)
    growth: list[float] = field(default_factory=list)


def judge(one: Draw, group: Group, ranks: list[Outcome], found: Found) -> None:
    """Checks one rollout."""
    pairs = [[outcome.pair] for outcome in ranks]
    free = [uncertain(one, group, rank) for rank in range(group.dp)]
    tolerance = 0.0 if one.budget is None else CUT_TOLERANCE
    found.rollouts += 1
    found.faults += any(count for outcome in ranks for _, count in outcome.met)
    found.moved += sum(pair.hooked.stats["sequences_moved"] for (pair,) in pairs)
    try:
        # An abort takes effect where the request runs at the next check.
        verify(pairs, recomputed=any(one.aborts), cached=not any(free), logprob_tolerance=tolerance)
        for rank, (pair,) in enumerate(pairs):
            for plain, hooked in zip(pair.plain.outputs, pair.hooked.outputs):
                same = plain.num_cached_tokens == hooked.num_cached_tokens
                assert same or plain.request_id in free[rank], f"rank {rank}: {cached_tokens(plain, hooked)}"
        assert (wrong := late(one.cell, longest([outcome.waits for outcome in ranks]))) == [], wrong
        for name in ("checks", "faults"):
            values = [pair.hooked.stats[name] for (pair,) in pairs]
            assert len(set(values)) == 1, f"{name} differ: {values}"
    except AssertionError as error:
        where = f"rollout {one.number}, {one.cell}, plan {one.plan}, budget {one.budget}, {one.config}"
        found.problems.append(f"{where}: {error}")


def cached_tokens(plain: OutputRecord, hooked: OutputRecord) -> str:
    """How the two differ, in words."""
    return f"request {plain.request_id}: num_cached_tokens: {plain.num_cached_tokens} != {hooked.num_cached_tokens}"


def leaks(counts: list[int]) -> bool:
    """Whether a count taken after each rollout keeps growing.

    What is made once may come at any time, and what a lost device holds stays; a leak comes again.
    """
    rises = sum(later > max(counts[: index + 1]) for index, later in enumerate(counts[1:]))
    half = len(counts) // 2
    return rises >= FEWEST_RISES and min(counts[half:]) > counts[0]


def grown(seen: list[Usage], where: str, found: Found) -> None:
    """Checks what a rank held after each of its rollouts."""
    held = {"handles": [one.handles for one in seen], "threads": [one.threads for one in seen]}
    for what in range(len(seen[0].mock)):
        held[f"live objects of the mock of kind {what}"] = [one.mock[what] for one in seen]
    for name, counts in held.items():
        if leaks(counts):
            found.problems.append(f"{where}: {name} keep growing: {counts}")
    if len(seen) >= FEWEST_FOR_GROWTH:
        begin = int(WARM_UP * len(seen))
        part = max(3, len(seen) // 10)
        before = statistics.median(one.rss for one in seen[begin : begin + part])
        growth = statistics.median(one.rss for one in seen[-part:]) / before - 1
        found.growth.append(growth)
        if growth >= MOST_GROWTH:
            found.problems.append(f"{where}: RSS grew by {growth:.2%}: {[one.rss >> 20 for one in seen]} MiB")


def run_soak(bed: Any, seed: int, rollouts: int, groups: tuple[Group, ...]) -> Found:
    """Shares the rollouts among groups, each one engine start."""
    found = Found()
    before = segments()
    first = 0
    for index, group in enumerate(groups):
        dp = group.dp
        count = (rollouts - first) // (len(groups) - index)
        numbers, first = range(first, first + count), first + count
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            env = {rank: {"SEQSHIFT_MOCK_CONTROL": str(folder / f"control{rank}")} for rank in range(dp)}
            draws = [draw(seed, number, dp) for number in numbers]
            # What a rollout with a lasting fault may take beyond the usual.
            more = sum(longest_seconds(one, group) - CELL_SECONDS for one in draws)
            deadline = 120 + SECONDS_PER_ROLLOUT * len(numbers) + more
            try:
                ranks = bed.run(soak, seed, numbers, group, folder, dp=dp, rank_env=env, deadline=deadline)
            except AssertionError as error:
                # The log of a rank names the rollout that ended it.
                found.problems.append(f"DP={dp}: {error}")
                continue
            for one in draws:
                outcomes = [pickle.loads((folder / f"{one.number}-{rank}").read_bytes()) for rank in range(dp)]
                judge(one, group, outcomes, found)
        for rank, seen in enumerate(ranks):
            grown(seen, f"DP={dp}, rank {rank}", found)
        print(f"DP={dp}: {len(numbers)} rollouts, {len(found.problems)} problems so far", flush=True)
    if left := left_behind(before):
        found.problems.append(f"left in /dev/shm: {left}")
    return found


GROUPS = (Group(2), Group(3, 6, prefix_caching=False), Group(4), Group(2, 6))


def main() -> int:
    """Runs the soak."""
    from seqshift.cpu_bed.ranks import Bed

    seed = seed_of(SEED)
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
