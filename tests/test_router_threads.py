"""`AffinityRouter` may be used from several threads at once."""

from __future__ import annotations

import gc
import random
import sys
import threading

import pytest
from seqshift import AffinityRouter


@pytest.fixture
def frequent_switches():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("frequent_switches")
def test_counts_are_exact_after_concurrent_use():
    events = []
    balancer = AffinityRouter(
        dict.fromkeys(f"s{i}" for i in range(8)), affinity_break_margin=1, seed=1, on_decision=events.append
    )
    turns, workers = 2000, 8
    start = threading.Barrier(workers)

    def work(number: int) -> None:
        rng = random.Random(number)
        start.wait()
        for _ in range(turns):
            request_id = f"c{rng.randrange(50)}"
            server, _ = balancer.acquire_server(request_id)
            if rng.random() < 0.01:
                balancer.get_status()
                balancer.explain_last()
            balancer.release_server(server, request_id)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    status = balancer.get_status()
    assert status["total_inflight"] == 0
    assert sum(status["reasons"].values()) == turns * workers == len(events)


@pytest.mark.timeout(60)
def test_a_finalizer_may_use_the_router_it_was_registered_with():
    class Handle:
        def __del__(self):
            finalized.append(balancer.get_total_inflight())

    finalized: list[int] = []
    balancer = AffinityRouter({"s0": Handle()}, seed=1)
    balancer.add_servers({"s0": Handle()})
    balancer.remove_servers(["s0"])
    gc.collect()
    # The explanation of the last choice holds no handle, since there was none.
    assert len(finalized) == 2
