"""Which pins `AffinityRouter` keeps, for how long, and at what cost in memory."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import uuid

import pytest
from seqshift import AffinityRouter

POOL = dict.fromkeys(f"s{i}" for i in range(16))
CACHE = 10_000
SEED = 20_260


def turn(balancer: AffinityRouter, request_id: str) -> bool:
    """Takes a turn from start to end; whether the pin was followed."""
    server, _ = balancer.acquire_server(request_id)
    kept = balancer.explain_last()["reason"] == "kept"
    balancer.release_server(server, request_id)
    return kept


def kept_share(balancer: AffinityRouter, live: int, rounds: int = 6) -> float:
    """Share of later turns that find their pin, with `live` conversations taking turns in random order."""
    print("seed", SEED)
    rng = random.Random(SEED)
    ids = [f"conversation-{i}" for i in range(live)]
    for request_id in ids:
        turn(balancer, request_id)
    kept = 0
    for _ in range(rounds):
        rng.shuffle(ids)
        kept += sum(turn(balancer, request_id) for request_id in ids)
    return kept / (rounds * live)


@pytest.mark.parametrize("live", [12_000, 20_000, 50_000])
def test_by_default_every_live_conversation_keeps_its_pin(live):
    assert kept_share(AffinityRouter(POOL, seed=1), live, rounds=2) == 1.0


@pytest.mark.parametrize(("live", "least"), [(9_000, 1.0), (12_000, 0.75), (20_000, 0.45)])
def test_a_fixed_size_degrades_with_the_share_that_fits(live, least):
    balancer = AffinityRouter(POOL, max_cache_size=CACHE, seed=1)
    assert kept_share(balancer, live) >= least
    assert balancer.get_status()["pinned_conversations"] <= CACHE


def test_turns_in_strict_rotation_keep_what_fits():
    balancer = AffinityRouter(POOL, max_cache_size=1000, seed=1)
    ids = [f"c{i}" for i in range(1200)]
    rounds = [sum(turn(balancer, request_id) for request_id in ids) for _ in range(8)]
    assert rounds[-1] >= 900, rounds


def test_a_new_generation_takes_the_place_of_the_old():
    balancer = AffinityRouter(POOL, max_cache_size=1000, seed=1)
    for generation in range(4):
        ids = [f"g{generation}-{i}" for i in range(1200)]
        rounds = [sum(turn(balancer, request_id) for request_id in ids) for _ in range(12)]
        assert rounds[-1] >= 900, (generation, rounds)


def test_generations_that_fit_lose_nothing():
    balancer = AffinityRouter(POOL, max_cache_size=1000, seed=1)
    for generation in range(4):
        ids = [f"g{generation}-{i}" for i in range(800)]
        rounds = [sum(turn(balancer, request_id) for request_id in ids) for _ in range(3)]
        assert rounds == [0, 800, 800], (generation, rounds)


def test_the_least_recently_used_gives_way():
    balancer = AffinityRouter(POOL, max_cache_size=3, seed=1)
    for request_id in ["a", "b", "c", "a", "d"]:
        turn(balancer, request_id)
    assert [turn(balancer, request_id) for request_id in ["a", "c", "d", "b"]] == [True, True, True, False]


@pytest.mark.parametrize("with_id", [True, False])
def test_a_conversation_in_flight_is_never_evicted(with_id):
    balancer = AffinityRouter(POOL, max_cache_size=4, seed=1)
    flying = [balancer.acquire_server(f"flying{i}")[0] for i in range(8)]
    for i in range(500):
        server, _ = balancer.acquire_server(f"passing{i}")
        balancer.release_server(server, f"passing{i}" if with_id else None)
    for i, server in enumerate(flying):
        assert balancer.acquire_server(f"flying{i}")[0] == server
        assert balancer.explain_last()["reason"] == "kept"
    assert balancer.get_total_inflight() == 16


def test_once_landed_they_are_evicted():
    balancer = AffinityRouter(POOL, max_cache_size=4, seed=1)
    flying = [balancer.acquire_server(f"flying{i}")[0] for i in range(100)]
    assert balancer.get_status()["pinned_conversations"] == 100
    for i, server in enumerate(flying):
        balancer.release_server(server, f"flying{i}")
    assert balancer.get_status()["pinned_conversations"] == 4


@pytest.mark.parametrize("with_id", [True, False])
def test_conversations_that_are_over_are_forgotten_without_a_limit_too(with_id):
    balancer = AffinityRouter(POOL, seed=1)
    for i in range(len(POOL)):
        # No server ever empties.
        balancer.acquire_server(f"forever-{i}")
    for i in range(600_000):
        server, _ = balancer.acquire_server(f"once-{i}")
        balancer.release_server(server, f"once-{i}" if with_id else None)
    assert balancer.get_total_inflight() == len(POOL)
    assert balancer.get_status()["pinned_conversations"] <= 2**18 + 1 + len(POOL)


MEASURE = """
import resource, sys, uuid
from seqshift import AffinityRouter
count, known = int(sys.argv[1]), sys.argv[2] == "release"
def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
router = AffinityRouter(dict.fromkeys(f"s{i}" for i in range(128)), seed=1)
for i in range(1000):
    router.acquire_server(f"warm-{i}")
router.clear_sticky_cache()
before = resident()
for i in range(count):
    request_id = str(uuid.UUID(int=i * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128))
    server, _ = router.acquire_server(request_id)
    if known:
        router.release_server(server, request_id)
print((resident() - before) / count)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="resident memory is read from /proc")
@pytest.mark.parametrize("count", [10_000, 70_000, 100_000, 140_000])
@pytest.mark.parametrize("mode", ["release", "hold"])
def test_a_live_conversation_costs_at_most_256_bytes(mode, count):
    assert len(str(uuid.UUID(int=0))) == 36
    command = [sys.executable, "-c", MEASURE, str(count), mode]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    print(f"{count} conversations, {mode}: {float(out):.1f} bytes each")
    assert float(out) <= 256
