"""What the trigger adds to a step: the all-reduce of "anyone unfinished?" with one slot per rank instead of one int.

Two gloo processes on this machine; prints the median of each size and the difference to one int, and writes
`results/group_vector.json`.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

SIZES = (1, 2, 32, 128, 1024)
ROUNDS = 3000


def measure(rank: int, file: str, answers: multiprocessing.Queue) -> None:
    dist.init_process_group("gloo", f"file://{file}", timedelta(seconds=60), 2, rank)
    medians = {}
    for size in SIZES:
        vector = torch.zeros(size, dtype=torch.int32)
        seconds = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            dist.all_reduce(vector, op=dist.ReduceOp.MAX)
            seconds.append(time.perf_counter() - start)
        medians[size] = statistics.median(seconds)
    dist.destroy_process_group()
    if rank == 0:
        answers.put(medians)


def main() -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "rendezvous")
        ranks = [context.Process(target=measure, args=(rank, file, answers)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        medians = answers.get(timeout=120)
        for rank in ranks:
            rank.join(60)
    for size, seconds in medians.items():
        added = seconds - medians[SIZES[0]]
        print(f"group vector of {size:5} int32: {seconds * 1e6:7.1f} us, {added * 1e6:+7.1f} us against one")
    results = Path(__file__).parents[1] / "results"
    results.mkdir(exist_ok=True)
    (results / "group_vector.json").write_text(json.dumps(medians, indent=2) + "\n")


if __name__ == "__main__":
    main()
