"""Placement, pins, counts and reasons of `AffinityRouter`."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys

import pytest
from seqshift import AffinityRouter

POOL = {"s0": "h0", "s1": "h1", "s2": "h2"}
NAN = float("nan")


def router(servers=None, **options) -> AffinityRouter:
    return AffinityRouter(dict(POOL if servers is None else servers), **{"seed": 11, **options})


def pick(balancer: AffinityRouter, request_id: str, **fields) -> str:
    return balancer.acquire_server(request_id, **fields)[0]


def reason(balancer: AffinityRouter) -> str:
    return balancer.explain_last()["reason"]


def test_a_choice_comes_with_the_handle_that_was_registered():
    handle = object()
    assert router({"only": handle}).acquire_server("c") == ("only", handle)


def test_new_conversations_spread_over_the_least_loaded():
    balancer = router()
    assert sorted(pick(balancer, f"c{i}") for i in range(6)) == ["s0", "s0", "s1", "s1", "s2", "s2"]
    assert balancer.get_status()["reasons"]["new"] == 6


def test_ties_are_random_and_follow_the_seed():
    def picks(seed):
        balancer = router(seed=seed)
        return [pick(balancer, f"c{i}") for i in range(12)]

    assert {picks(seed)[0] for seed in range(40)} == set(POOL)
    assert picks(5) == picks(5)
    assert len({tuple(picks(seed)) for seed in range(40)}) > 30


def test_without_a_tie_no_randomness_is_used():
    plain, busy = router(seed=3), router(seed=3)
    busy._inflight_requests["s1"] = busy._inflight_requests["s2"] = 9
    for i in range(8):
        assert pick(busy, f"forced{i}") == "s0"
    for server in POOL:
        busy._inflight_requests[server] = 0
    assert [pick(busy, f"c{i}") for i in range(30)] == [pick(plain, f"c{i}") for i in range(30)]


def test_pins_never_break_by_default():
    balancer = router()
    pinned = pick(balancer, "c")
    balancer._inflight_requests[pinned] += 1000
    assert pick(balancer, "c") == pinned
    assert reason(balancer) == "kept"
    assert balancer.get_status()["affinity_broken"] == 0


def test_the_margin_is_inclusive_and_counts_loads_before_the_request():
    balancer = router(affinity_break_margin=3)
    pinned = pick(balancer, "c")
    balancer._inflight_requests[pinned] = 3
    assert pick(balancer, "c") == pinned
    balancer._inflight_requests[pinned] = 4
    moved = pick(balancer, "c")
    assert moved != pinned
    last = balancer.explain_last()
    assert last == {
        "request_id": "c",
        "server_id": moved,
        "reason": "broken",
        "load": 0,
        "min_load": 0,
        "broken_from": pinned,
    }


def test_a_fractional_margin_counts_as_it_is():
    balancer = router(affinity_break_margin=2.5)
    pinned = pick(balancer, "c")
    balancer._inflight_requests[pinned] = 2
    assert pick(balancer, "c") == pinned
    balancer._inflight_requests[pinned] = 3
    assert pick(balancer, "c") != pinned


def test_margin_zero_stays_only_on_a_least_loaded_server_and_later_turns_follow_the_new_pin():
    balancer = router(affinity_break_margin=0)
    pick(balancer, "c")
    for target in ("s2", "s0", "s1"):
        for server in POOL:
            balancer._inflight_requests[server] = 0 if server == target else 9
        assert pick(balancer, "c") == target
        balancer._inflight_requests[target] = 0
        assert pick(balancer, "c") == target
        assert reason(balancer) == "kept"


def test_every_sticky_hit_counts_once_and_the_first_placement_not_at_all():
    balancer = router(affinity_break_margin=1)
    pick(balancer, "c")
    assert (balancer.get_status()["affinity_kept"], balancer.get_status()["affinity_broken"]) == (0, 0)
    for load in range(6):
        balancer._inflight_requests["s0"] = load
        pick(balancer, "c")
    status = balancer.get_status()
    assert status["affinity_kept"] + status["affinity_broken"] == 6
    assert status["affinity_broken"] > 0


def test_a_removed_server_loses_its_conversations():
    balancer = router()
    gone = pick(balancer, "c")
    balancer.remove_servers([gone, "never there"])
    assert gone not in balancer.get_all_servers()
    moved = pick(balancer, "c")
    assert moved != gone
    assert reason(balancer) == "server_gone"
    assert pick(balancer, "c") == moved
    assert reason(balancer) == "kept"


def test_a_server_that_was_removed_and_added_again_has_no_pins():
    balancer = router({"s0": None})
    pick(balancer, "c")
    balancer.remove_servers(["s0"])
    balancer.add_servers({"s0": None})
    pick(balancer, "c")
    assert reason(balancer) == "server_gone"


def test_full_determinism_goes_by_the_id_alone():
    balancer = router(full_determinism=True, affinity_break_margin=0)
    first = pick(balancer, "c")
    balancer._inflight_requests[first] += 100
    assert pick(balancer, "c") == first
    assert reason(balancer) == "deterministic"
    status = balancer.get_status()
    assert (status["affinity_broken"], status["pinned_conversations"]) == (0, 0)
    assert {pick(balancer, f"c{i}") for i in range(50)} == set(POOL)


def test_full_determinism_is_stable_across_processes():
    code = (
        "from seqshift import AffinityRouter as R;"
        "r = R(dict.fromkeys(['a', 'b', 'c', 'd', 'e']), full_determinism=True{});"
        "print(''.join(r.acquire_server(f'conversation-{{i}}')[0] for i in range(64)))"
    )

    def run(options: str, hash_seed: str) -> str:
        command = [sys.executable, "-c", code.format(options)]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": hash_seed}, timeout=60
        ).stdout

    assert run("", "1") == run("", "2")
    verl = ", determinism_hash='verl'"
    assert run(verl, "1") == run(verl, "1")
    assert run(verl, "1") != run(verl, "2")


def test_verls_own_formula_is_available():
    balancer = router(full_determinism=True, determinism_hash="verl")
    pool = list(POOL)
    for i in range(50):
        request_id = f"conversation-{i}"
        assert pick(balancer, request_id) == pool[hash(request_id) % len(pool)]


@pytest.mark.parametrize("bad", [-1, -0.5, float("-inf"), NAN, "2", b"2", object(), [], True, False, 1j])
@pytest.mark.parametrize("option", ["affinity_break_margin", "balance_abs_threshold", "balance_rel_threshold"])
def test_a_bad_number_is_refused_by_name(option, bad):
    with pytest.raises(ValueError, match=option):
        router(**{option: bad})


@pytest.mark.parametrize(
    ("option", "bad"),
    [
        ("policy", "fastest"),
        ("shadow_policy", "fastest"),
        ("shadow_policy", {"policy": "margin", "margin": 2}),
        ("max_cache_size", 0),
        ("max_cache_size", True),
        ("max_cache_size", 1.5),
        ("seed", "x"),
        ("full_determinism", 1),
        ("determinism_hash", "md5"),
        ("on_decision", 3),
        ("load_block_size", 0),
        ("marginn", 2),
    ],
)
def test_a_bad_option_is_refused_by_name(option, bad):
    with pytest.raises(ValueError, match=option):
        router(**{option: bad})


@pytest.mark.parametrize("policy", ["weighted_margin", "margin"])
@pytest.mark.parametrize("bad", ["request_id", 3, "not a name"])
def test_a_bad_load_field_is_refused(bad, policy):
    with pytest.raises(ValueError, match="load_field"):
        router(policy=policy, load_field=bad)


def test_an_infinite_margin_never_breaks():
    balancer = router(affinity_break_margin=float("inf"))
    pinned = pick(balancer, "c")
    balancer._inflight_requests[pinned] = 10**12
    assert pick(balancer, "c") == pinned


def test_an_empty_pool_is_an_error_that_clients_recognise():
    balancer = router({})
    with pytest.raises(RuntimeError, match="No available servers in load balancer"):
        balancer.acquire_server("c")
    balancer.add_servers({"late": 1})
    assert balancer.acquire_server("c") == ("late", 1)


def test_late_releases_do_not_eat_the_count_of_a_server_that_came_back():
    balancer = router({"s0": None})
    for i in range(3):
        balancer.acquire_server(f"old{i}")
    balancer.remove_servers(["s0"])
    balancer.add_servers({"s0": None})
    balancer.acquire_server("new")
    for i in range(3):
        balancer.release_server("s0", f"old{i}")
    assert balancer.get_inflight_count("s0") == 1
    balancer.release_server("s0", request_id="new")
    assert balancer.get_inflight_count("s0") == 0


def test_late_releases_of_the_very_same_conversation_count_as_the_older_ones():
    balancer = router({"s0": None})
    for _ in range(3):
        balancer.acquire_server("c")
    balancer.remove_servers(["s0"])
    balancer.add_servers({"s0": None})
    balancer.acquire_server("c")
    for _ in range(3):
        balancer.release_server("s0", "c")
    assert balancer.get_inflight_count("s0") == 1


def test_late_anonymous_releases_are_taken_as_the_older_ones():
    balancer = router({"s0": None})
    for i in range(3):
        balancer.acquire_server(f"old{i}")
    balancer.remove_servers(["s0"])
    balancer.release_server("s0")
    balancer.add_servers({"s0": None})
    balancer.acquire_server("new")
    for _ in range(2):
        balancer.release_server("s0")
    assert balancer.get_inflight_count("s0") == 1
    balancer.release_server("s0")
    assert balancer.get_inflight_count("s0") == 0


def test_surplus_and_unknown_releases_are_ignored():
    balancer = router()
    server = pick(balancer, "a")
    for server_id, request_id in [("nowhere", None), ("nowhere", "a"), (server, "never seen")]:
        balancer.release_server(server_id, request_id)
    assert balancer.get_total_inflight() == 1
    for _ in range(3):
        balancer.release_server(server, "a")
    for _ in range(3):
        balancer.release_server(server)
    assert balancer.get_status()["servers"] == {"s0": 0, "s1": 0, "s2": 0}


def test_a_surplus_release_of_one_conversation_does_not_take_anothers_place():
    balancer = router({"s0": None})
    balancer.acquire_server("a")
    balancer.acquire_server("b")
    balancer.release_server("s0", "a")
    balancer.release_server("s0", "a")
    assert balancer.get_inflight_count("s0") == 1


def test_anonymous_releases_settle_requests_that_were_acquired_with_an_id():
    balancer = router({"s0": None, "s1": None}, affinity_break_margin=2)
    server = pick(balancer, "c")
    balancer._inflight_requests[server] += 10
    assert pick(balancer, "c") != server
    for _ in range(10):
        balancer.release_server(server)
    assert balancer.get_inflight_count(server) == 1


def test_a_conversation_may_be_in_flight_on_several_servers():
    balancer = router({"s0": None, "s1": None}, affinity_break_margin=0)
    first = pick(balancer, "c")
    second = pick(balancer, "c")
    assert first != second
    balancer.release_server(first, "c")
    assert balancer.get_inflight_count(first) == 0
    assert balancer.get_inflight_count(second) == 1
    balancer.release_server(first, "c")
    assert balancer.get_inflight_count(second) == 1


def test_adding_a_server_that_is_there_keeps_its_count_unless_the_handle_is_new():
    old, new = object(), object()
    balancer = router({"s0": old})
    balancer.acquire_server("c")
    balancer.add_servers({"s0": old})
    assert balancer.get_inflight_count("s0") == 1
    balancer.add_servers({"s0": new})
    assert balancer.get_inflight_count("s0") == 0
    assert balancer.acquire_server("c") == ("s0", new)
    balancer.release_server("s0", "c")
    assert balancer.get_inflight_count("s0") == 1


def test_inflight_mapping_is_live():
    balancer = router()
    view = balancer._inflight_requests
    assert dict(view) == {"s0": 0, "s1": 0, "s2": 0}
    server = pick(balancer, "c")
    assert view[server] == 1
    view[server] = 5
    assert balancer.get_inflight_count(server) == 5
    balancer.release_server(server, "c")
    assert view[server] == 4
    assert min(view.values()) == 0
    assert ("nowhere" in view, view.get("nowhere", -1), len(view)) == (False, -1, 3)
    with pytest.raises(KeyError, match="nowhere"):
        view["nowhere"] = 1
    with pytest.raises(ValueError, match="s0"):
        view["s0"] = -1
    balancer._inflight_requests = {"s0": 7}
    assert balancer.get_inflight_count("s0") == 7


def test_status_and_cleared_cache():
    balancer = router()
    server = pick(balancer, "c")
    status = balancer.get_status()
    assert status["servers"] == {**dict.fromkeys(POOL, 0), server: 1}
    assert (status["total_inflight"], status["active_servers"]) == (1, 3)
    assert status["registered_handles"] == list(POOL)
    assert balancer.clear_sticky_cache() == {"cleared_entries": 1, "server_loads": status["servers"]}
    assert balancer.get_total_inflight() == 1
    balancer.release_server(server, "c")
    assert balancer.get_total_inflight() == 0
    pick(balancer, "c")
    assert reason(balancer) == "new"


def test_required_fields():
    assert router().require_acquire_fields() == []
    assert router().require_release_fields() == ["request_id"]
    assert router(policy="weighted_margin").require_acquire_fields() == ["prompt_ids"]
    shadowed = router(shadow_policy="weighted_margin", load_field="prompt_tokens")
    assert shadowed.require_acquire_fields() == ["prompt_tokens"]


def test_no_method_is_asynchronous():
    methods = inspect.getmembers(AffinityRouter, inspect.isfunction)
    assert [name for name, method in methods if asyncio.iscoroutinefunction(method)] == []
    # Ray registers plain functions only.
    names = {name for name, _ in methods}
    assert {"acquire_server", "release_server", "get_status", "clear_sticky_cache"} <= names


def test_subclasses_may_take_over_routing():
    class First(AffinityRouter):
        def acquire_server(self, request_id, **fields):
            self._inflight_requests["s0"] += 1
            return "s0", self._servers["s0"]

    balancer = First(dict(POOL))
    assert balancer.acquire_server("c") == ("s0", "h0")
    assert balancer.get_inflight_count("s0") == 1
