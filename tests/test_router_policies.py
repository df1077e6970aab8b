"""Selectable policies, declared loads, shadow counting and the event callback of `AffinityRouter`."""

from __future__ import annotations

import pytest
from seqshift import AffinityRouter


def pair(**options) -> AffinityRouter:
    return AffinityRouter({"s0": None, "s1": None}, seed=2, **options)


def pin_to_s0(balancer: AffinityRouter, **fields) -> None:
    balancer._inflight_requests["s1"] = 1
    assert balancer.acquire_server("c", **fields)[0] == "s0"


def kept_at(balancer: AffinityRouter, pinned: int, other: int) -> bool:
    balancer._inflight_requests["s0"] = pinned
    balancer._inflight_requests["s1"] = other
    return balancer.acquire_server("c")[0] == "s0"


def test_sticky_ignores_the_margin():
    balancer = pair(policy="sticky", affinity_break_margin=0)
    pin_to_s0(balancer)
    assert kept_at(balancer, 1000, 0)


@pytest.mark.parametrize(
    ("absolute", "relative", "pinned", "other", "kept"),
    [
        (4, 1.1, 14, 10, True),  # the difference is not above the threshold
        (4, 1.1, 15, 10, False),
        (4, 1.5, 15, 10, True),  # nor is the ratio
        (4, 1.5, 16, 10, False),
        (0, 1.0, 1000, 0, True),  # off
        (32, 1.5, 33, 0, False),
    ],
)
def test_dual_threshold(absolute, relative, pinned, other, kept):
    balancer = pair(policy="dual_threshold", balance_abs_threshold=absolute, balance_rel_threshold=relative)
    pin_to_s0(balancer)
    assert kept_at(balancer, pinned, other) is kept


def test_dual_threshold_leaves_a_conversation_on_a_least_loaded_server():
    balancer = pair(policy="dual_threshold", balance_abs_threshold=4, balance_rel_threshold=1.1)
    pin_to_s0(balancer)
    assert kept_at(balancer, 0, 50)
    assert balancer.get_status()["affinity_broken"] == 0


def test_weighted_margin_weighs_what_requests_declare():
    balancer = pair(policy="weighted_margin", affinity_break_margin=1000)
    heavy = balancer.acquire_server("heavy", prompt_ids=[0] * 5000)[0]
    light = [balancer.acquire_server(f"l{i}", prompt_ids=[0] * 100)[0] for i in range(20)]
    assert set(light) == {"s0", "s1"} - {heavy}
    assert balancer.get_status()["declared_loads"][heavy] == 5000
    # 5000 against 2000: beyond the margin, though the other server has twenty requests.
    assert balancer.acquire_server("heavy", prompt_ids=[0] * 5000)[0] != heavy
    assert balancer.explain_last()["reason"] == "broken"
    assert balancer.explain_last()["min_load"] == 2000


def test_a_release_takes_back_what_the_request_declared():
    balancer = AffinityRouter({"s0": None}, policy="weighted_margin", load_field="tokens")
    balancer.acquire_server("a", tokens=700)
    balancer.acquire_server("b", tokens=50)
    balancer.release_server("s0", "a")
    assert balancer.get_status()["declared_loads"] == {"s0": 50}
    balancer.release_server("s0")
    assert balancer.get_status()["declared_loads"] == {"s0": 0}


def test_blocks_are_rounded_up_and_silence_weighs_one():
    balancer = AffinityRouter({"s0": None}, policy="weighted_margin", load_block_size=128)
    balancer.acquire_server("a", prompt_ids=range(129))
    balancer.acquire_server("b")
    balancer.acquire_server("c", prompt_ids=None)
    assert balancer.get_status()["declared_loads"] == {"s0": 4}


@pytest.mark.parametrize("bad", [-5, 1.5, object()])
def test_a_load_that_is_none_is_refused_by_field(bad):
    balancer = AffinityRouter({"s0": None}, policy="weighted_margin", load_field="tokens")
    with pytest.raises(ValueError, match="tokens"):
        balancer.acquire_server("a", tokens=bad)
    assert balancer.get_total_inflight() == 0


def test_shadow_counts_what_the_other_policy_would_have_done():
    balancer = pair(policy="margin", affinity_break_margin=2, shadow_policy={"policy": "dual_threshold"})
    pin_to_s0(balancer)
    assert kept_at(balancer, 2, 0)  # both keep
    assert not kept_at(balancer, 3, 0)  # only the margin breaks
    balancer._inflight_requests["s0"] = 0
    balancer._inflight_requests["s1"] = 40
    assert balancer.acquire_server("c")[0] == "s0"  # both break
    assert balancer.get_status()["shadow"] == {"policy": "dual_threshold", "kept": 2, "broken": 1, "differs": 1}
    assert "shadow" not in pair().get_status()


def test_a_shadow_by_name_shares_the_options():
    balancer = pair(policy="sticky", shadow_policy="margin", affinity_break_margin=1)
    pin_to_s0(balancer)
    assert kept_at(balancer, 2, 0)
    assert balancer.get_status()["shadow"] == {"policy": "margin", "kept": 0, "broken": 1, "differs": 1}


def test_every_choice_is_an_event_and_the_callback_may_use_the_router():
    seen = []

    def observe(event):
        seen.append((event["reason"], event["server_id"], balancer.get_total_inflight()))

    balancer = pair(affinity_break_margin=1, on_decision=observe)
    pin_to_s0(balancer)
    assert kept_at(balancer, 1, 0)
    assert not kept_at(balancer, 2, 0)
    balancer.remove_servers(["s1"])
    balancer.acquire_server("c")
    assert [event[0] for event in seen] == ["new", "kept", "broken", "server_gone"]
    assert [event[1] for event in seen] == ["s0", "s0", "s1", "s0"]
    assert seen[0][2] == 2


def test_a_failing_callback_does_not_lose_the_request(monkeypatch):
    unraisable = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)

    def fail(_):
        raise RuntimeError("broken observer")

    balancer = pair(on_decision=fail)
    assert balancer.acquire_server("c")[0] in ("s0", "s1")
    assert balancer.get_total_inflight() == 1
    assert [str(event.exc_value) for event in unraisable] == ["broken observer"]
