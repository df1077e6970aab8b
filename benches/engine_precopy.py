"""The pause of a migration whose KV is copied in the background, at 256 MiB and at 1 MiB of KV per sequence, DP=2.

As `engine_kv.py`, but with `precopy`, forced for the small one, and one block size for both. A migration's pause is the
sum over its checks on the busier rank: the one that begins the copy, those that look at it, and the one that moves the
sequences.

Prints one JSON document; exits with 1 if the bound does not hold.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys

from engine_kv import spread
from kv_rollout import MIB, SEQUENCES, Rollout, Size
from seqshift.cpu_bed.ranks import Bed, RankContext

MIGRATIONS = 7
# Pause at the large size over pause at the small one.
BOUND = 2.0
BLOCK_TOKENS = 32
SMALL, LARGE = Size(1, BLOCK_TOKENS), Size(256, BLOCK_TOKENS)
# Steps that a migration may take, those between checks included.
STEPS_EACH = {SMALL: 12, LARGE: 40}


def rank(ctx: RankContext, size: Size) -> dict:
    """Seconds of each migration's pause on this rank."""
    os.environ["SEQSHIFT_TEST_PRECOPY"] = "always"
    pauses, checks = [], []

    def seen(seconds, before, after):
        checks.append(seconds)
        if after["plans"] > before["plans"]:
            pauses.append(sum(checks))
            checks.clear()

    steps = (MIGRATIONS + 1) * STEPS_EACH[size]
    # A sequence has at least one full block to copy before it stops.
    prompt_tokens = max(size.tokens - steps - 1, BLOCK_TOKENS - 3)
    stats = Rollout(ctx, size, steps, prompt_tokens).hooked(seen)
    return {"pauses": pauses[1:], "stats": stats}


def measure(bed: Bed, size: Size) -> dict:
    """One size: quartiles, and how much was copied when."""
    ranks = bed.run(rank, size, deadline=400)
    pauses = [max(both) for both in zip(*(one["pauses"] for one in ranks))]
    assert len(pauses) >= MIGRATIONS, f"{len(pauses)} migrations, {MIGRATIONS} wanted"
    sent, before = (sum(one["stats"][name] for one in ranks) for name in ("kv_bytes_moved", "precopied_bytes"))
    assert before > 0, "nothing was copied in the background"
    for one in ranks:
        assert not one["stats"]["moves_rolled_back"]
        # One may be under way at the end.
        assert set(one["stats"]["precopy_aborted"]) <= {"the rollout has ended"}, one["stats"]["precopy_aborted"]
    sequences = SEQUENCES * (len(pauses) + 1)
    return {
        "mib_per_sequence": size.mib,
        "migrations": len(pauses),
        "pause_ms": spread(pauses),
        "mib_per_sequence_in_the_background": round(before / MIB / sequences, 2),
        "mib_per_sequence_at_the_stop": round((sent - before) / MIB / sequences, 2),
        "median": statistics.median(pauses),
    }


def main() -> int:
    bed = Bed().start()
    try:
        sizes = [measure(bed, size) for size in (SMALL, LARGE)]
    finally:
        bed.stop()
    small, large = (row.pop("median") for row in sizes)
    ratio = round(large / small, 2)
    result = {"sizes": sizes, "ratio": ratio, "bound": BOUND, "load": os.getloadavg()[0], "cpus": os.cpu_count()}
    print(json.dumps(result, indent=2))
    return int(ratio > BOUND)


if __name__ == "__main__":
    # Under its module name: ranks import what is in it.
    sys.exit(importlib.import_module("engine_precopy").main())
