"""What a process may leave behind: shared-memory segments that nobody holds any more, and open files."""

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


def more_handles(before: dict[str, int]) -> dict[str, int]:
    """How many more open files there are now, of the kinds that have become more."""
    now = handles()
    return {kind: count - before.get(kind, 0) for kind, count in now.items() if count > before.get(kind, 0)}


def handles() -> dict[str, int]:
    """Open files of this process by kind."""
    counts: dict[str, int] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            kind = os.readlink(f"/proc/self/fd/{name}").partition(":")[0]
        except FileNotFoundError:
            continue
        if kind in ("socket", "pipe") or "memfd" in kind:
            counts[kind] = counts.get(kind, 0) + 1
    return counts
