"""Moves unfinished sequences between the data-parallel ranks of a vLLM group.

Importing this package needs neither torch nor vllm.
"""

from seqshift import hook
from seqshift._native import __version__
from seqshift.config import ConfigError, RolloutRebalanceConfig

__all__ = ["ConfigError", "RolloutRebalanceConfig", "__version__", "hook"]
