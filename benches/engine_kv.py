"""The pause of a check that moves two sequences, against a plain copy of the same bytes, on the real engine at DP=2.

Per size a group of two ranks decodes two sequences of 64 layers in bf16; at every third step the forced plan sends
both to the other rank. The pause is that of the whole check on the busier rank (load, plan, capture, transfer, digest,
commit, and the Python around them), from when both ranks have come to it. Blocks are adjacent, as in a fresh cache.
The same rollout once more without hooks, in the same ranks, has a yardstick where the checks were: the published way
in torch, which gathers counts, pickles each request to its new rank, indexes blocks per layer, stacks them, sends once
per sequence, blocking, and assigns by index at the other end (what it does to the requests is left out). Last comes a
plain copy of the same bytes: both sequences together, one thread, buffers out of the cache.

Prints one JSON document; exits with 1 if a bound does not hold.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import time

from kv_rollout import MIB, SEQUENCES, STEPS_BETWEEN_CHECKS, Rollout, Size
from seqshift.cpu_bed.ranks import Bed, RankContext

REPEATS = 7
# Rollouts of the smallest size, whose times differ most.
SMALL_TIMES = 3
# Larger than the last-level cache.
FLUSH_BYTES = 256 << 20
# Pause over plain copy from 16 MiB on; the published method is at 16 to 39 times.
COPY_BOUND = 4.0
# Pause over yardstick at 1 MiB.
YARDSTICK_BOUND = 0.2
# 1 MiB is 32 tokens of this model.
SIZES = (Size(1, block_tokens=32), Size(16), Size(64), Size(256))


def rank(ctx: RankContext, size: Size) -> dict:
    """Seconds of each pause, of the plain copies and of the yardstick's migrations on this rank."""
    import torch
    from vllm import SamplingParams

    # From the first check on the sequences go to and fro; the prompt leaves room in its last block for what is decoded.
    steps = STEPS_BETWEEN_CHECKS * (REPEATS + 2)
    pauses = []

    def seen(seconds, before, after):
        if after["plans"] > before["plans"]:
            pauses.append(seconds)

    group = Rollout(ctx, size, steps, size.tokens - steps - 1, SMALL_TIMES if size.mib == 1 else 1)
    stats = group.hooked(seen, precopy=False)
    caches = group.llm.llm_engine.model_executor.driver_worker.worker.model_runner.kv_caches
    ids = torch.arange(1, 1 + size.tokens // size.block_tokens)
    requests = [(prompt["prompt_token_ids"], SamplingParams(max_tokens=steps)) for prompt in group.prompts()]
    yardstick = []
    group.unhooked(lambda: yardstick.append(published(ctx, requests, caches, ids)))
    torch.distributed.barrier()
    copies = plain_copies(SEQUENCES * size.mib * MIB) if ctx.rank == 0 else []
    torch.distributed.barrier()
    return {
        "pauses": pauses[1:],
        "yardstick": yardstick[1:],
        "copies": copies,
        "rolled_back": stats["moves_rolled_back"],
        "kv_bytes": stats["kv_bytes_moved"],
    }


def published(ctx: RankContext, requests: list, caches: list, ids) -> float:
    """One migration of the sequences from rank 0 to rank 1 in the published way; caches are [2, blocks, length]."""
    import torch

    torch.distributed.barrier()
    start = time.perf_counter()
    counts = [None] * ctx.world_size
    torch.distributed.all_gather_object(counts, len(requests) if ctx.rank == 0 else 0)
    for request in requests:
        if ctx.rank == 0:
            torch.distributed.send_object_list([request], dst=1)
            torch.distributed.send(torch.stack([cache[:, ids] for cache in caches]), dst=1)
        else:
            torch.distributed.recv_object_list([None], src=0)
            received = torch.empty((len(caches), 2, len(ids), caches[0].shape[2]), dtype=caches[0].dtype)
            torch.distributed.recv(received, src=0)
            for cache, blocks in zip(caches, received):
                cache[:, ids] = blocks
    torch.distributed.barrier()
    return time.perf_counter() - start


def plain_copies(length: int) -> list[float]:
    """Seconds of copies of that many bytes by one thread, with other bytes in the cache before each."""
    import torch

    source = torch.ones(length, dtype=torch.uint8)
    target = torch.zeros(length, dtype=torch.uint8)
    flush = torch.zeros(FLUSH_BYTES, dtype=torch.uint8)
    seconds = []
    for _ in range(REPEATS):
        flush.add_(1)
        start = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - start)
    return seconds


def measure(bed: Bed, size: Size) -> dict:
    """One size: quartiles, and ratios of medians."""
    ranks = bed.run(rank, size, deadline=900)
    # The busier rank of each check.
    pauses = [max(both) for both in zip(*(one["pauses"] for one in ranks))]
    assert len(pauses) >= REPEATS, f"{len(pauses)} checks moved sequences, {REPEATS} wanted"
    assert not any(one["rolled_back"] for one in ranks)
    yardstick = [max(both) for both in zip(*(one["yardstick"] for one in ranks))]
    copies = ranks[0]["copies"]
    pause = statistics.median(pauses)
    return {
        "mib_per_sequence": size.mib,
        "pause_ms": spread(pauses),
        "plain_copy_ms": spread(copies),
        "yardstick_ms": spread(yardstick),
        "pause_over_copy": round(pause / statistics.median(copies), 2),
        "pause_over_yardstick": round(pause / statistics.median(yardstick), 3),
        "kv_mib_moved_per_check": round(sum(one["kv_bytes"] for one in ranks) / MIB / (len(pauses) + 1), 1),
    }


def spread(seconds: list[float]) -> list[float]:
    """Quartiles in milliseconds; the second one is the median."""
    return [round(1000 * q, 3) for q in statistics.quantiles(seconds, n=4)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, action="append", choices=[size.mib for size in SIZES])
    chosen = parser.parse_args().mib
    bed = Bed().start()
    try:
        rows = [measure(bed, size) for size in SIZES if chosen is None or size.mib in chosen]
    finally:
        bed.stop()
    held = {}
    for row in rows:
        mib = row["mib_per_sequence"]
        if mib == 1:
            held["1 MiB: pause over yardstick"] = row["pause_over_yardstick"] <= YARDSTICK_BOUND
        else:
            held[f"{mib} MiB: pause over plain copy"] = row["pause_over_copy"] <= COPY_BOUND
    print(json.dumps({"sizes": rows, "load": os.getloadavg()[0], "cpus": os.cpu_count(), "held": held}, indent=2))
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    # Under its module name: ranks import what is in it.
    sys.exit(importlib.import_module("engine_kv").main())
