"""The `vllm.general_plugins` entry point: with ROLLOUT_REBALANCE_ENABLE=1, no line of user code has to change.

vLLM calls `register` in every process that it starts, before an engine exists: where the user makes an `LLM`, in
engine and worker processes, and in the process that inspects model classes, which never holds an engine and is left
alone. An exception would come out of the user's `LLM(...)`, or end the inspection with a message about the model, so
none leaves: a setting that cannot be used is one error in the log, vLLM runs as if the package were not installed, and
the ranks agree at engine start that the feature is off. `enable_rollout_rebalance()` called explicitly does raise.
"""

from __future__ import annotations

import logging
import sys

__all__ = ["register"]

_INSPECTION = "vllm.model_executor.models.registry"
_log = logging.getLogger("seqshift")


def register() -> None:
    """Installs the hooks if the environment asks for them. May be called any number of times; never raises."""
    if _inspects_models():
        return
    try:
        from seqshift.config import RolloutRebalanceConfig

        config = RolloutRebalanceConfig.resolve(None)
    except ValueError as error:
        _log.error("seqshift is off in this process: %s", error)
        return
    if not config.enable:
        return
    try:
        from seqshift.rebalance import enable_rollout_rebalance

        enable_rollout_rebalance(config)
    except Exception:
        _log.exception("seqshift is off in this process: its hooks could not be installed")


def _inspects_models() -> bool:
    # vLLM starts that process as `python -m vllm.model_executor.models.registry`.
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _INSPECTION
