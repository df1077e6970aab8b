"""Shared-memory segments that nobody holds any more."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

FOLDER = "/dev/shm"


def segments() -> set[str]:
    """The names of all that exist."""
    return set(os.listdir(FOLDER))


def left_behind(before: Iterable[str]) -> set[str]:
    """Those that came after `before` and that no living process has mapped: what others use is theirs."""
    found = segments() - set(before)
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        found = {name for name in found if f"{FOLDER}/{name}" not in text}
    # Whoever has ended meanwhile has taken its own along.
    return found & segments()
