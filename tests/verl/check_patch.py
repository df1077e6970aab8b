"""verl 0.8.0 and 0.9.0: the patch takes the place of the class that `llm_server` instantiates, and gives it back."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys

import lean
import pytest
import ray
from seqshift.integrations import verl as integration


@pytest.fixture(params=["0.8.0", "0.9.0"])
def version(request):
    return request.param


@pytest.fixture
def llm_server(version):
    """The module of that version; at the end its own class is back."""
    with lean.installed(version):
        module = importlib.import_module("verl.workers.rollout.llm_server")
        original = module.GlobalRequestLoadBalancer
        yield module
        integration.unpatch()
        assert module.GlobalRequestLoadBalancer is original


def plain(llm_server):
    """The class that the module instantiates, without Ray's wrapping."""
    found = llm_server.GlobalRequestLoadBalancer
    return found if isinstance(found, type) else found.__ray_metadata__.modified_class


def test_the_manager_gets_our_router_and_the_client_uses_it(llm_server, replicas):
    integration.patch(affinity_break_margin=1, seed=3)
    made = lean.manager(llm_server, replicas, llm_server.GlobalRequestLoadBalancer, full_determinism=False)
    asyncio.run(made._init_global_load_balancer())
    client = made.get_client()
    for _ in range(3):
        output = asyncio.run(client.generate("conversation", prompt_ids=[0, 0], sampling_params={}))
        assert output.token_ids == [2]
    balancer = made.global_load_balancer
    status = ray.get(balancer.get_status.remote())
    assert (status["total_inflight"], status["affinity_kept"]) == (0, 2)
    # Beyond the margin of one: the pin breaks.
    pinned = [ray.get(balancer.acquire_server.remote("conversation"))[0] for _ in range(3)]
    assert pinned[0] == pinned[1] != pinned[2]


def test_the_number_that_verl_passes_is_not_a_limit(llm_server):
    integration.patch(seed=3)
    size = llm_server.DEFAULT_ROUTING_CACHE_SIZE
    balancer = plain(llm_server)(servers={"r0": None}, max_cache_size=size)
    for i in range(size + 50):
        balancer.acquire_server(f"c{i}")
        balancer.release_server("r0")
    assert balancer.get_status()["pinned_conversations"] == size + 50


@pytest.mark.parametrize("flag", [True, False])
def test_the_rollout_setting_holds(llm_server, flag):
    integration.patch(seed=3)
    balancer = plain(llm_server)(servers={"r0": None}, max_cache_size=10, full_determinism=flag)
    balancer.acquire_server("a")
    assert balancer.explain_last()["reason"] == ("deterministic" if flag else "new")


def test_twice_is_once_and_out_again(llm_server):
    original = llm_server.GlobalRequestLoadBalancer
    assert integration.unpatch() is False
    integration.patch(policy="sticky")
    integration.patch(policy="dual_threshold")
    assert plain(llm_server)(servers={}).get_status()["policy"] == "dual_threshold"
    assert integration.unpatch() is True
    assert llm_server.GlobalRequestLoadBalancer is original
    assert integration.unpatch() is False


def test_a_foreign_patch_on_top_stays(llm_server):
    original = llm_server.GlobalRequestLoadBalancer
    integration.patch(seed=1)
    foreign = object()
    llm_server.GlobalRequestLoadBalancer = foreign
    assert integration.unpatch() is False
    assert llm_server.GlobalRequestLoadBalancer is foreign
    llm_server.GlobalRequestLoadBalancer = original


def test_a_class_that_was_changed_is_left_alone(llm_server, version, monkeypatch):
    class Changed:
        def __init__(self, servers, weights):
            pass

    changed = ray.remote(Changed) if version == "0.8.0" else Changed
    monkeypatch.setattr(llm_server, "GlobalRequestLoadBalancer", changed)
    with pytest.raises(integration.VerlPatchError, match="weights"):
        integration.patch(seed=1)
    assert llm_server.GlobalRequestLoadBalancer is changed
    monkeypatch.setattr(llm_server, "GlobalRequestLoadBalancer", None)
    with pytest.raises(integration.VerlPatchError, match="None"):
        integration.patch(seed=1)
    monkeypatch.undo()


def test_a_bad_option_changes_nothing(llm_server):
    original = llm_server.GlobalRequestLoadBalancer
    with pytest.raises(ValueError, match="affinity_break_margin"):
        integration.patch(affinity_break_margin=-1)
    assert llm_server.GlobalRequestLoadBalancer is original


def test_0_9_1_is_told_of_the_setting_that_needs_no_patch():
    with pytest.raises(integration.VerlPatchError, match="router_config_path") as caught:
        integration.patch(seed=1)
    assert caught.value.version == "0.9.1"


def test_other_versions_get_one_clear_message(llm_server, monkeypatch):
    original = llm_server.GlobalRequestLoadBalancer
    monkeypatch.setattr(integration.metadata, "version", lambda name: "0.7.1")
    with pytest.raises(integration.VerlPatchError, match=r"0\.7\.1 .* 0\.8\.0, 0\.9\.0") as caught:
        integration.patch(seed=1)
    assert caught.value.version == "0.7.1"
    assert llm_server.GlobalRequestLoadBalancer is original


def test_importing_the_integration_needs_neither_verl_nor_ray():
    code = "import sys, seqshift.integrations.verl; assert not {'verl', 'ray'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
