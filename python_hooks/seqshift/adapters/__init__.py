"""Adapters: all knowledge of vLLM, one folder per vLLM line. Nothing else in the product imports vllm."""

from __future__ import annotations

import importlib
from types import ModuleType

# vLLM version -> the module that knows it.
KNOWN = {"0.9.1": "seqshift.adapters.vllm_0_9_1"}


class UnsupportedVersion(RuntimeError):
    """vLLM is absent, or of a version that no adapter knows."""


def load() -> ModuleType:
    """The adapter of the vLLM that is installed.

    Raises:
        UnsupportedVersion: names the version found and those that are known.
    """
    try:
        import vllm
    except ImportError as error:
        raise UnsupportedVersion(f"vllm cannot be imported ({error}): install one of {', '.join(KNOWN)}") from error
    version = str(vllm.__version__).split("+")[0]
    if version not in KNOWN:
        raise UnsupportedVersion(f"vllm {vllm.__version__} is not known: install one of {', '.join(KNOWN)}")
    return importlib.import_module(KNOWN[version])
