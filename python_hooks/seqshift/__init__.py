"""Moves unfinished sequences between the data-parallel ranks of a vLLM group.

Importing this package needs neither torch nor vllm.
"""

from __future__ import annotations

from typing import Any

from seqshift import _native, hook
from seqshift._native import __version__
from seqshift.config import ConfigError, RolloutRebalanceConfig
from seqshift.planning import Move, Plan, RankLoad, SequenceLoad, plan_migrations
from seqshift.rebalance import disable_rollout_rebalance, enable_rollout_rebalance
from seqshift.router import AffinityRouter

init_rollout_rebalance = enable_rollout_rebalance


def stats() -> dict[str, Any]:
    """What this process has done since the hooks went in, summed over its engines; zeros before."""
    return _native.stats()


__all__ = [
    "AffinityRouter",
    "ConfigError",
    "Move",
    "Plan",
    "RankLoad",
    "RolloutRebalanceConfig",
    "SequenceLoad",
    "__version__",
    "disable_rollout_rebalance",
    "enable_rollout_rebalance",
    "hook",
    "init_rollout_rebalance",
    "plan_migrations",
    "stats",
]
