"""A plain-Python planner, timed on the groups of `benches/planner.rs` for comparison.

It finds the lowest reachable gear, takes each rank's smallest movable sequences and gives each of them to the rank
that has received the fewest blocks. Reads JSON lines from stdin, prints one JSON line per group.
"""

from __future__ import annotations

import heapq
import json
import sys
import time


def plan(group, gears, slots):
    """(gear before, gear after, moves), a move being (from, to, index)."""
    counts = [len(rank["blocks"]) for rank in group]
    before = min(gear for gear in gears if gear >= max(counts))
    movable = [sorted((b, i) for i, b in enumerate(rank["blocks"]) if rank["movable"][i]) for rank in group]
    for gear in sorted(gears):
        if gear >= before:
            break
        if any(count - gear > len(movable[rank]) for rank, count in enumerate(counts)):
            continue
        items = []
        for rank, count in enumerate(counts):
            if count > gear:
                items += [(blocks, rank, index) for blocks, index in movable[rank][: count - gear]]
        moves = pack(sorted(items, reverse=True), group, counts, min(gear, slots))
        if moves is not None:
            return before, gear, moves
    return before, before, []


def pack(items, group, counts, most):
    free = [rank["free"] for rank in group]
    heap = [(0, counts[rank], rank) for rank in range(len(group)) if counts[rank] < most]
    heapq.heapify(heap)
    moves = []
    for blocks, source, index in items:
        passed = []
        while heap and free[heap[0][2]] < blocks:
            passed.append(heapq.heappop(heap))
        if not heap:
            return None
        received, count, rank = heapq.heappop(heap)
        free[rank] -= blocks
        moves.append((source, rank, index))
        if count + 1 < most:
            heapq.heappush(heap, (received + blocks, count + 1, rank))
        for entry in passed:
            heapq.heappush(heap, entry)
    return moves


def main():
    for line in sys.stdin:
        case = json.loads(line)
        seconds = []
        for _ in range(case["repeats"]):
            start = time.perf_counter()
            before, after, moves = plan(case["group"], case["gears"], case["slots"])
            seconds.append(time.perf_counter() - start)
        median = sorted(seconds)[len(seconds) // 2]
        print(json.dumps({"before": before, "after": after, "moved": len(moves), "seconds": median}), flush=True)


if __name__ == "__main__":
    main()
