"""verl 0.9.1: the router comes in through `rollout.router_config_path`, and verl's own client uses it."""

from __future__ import annotations

import asyncio

import lean
import pytest
import ray
from seqshift.integrations.verl import Router
from verl.workers.rollout import llm_server
from verl.workers.rollout.router import get_router_handle


def managed(tmp_path, servers, text: str):
    """verl's manager with a load balancer made by verl's factory from a YAML file."""
    path = tmp_path / "router.yaml"
    path.write_text(f"router_class: seqshift.integrations.verl.Router\n{text}")
    made = lean.manager(llm_server, servers, router_config_path=str(path))
    asyncio.run(made._init_global_load_balancer())
    return made


def turn(client, request_id: str, prompt: int = 3) -> str:
    output = asyncio.run(client.generate(request_id, prompt_ids=[0] * prompt, sampling_params={}))
    assert output.token_ids == [prompt]
    return output.extra_fields["by"]


def test_turns_follow_their_pin_and_are_released_with_their_id(tmp_path, replicas):
    made = managed(tmp_path, replicas, "affinity_break_margin: 2\nseed: 5\n")
    client = made.get_client()
    first = turn(client, "conversation")
    assert {turn(client, "conversation") for _ in range(4)} == {first}
    # Actor calls of one caller are in order: the releases before this are done.
    status = ray.get(made.global_load_balancer.get_status.remote())
    assert status["servers"] == {"r0": 0, "r1": 0}
    assert (status["affinity_kept"], status["affinity_broken"]) == (4, 0)
    assert status["reasons"]["new"] == 1


def test_only_declared_fields_travel(tmp_path, replicas):
    made = managed(tmp_path, replicas, "policy: weighted_margin\naffinity_break_margin: 1000\n")
    client = made.get_client()
    turn(client, "conversation", prompt=500)
    assert client._lb_require_acquire_fields == ["prompt_ids"]
    assert client._lb_require_release_fields == ["request_id"]
    balancer = made.global_load_balancer
    server, handle = ray.get(balancer.acquire_server.remote(request_id="other", prompt_ids=[0] * 700))
    assert ray.get(handle.generate.remote("x", [])).extra_fields["by"] == server
    assert ray.get(balancer.get_status.remote())["declared_loads"][server] == 700


def test_servers_come_and_go_and_calls_are_served_in_order(tmp_path, replicas):
    balancer = managed(tmp_path, replicas, "seed: 5\n").global_load_balancer
    server, _ = ray.get(balancer.acquire_server.remote(request_id="a"))
    ray.get(balancer.remove_servers.remote([server]))
    ray.get(balancer.add_servers.remote({server: replicas[server]}))
    ray.get(balancer.release_server.remote(server_id=server, request_id="a"))
    assert ray.get(balancer.get_inflight_count.remote(server)) == 0
    assert ray.get(balancer.clear_sticky_cache.remote())["cleared_entries"] == 1
    assert sorted(ray.get(balancer.get_all_servers.remote())) == ["r0", "r1"]
    totals = []
    for _ in range(50):
        balancer.acquire_server.remote(request_id="b")
        totals.append(balancer.get_total_inflight.remote())
    assert ray.get(totals) == list(range(1, 51))


def test_an_empty_pool_is_waited_for_by_the_fully_asynchronous_client(tmp_path, replicas):
    made = managed(tmp_path, {}, "seed: 5\n")
    eager = made.get_client(llm_server.FullyAsyncLLMServerClient)
    with pytest.raises(RuntimeError, match="No available servers in load balancer"):
        asyncio.run(eager.generate("a", prompt_ids=[0], sampling_params={}))
    patient = made.get_client(llm_server.FullyAsyncLLMServerClient, only_hybrid=True)

    async def scenario():
        waiting = asyncio.create_task(patient.generate("a", prompt_ids=[0], sampling_params={}))
        await made.global_load_balancer.add_servers.remote(replicas)
        return await asyncio.wait_for(waiting, 60)

    assert asyncio.run(scenario()).extra_fields["global_steps"] == 1


def test_a_bad_option_in_the_file_is_named(tmp_path):
    made = managed(tmp_path, {"s0": None}, "affinity_break_margin: -1\n")
    with pytest.raises(ray.exceptions.RayActorError, match="affinity_break_margin"):
        ray.get(made.global_load_balancer.get_status.remote())


def test_the_class_may_be_injected_as_well():
    balancer = get_router_handle(servers={"s0": None}, load_balancer_cls=Router)
    assert ray.get(balancer.acquire_server.remote(request_id="a")) == ("s0", None)


def test_options_win_over_the_file():
    router = Router({"s0": None, "s1": None}, {"router_class": "x", "policy": "sticky"}, policy="margin")
    assert router.get_status()["policy"] == "margin"
    with pytest.raises(ValueError, match="marginn"):
        Router({}, {"marginn": 2})
    with pytest.raises(ValueError, match="config"):
        Router({}, "router.yaml")
