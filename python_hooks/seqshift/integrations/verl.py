"""`AffinityRouter` as verl's load balancer.

verl 0.9.1 takes a router by configuration, without a patch: set `rollout.router_config_path` to a YAML file with

    router_class: seqshift.integrations.verl.Router
    affinity_break_margin: 2

and any other option of `AffinityRouter`. verl 0.8.0 and 0.9.0 have no such setting: `patch(affinity_break_margin=2)`
replaces the class that `verl.workers.rollout.llm_server` instantiates, and `unpatch()` puts it back. It must run in the
process that makes verl's `LLMServerManager`, before that.

Importing this module needs neither verl nor Ray.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import threading
from collections.abc import Mapping
from importlib import metadata
from typing import Any, NamedTuple

from seqshift.router import AffinityRouter

__all__ = ["Router", "VerlPatchError", "patch", "unpatch"]

log = logging.getLogger("seqshift")

LLM_SERVER = "verl.workers.rollout.llm_server"
CLASS_NAME = "GlobalRequestLoadBalancer"
PLUGIN_VERSION = "0.9.1"


class Router(AffinityRouter):
    """`AffinityRouter` with the constructor that verl's router factory calls.

    Args:
        servers: actor handles by server address.
        config: the router YAML as a dict: `router_class`, which is ignored, and options of `AffinityRouter`.
        **options: options of `AffinityRouter`; they win over `config`.

    Raises:
        ValueError: naming the option.
    """

    def __init__(self, servers: Mapping[str, Any], config: Mapping[str, Any] | None = None, **options: Any):
        if config is not None and not isinstance(config, Mapping):
            raise ValueError(f"config must be the mapping of a router YAML, not {config!r}")
        merged = {name: value for name, value in (config or {}).items() if name != "router_class"}
        merged.update(options)
        super().__init__(servers, **merged)


class VerlPatchError(RuntimeError):
    """The patch does not fit the verl that is installed; nothing was changed.

    Attributes:
        version: of verl, None if it is not installed.
    """

    def __init__(self, message: str, version: str | None):
        super().__init__(message)
        self.version = version


class _Known(NamedTuple):
    """What the patch relies on in one version of verl."""

    is_actor_class: bool
    parameters: tuple[str, ...]


KNOWN = {
    "0.8.0": _Known(is_actor_class=True, parameters=("servers", "max_cache_size")),
    "0.9.0": _Known(is_actor_class=False, parameters=("servers", "max_cache_size", "full_determinism")),
}
METHODS = ("acquire_server", "release_server", "add_servers", "remove_servers", "get_inflight_count", "get_all_servers")

_lock = threading.Lock()


class _Patch(NamedTuple):
    module: Any
    original: Any
    replacement: Any


_installed: _Patch | None = None


def patch(**options: Any) -> None:
    """Makes verl 0.8.0 or 0.9.0 use `AffinityRouter` with `options`. A second call replaces the options.

    `max_cache_size` is taken from `options` alone: the number that verl passes is a constant of its source. The
    `full_determinism` that verl 0.9.0 passes from its rollout configuration holds unless `options` has one.

    Raises:
        VerlPatchError: verl is missing, of another version, or not as that version is known; nothing was changed.
        ValueError: naming the option.
    """
    global _installed
    Router({}, **options)
    with _lock:
        version, known = _known_version()
        module = importlib.import_module(LLM_SERVER)
        if _installed is not None and getattr(module, CLASS_NAME) is _installed.replacement:
            original = _installed.original
        else:
            original = getattr(module, CLASS_NAME, None)
            _check(original, version, known)
        replacement: Any = _bound(options)
        if known.is_actor_class:
            import ray

            replacement = ray.remote(replacement)
        setattr(module, CLASS_NAME, replacement)
        _installed = _Patch(module, original, replacement)
        log.info("verl %s: %s is seqshift's AffinityRouter", version, CLASS_NAME)


def unpatch() -> bool:
    """Puts verl's own class back.

    Returns:
        False if there is nothing of ours to take out: no patch, or somebody has replaced it since.
    """
    global _installed
    with _lock:
        if _installed is None:
            return False
        done, _installed = _installed, None
        if getattr(done.module, CLASS_NAME, None) is not done.replacement:
            log.warning("%s was replaced by somebody else after the patch; it stays as it is", CLASS_NAME)
            return False
        setattr(done.module, CLASS_NAME, done.original)
        return True


def _bound(options: Mapping[str, Any]) -> type:
    class GlobalRequestLoadBalancer(Router):
        """`Router` with the options of `patch` and the constructor of verl's class."""

        def __init__(self, servers: Mapping[str, Any], max_cache_size: Any = None, full_determinism: bool = False):
            super().__init__(servers, {"full_determinism": full_determinism}, **options)

    return GlobalRequestLoadBalancer


def _known_version() -> tuple[str, _Known]:
    try:
        version = metadata.version("verl")
    except metadata.PackageNotFoundError:
        raise VerlPatchError("verl is not installed: there is nothing to patch", None) from None
    if version == PLUGIN_VERSION:
        raise VerlPatchError(
            f"verl {version} needs no patch: set rollout.router_config_path to a YAML file with "
            f"'router_class: {__name__}.{Router.__name__}'",
            version,
        )
    if version not in KNOWN:
        raise VerlPatchError(
            f"verl {version} is not known to the patch, which knows {', '.join(KNOWN)}; "
            f"verl {PLUGIN_VERSION} takes the router through rollout.router_config_path",
            version,
        )
    return version, KNOWN[version]


def _check(found: Any, version: str, known: _Known) -> None:
    """Compares the class with what its version is known to have."""
    cls = found
    if known.is_actor_class:
        cls = getattr(getattr(found, "__ray_metadata__", None), "modified_class", None)
    if not isinstance(cls, type):
        raise VerlPatchError(f"verl {version}: {LLM_SERVER}.{CLASS_NAME} is {found!r}, not as it is known", version)
    # Ray adds parameters of its own to the methods of an actor class.
    parameters = tuple(p for p in inspect.signature(cls.__init__).parameters if not p.startswith("_ray"))[1:]
    if parameters != known.parameters:
        raise VerlPatchError(
            f"verl {version}: {CLASS_NAME} takes {parameters} and not {known.parameters}; somebody has changed it",
            version,
        )
    missing = [name for name in METHODS if not callable(getattr(cls, name, None))]
    if missing:
        raise VerlPatchError(f"verl {version}: {CLASS_NAME} has no method {missing[0]}; somebody changed it", version)
