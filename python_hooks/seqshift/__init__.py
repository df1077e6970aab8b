"""Moves unfinished sequences between the data-parallel ranks of a vLLM group.

Importing this package needs neither torch nor vllm.
"""

from seqshift._native import __version__

__all__ = ["__version__"]
