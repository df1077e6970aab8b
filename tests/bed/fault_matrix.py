"""Runs the fault matrix, several cells per engine start, and judges every cell.

`python -m bed.fault_matrix` (make faults) runs all of it and ends with a table.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bed.fault_cells import DEADLINE_SECONDS, OFF, ON, STOPS, Cell, matrix, sample
from bed.fault_run import Outcome, run_cells
from bed.seeds import seed_of
from bed.verify import EMPTY, total, verify
from bed.waits import limit, longest

SEED = "SEQSHIFT_FAULTS_SEED"
# Of one engine start, so that a failure that ends it costs few cells.
CELLS_PER_ENGINE = 48
SECONDS_PER_CELL = 12
SECONDS_PER_ENGINE = 120


@dataclass
class Verdict:
    """What is wrong with a cell; nothing, if all is well."""

    wrong: list[str]
    # The longest time that an exchange with the group took, from when all ranks had entered; within the deadline.
    seconds: float = 0.0


def run_matrix(bed: Any, cells: list[Cell], dp: int, tp: int = 1) -> dict[Cell, Verdict]:
    """Runs and judges cells."""
    found: dict[Cell, Verdict] = {}
    for first in range(0, len(cells), CELLS_PER_ENGINE):
        part = cells[first : first + CELLS_PER_ENGINE]
        with tempfile.TemporaryDirectory() as folder:
            env = {rank: {"SEQSHIFT_MOCK_CONTROL": str(Path(folder) / f"rank{rank}")} for rank in range(dp * tp)}
            deadline = SECONDS_PER_ENGINE + SECONDS_PER_CELL * len(part)
            try:
                ranks = bed.run(run_cells, part, dp=dp, tp=tp, rank_env=env, deadline=deadline)
            except AssertionError as error:
                # One of these cells ended the engine; the log names it.
                found.update((cell, Verdict([f"the engine start failed: {error}"])) for cell in part)
                continue
        for index, cell in enumerate(part):
            outcomes = [rank[index] for rank in ranks]
            took = longest([outcome.waits for outcome in outcomes], tp)
            found[cell] = Verdict(judge(cell, outcomes, tp) + late(cell, took), max(took))
    return found


def late(cell: Cell, took: list[float]) -> list[str]:
    """The processes in which an exchange took longer than it may."""
    most = limit(DEADLINE_SECONDS, cell.outcome == STOPS, cell.precopy)
    return [f"rank {rank}: an exchange took {s:.2f} s, not {most:.2f}" for rank, s in enumerate(took) if s > most]


def judge(cell: Cell, ranks: list[Outcome], tp: int) -> list[str]:
    """What is wrong with one cell."""
    hit = cell.rank * tp + cell.shard
    wrong = []
    for rank, outcome in enumerate(ranks):
        wrong += [f"rank {rank}: was not met: {name}" for name, count in outcome.met if count == 0]
    if not any(outcome.met for outcome in ranks):
        wrong.append("nothing was injected")
    if cell.outcome == STOPS:
        return wrong + stopped(cell, ranks, hit, tp)
    if any(outcome.joined != (cell.outcome == ON) for outcome in ranks):
        wrong.append(f"joined: {[outcome.joined for outcome in ranks]}")
    pairs = [[outcome.pair] for outcome in ranks]
    try:
        verify(pairs, tp)
    except AssertionError as error:
        wrong.append(str(error))
    stats = [outcome.pair.hooked.stats for outcome in ranks]
    if cell.outcome == OFF:
        if any(one["checks"] for one in stats):
            wrong.append("checks were made by a group that is off")
        return wrong
    for name in ("checks", "plans", "faults"):
        values = [one[name] for one in stats]
        if len(set(values)) != 1:
            wrong.append(f"{name} differ: {values}")
    for shard in range(1, tp):
        for name in ("sequences_moved", "sequences_received", "moves_rejected", "moves_rolled_back"):
            if [one[name] for one in stats[shard::tp]] != [one[name] for one in stats[::tp]]:
                wrong.append(f"{name} differ between shards: {[one[name] for one in stats]}")
    if cell.counted and not stats[hit][cell.counted]:
        wrong.append(f"{cell.counted} is 0 on the rank that was hit")
    limit = 3 if cell.lasting else 1000
    expected = int(stats[0]["faults"] >= limit)
    if any(outcome.warnings != expected for outcome in ranks):
        wrong.append(f"{[o.warnings for o in ranks]} warnings that it is off, after {stats[0]['faults']} faults")
    if not cell.lasting and total(pairs, "sequences_moved") < cell.moves * len(pairs):
        wrong.append(f"only {total(pairs, 'sequences_moved')} sequences moved")
    return wrong


def stopped(cell: Cell, ranks: list[Outcome], hit: int, tp: int) -> list[str]:
    """What is wrong with a cell whose rollout must end on all ranks."""
    wrong = []
    for rank, outcome in enumerate(ranks):
        if outcome.error is None:
            wrong.append(f"rank {rank} went on")
            continue
        interrupted = "Ctrl-C" in cell.fault and rank == hit
        # Every survivor names it, whichever shard it is of. Where votes among shards are lost, other ranks miss the
        # shard that waits for them.
        votes = any(getattr(one, "kind", None) == "Shard" for one in cell.injections)
        shard = f", TP shard {cell.shard}" if tp > 1 and not votes else ""
        named = "KeyboardInterrupt" if interrupted else f"rank {cell.rank}{shard}"
        if named not in outcome.error and rank != hit:
            wrong.append(f"rank {rank} does not say {named!r}: {outcome.error}")
        if interrupted and named not in outcome.error:
            wrong.append(f"rank {rank} was not interrupted: {outcome.error}")
        if outcome.foreign:
            wrong.append(f"rank {rank} still has {outcome.foreign}")
        left = {name: outcome.after[name] for name in EMPTY if outcome.after[name]}
        if left:
            wrong.append(f"rank {rank}: left behind: {left}")
    if len({outcome.after.get("free_blocks") for outcome in ranks}) != 1:
        wrong.append(f"free blocks differ: {[outcome.after.get('free_blocks') for outcome in ranks]}")
    return wrong


def table(found: dict[Cell, Verdict]) -> str:
    """Cells by step and outcome, the longest exchange of each step, and the cells that failed."""
    counts = Counter((cell.step, cell.outcome) for cell in found)
    steps = list(dict.fromkeys(cell.step for cell in found))
    lines = [f"{'step':10}" + "".join(f"{name:>22}" for name in (ON, OFF, STOPS, "longest exchange"))]
    for step in steps:
        seconds = max(verdict.seconds for cell, verdict in found.items() if cell.step == step)
        line = "".join(f"{counts[step, name]:22}" for name in (ON, OFF, STOPS))
        lines.append(f"{step:10}{line}{seconds:20.2f} s")
    bad = {cell: verdict.wrong for cell, verdict in found.items() if verdict.wrong}
    lines.append(f"{len(found)} cells, {len(bad)} failed")
    lines += [f"FAILED {cell}\n    " + "\n    ".join(wrong) for cell, wrong in bad.items()]
    return "\n".join(lines)


# Ranks and shards, and how many cells: all, one of each fault, or so many of those.
GROUPS = ((2, 1, "all"), (2, 2, "each"), (3, 1, "each"), (4, 1, 60))


def main() -> int:
    """Runs the whole matrix."""
    from seqshift.cpu_bed.ranks import Bed

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="cells whose name contains one of these")
    parser.add_argument("--dp", type=int, help="only groups of so many ranks")
    parser.add_argument("--tp", type=int, help="only groups of so many shards")
    options = parser.parse_args()
    seed, failed = seed_of(SEED), 0
    bed = Bed().start()
    try:
        for dp, tp, which in GROUPS:
            if options.dp not in (None, dp) or options.tp not in (None, tp):
                continue
            cells = matrix(dp, tp)
            if which != "all":
                cells = sample(cells, seed, None if which == "each" else which)
            cells = [cell for cell in cells if any(text in str(cell) for text in options.only)]
            began = time.monotonic()
            found = run_matrix(bed, cells, dp, tp)
            print(f"DP={dp} TP={tp}: {time.monotonic() - began:.0f} s\n{table(found)}", flush=True)
            failed += sum(bool(verdict.wrong) for verdict in found.values())
    finally:
        bed.stop()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
