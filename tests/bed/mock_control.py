"""Steers the CPU mock of CANN in other processes: fault rules and counters, laid out as in `seqshift_mock.h`."""

from __future__ import annotations

import ctypes
import mmap
import os
from enum import IntEnum
from pathlib import Path

NAME_BYTES = 56
SYMBOLS = 160
RULES = 64
RANKS = 64
ANY = -1


class Action(IntEnum):
    """What a rule does to the calls that it hits; see `seqshift_mock.h`."""

    RETURN = 1
    DELAY = 2
    STALL = 3
    KILL = 4
    CORRUPT = 5
    FAIL_TASK = 6
    KILL_IN_TASK = 7


class CounterLayout(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * NAME_BYTES),
        ("state", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("calls", ctypes.c_uint64 * RANKS),
    ]


class RuleLayout(ctypes.Structure):
    _fields_ = [
        ("symbol", ctypes.c_char * NAME_BYTES),
        ("armed", ctypes.c_uint32),
        ("rank", ctypes.c_int32),
        ("pid", ctypes.c_int32),
        ("action", ctypes.c_uint32),
        ("first", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("value", ctypes.c_int64),
        ("seen", ctypes.c_uint64),
        ("hits", ctypes.c_uint64),
        ("released", ctypes.c_uint32),
        ("stalled", ctypes.c_uint32),
    ]


class ControlLayout(ctypes.Structure):
    _fields_ = [
        ("magic", ctypes.c_uint64),
        ("version", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("hcclExecTimeoutMs", ctypes.c_uint64),
        ("hcclConnectTimeoutMs", ctypes.c_uint64),
        ("deviceMemory", ctypes.c_uint64 * RANKS),
        ("rules", RuleLayout * RULES),
        ("counters", CounterLayout * SYMBOLS),
    ]


class Rule:
    """One armed rule."""

    def __init__(self, layout: RuleLayout) -> None:
        self._layout = layout

    @property
    def seen(self) -> int:
        """Matching calls since the rule was armed."""
        return self._layout.seen

    @property
    def hits(self) -> int:
        """Calls that were hit."""
        return self._layout.hits

    @property
    def stalled(self) -> int:
        """Tasks that are stalled now."""
        return self._layout.stalled

    def release(self) -> None:
        """Ends all stalls of this rule."""
        self._layout.released = 1

    def disarm(self) -> None:
        """Lets all further calls alone. What is stalled stays so until released."""
        self._layout.armed = 0


class MockControl:
    """The control segment in `path`, which the processes to be steered get as SEQSHIFT_MOCK_CONTROL."""

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, ctypes.sizeof(ControlLayout))
            self._memory = mmap.mmap(descriptor, ctypes.sizeof(ControlLayout))
        finally:
            os.close(descriptor)
        self.layout = ControlLayout.from_buffer(self._memory)
        self._armed = 0

    def arm(
        self,
        symbol: str,
        action: Action,
        *,
        rank: int = ANY,
        pid: int = 0,
        first: int = 1,
        count: int = 1,
        value: int = 0,
    ) -> Rule:
        """Arms a rule for calls `first` to `first + count - 1` of `symbol`; count 0 means all from `first` on."""
        if self._armed == RULES:
            raise ValueError(f"all {RULES} rules of {self.path} are used; take a new segment")
        rule = self.layout.rules[self._armed]
        self._armed += 1
        rule.symbol = symbol.encode()
        rule.rank, rule.pid, rule.action = rank, pid, action
        rule.first, rule.count, rule.value = first, count, value
        rule.armed = 1
        return Rule(rule)

    def reset(self) -> None:
        """Frees all rules for use again. Nothing that runs in the mock may be looking at one."""
        for index in range(self._armed):
            rule = self.layout.rules[index]
            rule.released, rule.armed = 1, 0
            if rule.stalled:
                raise RuntimeError(f"{rule.symbol.decode()}: {rule.stalled} tasks are still stalled")
            ctypes.memset(ctypes.addressof(rule), 0, ctypes.sizeof(rule))
        self._armed = 0

    def calls(self, symbol: str, rank: int = RANKS - 1) -> int:
        """Calls of `symbol` by the processes of `rank`; the last slot counts those without a rank."""
        for counter in self.layout.counters:
            if counter.name == symbol.encode():
                return counter.calls[rank]
        return 0

    def called(self, rank: int) -> dict[str, int]:
        """Calls of every symbol so far by the processes of `rank`."""
        found = {counter.name.decode(): counter.calls[rank] for counter in self.layout.counters if counter.name}
        return {name: calls for name, calls in found.items() if calls}
