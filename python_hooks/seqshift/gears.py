"""Where vLLM and vllm-ascend 0.9.1 take graph batch sizes from, and which ones the engine made of them.

A gear is the number of sequences per rank that a compiled decode graph is padded to. There are two sorts of graphs:

* torchair (DeepSeek-type models), when the user's `additional_config["torchair_graph_config"]["enabled"]` is true. Its
  config class refuses sizes otherwise, and wants a plain list. The runner sorts the list, drops sizes above
  `max_num_seqs`, adds `max_num_seqs`, and with expert parallelism rounds up to multiples of the TP size.
* aclgraph (the others), from `compilation_config.cudagraph_capture_sizes`. vllm-ascend thins the list out when the
  device has too few streams for it. A batch above the largest size runs without a graph, at its own size.

Every value is in sequences, which is tokens per decode step as long as there is no speculative decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["DEFAULT_MAX_NUM_SEQS", "GearPlacement", "effective_gears", "place_gears"]

# `default_max_num_seqs` in `EngineArgs._set_default_args_v1` of vLLM 0.9.1, for devices that do not tell their memory
# (NPU and CPU platforms do not).
DEFAULT_MAX_NUM_SEQS = 256


class GearPlacement(NamedTuple):
    """What the engine is to be given in place of the user's settings; whatever is left alone is the user's object."""

    additional_config: Mapping[str, Any] | None
    capture_sizes: Sequence[int] | None


def place_gears(
    additional_config: Mapping[str, Any] | None,
    capture_sizes: Sequence[int] | None,
    max_num_seqs: int | None,
    gears: Iterable[int],
    *,
    aclgraph: bool,
) -> GearPlacement:
    """Puts the gears where the engine will read them. Changes no argument; placing twice is placing once.

    `additional_config` and `capture_sizes` (`compilation_config.cudagraph_capture_sizes`) are the user's, None where
    nothing was given; a `max_num_seqs` of None is vLLM's default. `aclgraph` says that the engine will compile ACL
    graphs unless torchair is enabled. The largest size stays the user's, or is `max_num_seqs`, so that no batch that
    had a graph loses it; gears above it are left out.
    """
    limit = max_num_seqs or DEFAULT_MAX_NUM_SEQS
    torchair = (additional_config or {}).get("torchair_graph_config") or {}
    if torchair.get("enabled"):
        given = torchair.get("graph_batch_sizes") or ()
        if not _are_sizes(given):
            # vllm-ascend's own check names what is wrong with them.
            return GearPlacement(additional_config, capture_sizes)
        sizes = _below(gears, max(given, default=limit))
        changed = {
            **torchair,
            "graph_batch_sizes": sizes,
            # Refused beside sizes: it asks for sizes chosen by the runner.
            "graph_batch_sizes_init": False,
            "use_cached_graph": True,
        }
        return GearPlacement({**additional_config, "torchair_graph_config": changed}, capture_sizes)
    if aclgraph:
        given = list(capture_sizes or ())
        top = max(given, default=limit)
        capture_sizes = sorted({*given, *_below(gears, top)}, reverse=True)
    return GearPlacement(additional_config, capture_sizes)


def effective_gears(runner: Any, gears: Sequence[int], max_num_seqs: int) -> tuple[int, ...]:
    """The gears that the engine really has, largest first, read from its model runner after initialisation.

    Where the runner compiles no graphs (eager mode, the CPU backend), these are the configured `gears` as they are.
    Otherwise the largest gear is the smallest size that holds `max_num_seqs` sequences; with aclgraph and no such
    size it is `max_num_seqs`, which stands for running without a graph.
    """
    if getattr(runner, "torchair_graph_enabled", False):
        sizes = {size // runner.decode_token_per_req for size in runner.torchair_graph_batch_sizes}
    elif getattr(runner, "use_aclgraph", False):
        sizes = set(runner.aclgraph_batch_sizes)
    else:
        return tuple(gears)
    top = min((size for size in sizes if size >= max_num_seqs), default=max_num_seqs)
    return tuple(_below(sizes, top))


def _below(gears: Iterable[int], top: int) -> list[int]:
    """The top and the gears below it, largest first."""
    return sorted({int(top), *(int(gear) for gear in gears if gear < top)}, reverse=True)


def _are_sizes(value: Any) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return False
    return all(isinstance(size, int) and size > 0 for size in value)
