"""One agreement among the ranks of an engine group over a key-value store: everybody's words, and one verdict.

A store, not a collective: a rank without our hooks never answers, and a collective that it does not know of would pair
with its next all-reduce. Whoever's deadline passes first sets the verdict to "off" with one atomic compare-and-set,
so that no two ranks hold different verdicts.
"""

from __future__ import annotations

import json
from datetime import timedelta
from time import monotonic
from typing import Any, Callable

ON = "on"


def agree(
    store: Any, topic: str, member: int, members: list[int], words: dict, judge: Callable[[dict], str], seconds: float
) -> tuple[str, dict[int, dict]]:
    """Posts this member's words and returns (verdict, everybody's words).

    The verdict is ON, or the reason why not. The lowest member hears everybody and judges: `judge(words by member)`.

    Args:
        store: a torch Store.
        topic: distinguishes agreements; never used twice.
        seconds: longest wait for the words of all.
    """
    end = monotonic() + seconds
    key = f"seqshift/{topic}"
    store.set(f"{key}/{member}", json.dumps(words))
    heard: dict[int, dict] = {}
    verdict = None
    if member == min(members):
        for other in members:
            text = _wait(store, f"{key}/{other}", end)
            if text is None:
                verdict = f"rank {other} did not answer within {seconds:g} s: is it hooked?"
                break
            heard[other] = json.loads(text)
        verdict = _decide(store, topic, verdict or judge(heard))
    else:
        # The leader's own deadline comes first.
        verdict = _wait(store, verdict_key(topic), end + 5)
        if verdict is None:
            verdict = _decide(store, topic, f"rank {min(members)} gave no verdict within {seconds:g} s: is it hooked?")
    if verdict == ON:
        for other in members:
            if other not in heard:
                heard[other] = json.loads(_wait(store, f"{key}/{other}", end + 5) or "{}")
    return verdict, heard


def verdict_key(topic: str) -> str:
    """Where the verdict on a topic stands once there is one."""
    return f"seqshift/{topic}/verdict"


def _decide(store: Any, topic: str, verdict: str) -> str:
    """Sets the verdict unless somebody has; returns the one that holds."""
    return store.compare_set(verdict_key(topic), "", verdict).decode()


def _wait(store: Any, key: str, end: float) -> str | None:
    left = max(end - monotonic(), 0.001)
    try:
        store.wait([key], timedelta(seconds=left))
    except RuntimeError:  # torch's DistStoreError
        return None
    return store.get(key).decode()
