"""`AffinityRouter` against a plain-Python balancer of the published algorithm, in one run.

The plain one keeps its pins in `cachetools.LRUCache`, as verl does, made large enough that every hit is one. A second
variant with an `OrderedDict` is the fastest that plain Python offers; it is reported, not judged. Rounds alternate
between the three, and the medians of the rounds' ratios are compared.

Prints one JSON document; exits with 1 if a bound does not hold.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import subprocess
import sys
import time
import uuid
from collections import OrderedDict

from cachetools import LRUCache
from seqshift import AffinityRouter

REPLICAS = 128
IN_FLIGHT_PER_REPLICA = 8
OPERATIONS = 20_000
ROUNDS = 9
SEED = 20_261
MISS_BOUND = 3.0
HIT_BOUND = 1.0
BYTES_BOUND = 256.0


class PlainBalancer:
    """Sticky sessions, then least in flight with a random choice among equals."""

    def __init__(self, servers, pins):
        self.servers = dict(servers)
        self.in_flight = dict.fromkeys(servers, 0)
        self.pins = pins

    def acquire_server(self, request_id):
        """The pinned server if it is in the pool, else a least-loaded one."""
        server = self.pins.get(request_id)
        if server is None or server not in self.in_flight:
            if not self.in_flight:
                raise RuntimeError("no servers")
            least = min(self.in_flight.values())
            server = random.choice([name for name, count in self.in_flight.items() if count == least])
            self.pins[request_id] = server
        self.in_flight[server] += 1
        return server, self.servers[server]

    def release_server(self, server, request_id=None):
        """Counts down, not below 0."""
        if self.in_flight.get(server, 0) > 0:
            self.in_flight[server] -= 1


class Recent(OrderedDict):
    """The least that an LRU needs."""

    def get(self, key):
        """The value, which becomes the most recent; None if there is none."""
        try:
            self.move_to_end(key)
        except KeyError:
            return None
        return self[key]


def loaded(balancer, conversations):
    """The balancer with `conversations` pins and a few requests in flight on every replica."""
    rng = random.Random(SEED)
    for request_id in conversations:
        server, _ = balancer.acquire_server(request_id)
        balancer.release_server(server, request_id)
    for i in range(REPLICAS * IN_FLIGHT_PER_REPLICA):
        balancer.acquire_server(f"background-{rng.random()}-{i}")
    return balancer


def cost(balancer, ids) -> float:
    """Seconds per acquire and release."""
    acquire, release = balancer.acquire_server, balancer.release_server
    gc.collect()
    start = time.perf_counter()
    for request_id in ids:
        server, _ = acquire(request_id)
        release(server, request_id)
    return (time.perf_counter() - start) / len(ids)


def compare(conversations: int) -> dict[str, dict[str, float]]:
    """Nanoseconds per acquire and release, and ratios, for hits and misses."""
    rng = random.Random(SEED)
    servers = {f"10.0.{i // 16}.{i % 16}:8000": None for i in range(REPLICAS)}
    ids = [str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(conversations)]
    size = 2 * conversations + OPERATIONS * ROUNDS
    balancers = {
        "plain": PlainBalancer(servers, LRUCache(size)),
        "plain_ordered_dict": PlainBalancer(servers, Recent()),
        "seqshift": AffinityRouter(servers, seed=SEED, affinity_break_margin=2.0**40),
    }
    for balancer in balancers.values():
        loaded(balancer, ids)
    samples: dict[str, list[dict[str, float]]] = {"hit": [], "miss": []}
    for _ in range(ROUNDS):
        known = rng.choices(ids, k=OPERATIONS)
        fresh = [str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(OPERATIONS)]
        samples["hit"].append({name: cost(balancer, known) for name, balancer in balancers.items()})
        samples["miss"].append({name: cost(balancer, fresh) for name, balancer in balancers.items()})
    result = {}
    for kind, rounds in samples.items():
        measured = {f"{name}_ns": statistics.median(r[name] for r in rounds) * 1e9 for name in balancers}
        for name, label in (("plain", "times_faster"), ("plain_ordered_dict", "times_faster_than_ordered_dict")):
            measured[label] = statistics.median(r[name] / r["seqshift"] for r in rounds)
        result[kind] = {name: round(value, 2) for name, value in measured.items()}
    return result


def bytes_per_conversation(conversations: int) -> float:
    """Growth of resident memory, in a process of its own."""
    code = (
        "import resource, uuid\n"
        "from seqshift import AffinityRouter\n"
        "page = resource.getpagesize()\n"
        "def resident():\n"
        "    return int(open('/proc/self/statm').read().split()[1]) * page\n"
        f"router = AffinityRouter(dict.fromkeys(map(str, range({REPLICAS}))), seed=1)\n"
        "before = resident()\n"
        f"for i in range({conversations}):\n"
        "    name = str(uuid.UUID(int=i))\n"
        "    router.release_server(router.acquire_server(name)[0], name)\n"
        f"print((resident() - before) / {conversations})\n"
    )
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def main() -> int:
    """Measures, prints, judges."""
    report = {"replicas": REPLICAS, "seed": SEED, "conversations": {}}
    failures = []
    for conversations in (10_000, 100_000):
        measured = compare(conversations)
        measured["bytes_per_conversation"] = bytes_per_conversation(conversations)
        report["conversations"][str(conversations)] = measured
        for kind, bound in (("miss", MISS_BOUND), ("hit", HIT_BOUND)):
            if measured[kind]["times_faster"] < bound:
                failures.append(f"{kind} at {conversations}: {measured[kind]['times_faster']:.2f} of {bound}")
        if measured["bytes_per_conversation"] > BYTES_BOUND:
            failures.append(f"{measured['bytes_per_conversation']:.0f} bytes per conversation of {BYTES_BOUND:.0f}")
    report["failures"] = failures
    print(json.dumps(report, indent=2))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
