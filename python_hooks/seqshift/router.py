"""`AffinityRouter`: sticky sessions over replicas that let go in time.

A thin class over the Rust router. Its methods are plain Python functions because Ray registers only those as
methods of an actor; none is `async`, which would make the actor an asyncio one and lose the order of calls.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from seqshift._native import ROUTER_POLICIES, RouterCore

DETERMINISM_HASHES = ("stable", "verl")
POLICY_OPTIONS = ("affinity_break_margin", "balance_abs_threshold", "balance_rel_threshold")
OTHER_OPTIONS = ("load_field", "load_block_size", "determinism_hash", "shadow_policy", "on_decision")


class InflightView(MutableMapping):
    """Requests in flight by server id: live, and assignable.

    An assignment sets the count and leaves what is known of single requests as it is. Servers are added and removed
    with the router's methods, not here.
    """

    __slots__ = ("_core",)

    def __init__(self, core: RouterCore):
        self._core = core

    def __getitem__(self, server_id: str) -> int:
        load = self._core.inflight(server_id)
        if load is None:
            raise KeyError(server_id)
        return load

    def __setitem__(self, server_id: str, load: int) -> None:
        self._core.set_inflight(server_id, _count(f"_inflight_requests[{server_id!r}]", load))

    def __delitem__(self, server_id: str) -> None:
        if self._core.inflight(server_id) is None:
            raise KeyError(server_id)
        self._core.remove_servers([server_id])

    def __iter__(self) -> Iterator[str]:
        return iter(self._core.loads())

    def __len__(self) -> int:
        return len(self._core.servers())

    def __repr__(self) -> str:
        return f"InflightView({self._core.loads()!r})"

    def copy(self) -> dict[str, int]:
        """The counts as they are now."""
        return self._core.loads()


class AffinityRouter:
    """Places the turns of conversations on servers.

    Args:
        servers: handles by server id; may be empty. Handles are kept as they are and handed out by `acquire_server`.
        policy: when a pin is kept: "margin", "sticky", "dual_threshold" or "weighted_margin".
        affinity_break_margin: for the two margin policies: load that the pinned server may have above the least
            loaded one, inclusive; in requests, for "weighted_margin" in the unit of the declared load. None: pins
            never break.
        full_determinism: choose by hash of the id over the full pool, whatever the load.
        max_cache_size: conversations to remember beside those in flight. None: as many as live.
        seed: of the choice among equally loaded servers. None: from the system.
        balance_abs_threshold, balance_rel_threshold: for "dual_threshold": the pool is imbalanced if
            max - min > balance_abs_threshold and max > balance_rel_threshold * min. A first threshold of 0 is off.
        load_field: for "weighted_margin": the field of `acquire_server` that declares load, a number or a sequence
            whose length counts. Default "prompt_ids".
        load_block_size: declared units per unit of load, rounded up: 1 counts tokens, a KV block's size counts blocks.
        determinism_hash: "stable", or "verl" for verl's own formula, which is stable only under PYTHONHASHSEED.
        shadow_policy: a policy that is asked and counted but not followed: a name, or a mapping with `policy` and
            options of its own.
        on_decision: called with the dict of `explain_last` after each choice. What it raises is reported to
            `sys.unraisablehook` and does not fail the request.

    Raises:
        ValueError: naming the option, for a value that it cannot have and for an unknown option.
    """

    def __init__(
        self,
        servers: Mapping[str, Any],
        *,
        policy: str = "margin",
        affinity_break_margin: float | None = None,
        full_determinism: bool = False,
        max_cache_size: int | None = None,
        seed: int | None = None,
        **policy_options: Any,
    ):
        options = dict(policy_options)
        for name in options:
            if name not in POLICY_OPTIONS and name not in OTHER_OPTIONS:
                known = ", ".join(POLICY_OPTIONS + OTHER_OPTIONS)
                raise ValueError(f"{name} is not an option of AffinityRouter; policy options are {known}")
        options["affinity_break_margin"] = affinity_break_margin
        chosen = (_policy("policy", policy), _policy_options(options))
        shadow = _shadow(options.get("shadow_policy"), options)
        if not isinstance(full_determinism, bool):
            raise ValueError(f"full_determinism must be True or False, not {full_determinism!r}")
        weighs = "weighted_margin" in (chosen[0], shadow and shadow[0])
        load_field = _load_field(options.get("load_field", "prompt_ids"))
        self._load_field = load_field if weighs else None
        self._policy = chosen[0]
        self._shadow_policy = shadow and shadow[0]
        self._core = RouterCore(
            policy=chosen,
            shadow=shadow,
            full_determinism=full_determinism,
            max_conversations=None if max_cache_size is None else _count("max_cache_size", max_cache_size, least=1),
            seed=secrets.randbits(64) if seed is None else _count("seed", seed) % 2**64,
            load_field=self._load_field,
            load_block_size=_count("load_block_size", options.get("load_block_size", 1), least=1),
            python_hash=_python_hash(options.get("determinism_hash", "stable")) and full_determinism,
            on_decision=_callback(options.get("on_decision")),
        )
        self._core.add_servers(dict(servers))
        # Direct calls skip the Python function below, unless a subclass has its own.
        for name in ("acquire_server", "release_server"):
            if getattr(type(self), name) is getattr(AffinityRouter, name):
                setattr(self, name, getattr(self._core, name))

    def acquire_server(self, request_id: str, **fields: Any) -> tuple[str, Any]:
        """Places one turn and counts it as in flight until `release_server`.

        Args:
            request_id: id of the conversation.
            **fields: those that `require_acquire_fields` names; others are ignored.

        Returns:
            `(server_id, handle)`.

        Raises:
            RuntimeError: the pool is empty ("No available servers in load balancer").
        """
        return self._core.acquire_server(request_id, **fields)

    def release_server(self, server_id: str, request_id: str | None = None) -> None:
        """Takes back one request.

        With a `request_id`, exactly that conversation's oldest request on this server; without, any one. Unknown
        servers, unknown requests and surplus releases are ignored.
        """
        self._core.release_server(server_id, request_id)

    def require_acquire_fields(self) -> list[str]:
        """The fields of a request that the policy weighs; empty if it counts requests."""
        return [] if self._load_field is None else [self._load_field]

    def require_release_fields(self) -> list[str]:
        """`request_id`, so that a late release never takes another request's place."""
        return ["request_id"]

    def add_servers(self, servers: Mapping[str, Any]) -> None:
        """Adds servers with nothing in flight.

        A server that is in the pool already keeps its count if its handle is the same object; with another handle it
        counts as started anew.
        """
        self._core.add_servers(dict(servers))

    def remove_servers(self, server_ids: Iterable[str]) -> None:
        """Removes servers; unknown ones are ignored. Conversations pinned there are placed anew."""
        self._core.remove_servers(list(server_ids))

    def get_inflight_count(self, server_id: str) -> int:
        """Requests in flight on a server, 0 if it is not in the pool."""
        return self._core.inflight(server_id) or 0

    def get_all_servers(self) -> list[str]:
        """Ids of the servers in the pool, in the order in which they were added."""
        return list(self._core.loads())

    def get_total_inflight(self) -> int:
        """Requests in flight on all servers of the pool."""
        return self._core.total_inflight()

    def clear_sticky_cache(self) -> dict[str, Any]:
        """Drops all pins, so that the next turn of each conversation is placed by load.

        Returns:
            `cleared_entries`, the number of pins dropped, and `server_loads`.
        """
        return {"cleared_entries": self._core.clear_pins(), "server_loads": self._core.loads()}

    def get_status(self) -> dict[str, Any]:
        """Counts for monitoring.

        Returns:
            `servers` (in flight by id), `total_inflight`, `active_servers`, `registered_handles` (ids),
            `affinity_kept`, `affinity_broken`, `reasons` (decisions by reason), `policy`, `pinned_conversations`;
            with a policy that weighs `declared_loads`; with a shadow policy `shadow` (`policy`, `kept`, `broken`,
            `differs`).
        """
        loads = self._core.loads()
        reasons = self._core.reasons()
        status = {
            "servers": loads,
            "total_inflight": sum(loads.values()),
            "active_servers": len(loads),
            "registered_handles": list(loads),
            "affinity_kept": reasons["kept"],
            "affinity_broken": reasons["broken"],
            "reasons": reasons,
            "policy": self._policy,
            "pinned_conversations": self._core.pinned(),
        }
        declared = self._core.declared_loads()
        if declared is not None:
            status["declared_loads"] = declared
        shadow = self._core.shadow()
        if shadow is not None:
            status["shadow"] = {"policy": self._shadow_policy, **dict(zip(("kept", "broken", "differs"), shadow))}
        return status

    def explain_last(self) -> dict[str, Any] | None:
        """The last choice: `request_id`, `server_id`, `reason`, `load`, `min_load`, `broken_from`; None before it.

        Loads are those before the request was counted, in the policy's unit. `reason` is "new", "kept", "broken",
        "server_gone" or "deterministic".
        """
        return self._core.explain_last()

    @property
    def _inflight_requests(self) -> InflightView:
        return InflightView(self._core)

    @_inflight_requests.setter
    def _inflight_requests(self, loads: Mapping[str, int]) -> None:
        view = InflightView(self._core)
        for server_id, load in loads.items():
            view[server_id] = load

    @property
    def _servers(self) -> dict[str, Any]:
        return dict(self._core.servers())


def _policy(option: str, name: Any) -> str:
    if name not in ROUTER_POLICIES:
        raise ValueError(f"{option} must be one of {', '.join(ROUTER_POLICIES)}, not {name!r}")
    return name


def _policy_options(options: Mapping[str, Any]) -> dict[str, float]:
    given = {name: options[name] for name in POLICY_OPTIONS if options.get(name) is not None}
    return {name: _number(name, value) for name, value in given.items()}


def _shadow(shadow: Any, options: Mapping[str, Any]) -> tuple[str, dict[str, float]] | None:
    if shadow is None:
        return None
    if not isinstance(shadow, Mapping):
        return _policy("shadow_policy", shadow), _policy_options(options)
    unknown = sorted(set(shadow) - {"policy", *POLICY_OPTIONS})
    if unknown:
        raise ValueError(f"shadow_policy has no option {unknown[0]}; it takes policy, {', '.join(POLICY_OPTIONS)}")
    return _policy("shadow_policy", shadow.get("policy")), _policy_options(shadow)


def _number(option: str, value: Any) -> float:
    # A numpy number is one; a boolean or a text that looks like a number is a mistake.
    if isinstance(value, (str, bytes)) or type(value).__name__ in ("bool", "bool_"):
        raise ValueError(f"{option} must be a number that is not negative, not {value!r}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{option} must be a number that is not negative, not {value!r}") from None
    if not number >= 0:
        raise ValueError(f"{option} must be a number that is not negative, not {value!r}")
    return number


def _count(option: str, value: Any, least: int = 0) -> int:
    if type(value).__name__ not in ("bool", "bool_"):
        try:
            number = value.__index__()
        except AttributeError:
            number = least - 1
        if least <= number < 2**64:
            return number
    raise ValueError(f"{option} must be an integer of at least {least}, not {value!r}")


def _load_field(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier() or name == "request_id":
        raise ValueError(f"load_field must name a field of acquire_server, not {name!r}")
    return name


def _callback(callback: Any) -> Callable[[dict[str, Any]], Any] | None:
    if callback is not None and not callable(callback):
        raise ValueError(f"on_decision must be callable, not {callback!r}")
    return callback


def _python_hash(name: Any) -> bool:
    if name not in DETERMINISM_HASHES:
        raise ValueError(f"determinism_hash must be one of {', '.join(DETERMINISM_HASHES)}, not {name!r}")
    return name == "verl"
