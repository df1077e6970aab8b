"""How long exchanges with the group stop a rank, from the moment that all ranks of its DP group have entered."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Beyond its deadline an exchange has local work, on machines that do other things, too.
SLACK_SECONDS = 0.5
# One that raises tells the peers (FAREWELL, to the ranks and to the shards), and with a copy in the background it waits
# for its thread, which looks (PROBE) and then stops its streams (GRACE).
FAREWELL_SECONDS = 2 * 0.5
COPY_SECONDS = 0.2 + 1.0
# The adapter's method whose end is a rank's entry: what it returns goes into the first message.
ENTRIES = {"check": "counts", "drain": "take_sync"}


@dataclass
class Wait:
    """One exchange on one rank, in seconds of a clock that all processes of a machine share."""

    name: str
    entered: float
    ended: float = 0.0


@contextlib.contextmanager
def timed(session: Any) -> Iterator[list[Wait]]:
    """The checks and drains that a session makes meanwhile, in their order; those that raise end when they have."""
    waits: list[Wait] = []
    if session is None:
        yield waits
        return
    adapter, together = session.adapter, session._together
    under_way: list[Wait] = []

    def entering(name: str, method: str) -> Any:
        original = getattr(adapter, method)

        def replacement(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                if under_way and under_way[0].name == name:
                    under_way.pop().entered = time.monotonic()

        return replacement

    def exchange(act: Any) -> Any:
        name = act.__name__
        if name not in ENTRIES:
            return together(act)
        one = Wait(name, time.monotonic())
        waits.append(one)
        under_way[:] = [one]
        try:
            return together(act)
        finally:
            under_way.clear()
            one.ended = time.monotonic()

    with contextlib.ExitStack() as stack:
        for name, method in ENTRIES.items():
            stack.enter_context(_attribute(adapter, method, entering(name, method)))
        stack.enter_context(_attribute(session, "_together", exchange))
        yield waits


@contextlib.contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An object's own attribute for a while."""
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def longest(ranks: list[list[Wait]], tp: int = 1) -> list[float]:
    """By process, the most seconds that an exchange took from when all ranks of its DP group had entered.

    Shards of one rank are neighbours in `ranks`. A rank that enters seconds late makes the others wait as long as the
    engine's own collectives would; that is not counted.
    """
    found = [0.0] * len(ranks)
    for shard in range(tp):
        group = range(shard, len(ranks), tp)
        for number in range(max(len(ranks[rank]) for rank in group)):
            there = [rank for rank in group if number < len(ranks[rank])]
            entered = max(ranks[rank][number].entered for rank in there)
            for rank in there:
                found[rank] = max(found[rank], ranks[rank][number].ended - entered)
    return found


def limit(deadline: float, stops: bool, copies: bool) -> float:
    """Most seconds that an exchange may take; `stops`: it may raise; `copies`: KV is copied in the background."""
    return deadline + SLACK_SECONDS + stops * (FAREWELL_SECONDS + copies * COPY_SECONDS)
