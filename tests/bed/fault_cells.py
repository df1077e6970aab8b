"""The fault matrix as data: which fault hits which rank (and TP shard) in which step of the protocol.

A cell's injections are made by `bed.fault_run` in the rank that the cell names. The rollout of a cell either goes on
(`ON`), runs without the feature from its beginning (`OFF`), or stops with an error on every rank (`STOPS`), where a
message that nobody can do without is lost.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bed.mock_control import Action

START, LOAD, PLAN, OFFER, RESERVE = "start", "load", "plan", "offer", "reserve"
TRANSFER, COMMIT, RETURN = "transfer", "commit", "return"
# Between plan and offer: a copy in the background.
COPY = "copy"
ON, OFF, STOPS = "goes on", "off from the start", "stops on all ranks"

ACL_INTERNAL = 507000
ACL_OUT_OF_MEMORY = 207001
HCCL_MEMORY = 3
HCCL_INTERNAL = 4
# Half of it is what a stalled transfer costs.
DEADLINE_SECONDS = 4
FOR_EVER = 0


@dataclass(frozen=True)
class Mock:
    """A rule of the mock of CANN, armed once the group is joined, or before it is with `early`."""

    symbol: str
    action: Action
    value: int = 0
    first: int = 1
    count: int = 1
    early: bool = False


@dataclass(frozen=True)
class Frame:
    """Control messages of one kind that are damaged on their way out."""

    kind: str
    action: str
    first: int = 1
    count: int = 1
    milliseconds: int = 1500


@dataclass(frozen=True)
class Raises:
    """Calls of an adapter's method that raise; `interrupt` raises KeyboardInterrupt as Ctrl-C does."""

    method: str
    first: int = 1
    count: int = 1
    interrupt: bool = False


@dataclass(frozen=True)
class Slow:
    """One call of an adapter's method takes seconds; `interrupt_after` sends this process SIGINT meanwhile or later."""

    method: str
    seconds: float = 1.5
    first: int = 1
    interrupt_after: float | None = None


@dataclass(frozen=True, eq=False)
class Cell:
    """One fault at one place. `others` are further injections, by DP rank, that the fault needs to be met."""

    step: str
    fault: str
    rank: int
    shard: int
    injections: tuple[Any, ...]
    outcome: str = ON
    # A counter of seqshift.stats() that must have counted on this rank.
    counted: str | None = None
    others: tuple[tuple[int, Any], ...] = ()
    # Settings of this rollout, and whether it copies in the background however little there is.
    config: dict[str, Any] = field(default_factory=dict)
    precopy: bool = False
    # Moves per rank at least, so that there was something to go wrong.
    moves: int = 4

    def __str__(self) -> str:
        return f"{self.step}: {self.fault}, rank {self.rank}.{self.shard}"

    @property
    def lasting(self) -> bool:
        """Whether the fault goes on for the whole rollout, so that the feature switches itself off."""
        return any(getattr(one, "count", 1) == FOR_EVER for one in self.injections)

    def of(self, rank: int, shard: int) -> list[Any]:
        """The injections of one process."""
        mine = [one for other, one in self.others if (other, self.shard) == (rank, shard)]
        return mine + (list(self.injections) if (rank, shard) == (self.rank, self.shard) else [])


# Step and kind of every message; DRAINED ones are sent once per rollout.
KINDS = {
    "Load": LOAD,
    "Detail": PLAN,
    "Offer": OFFER,
    "Reply": RESERVE,
    "Outcome": COMMIT,
    "Done": COMMIT,
    "Sync": RETURN,
    "Drain": RETURN,
    "Prepare": COPY,
    "Prepared": COPY,
    "Measured": PLAN,
}
# Kinds that only some rollouts send.
SETTINGS: dict[str, dict[str, Any]] = {
    "Prepare": {"precopy": True},
    "Prepared": {"precopy": True},
    "Measured": {"config": {"trigger": "adaptive"}},
}
REPAIRED = {
    "corrupted": ("corrupt", 1, 1),
    "corrupted later": ("corrupt", 4, 1),
    "corrupted three times": ("corrupt", 1, 3),
    "truncated": ("truncate", 1, 1),
    "of another version": ("version", 1, 1),
    "duplicated": ("duplicate", 1, 50),
    "behind a stale one": ("stale", 2, 50),
    "reordered": ("reorder", 2, 50),
    "late": ("delay", 1, 1),
}
LOST = {
    "corrupted four times": ("corrupt", 1, 4),
    "truncated four times": ("truncate", 1, 4),
    "always of another version": ("version", 1, 4),
}


def messages(rank: int, shard: int, dp: int, tp: int) -> Iterator[Cell]:
    """Every kind of message, damaged in every way."""
    kinds = dict(KINDS)
    if tp > 1:
        kinds["Shard"] = RESERVE
    for kind, step in kinds.items():
        settings = SETTINGS.get(kind, {})
        for name, (action, first, count) in REPAIRED.items():
            if (kind == "Drain" and first > 1) or (kind == "Done" and action == "truncate"):
                # Sent once; has no payload.
                continue
            # Each peer's frame is late by itself, one after the other.
            frame = Frame(kind, action, first, count, 1500 // (dp - 1))
            yield Cell(step, f"{kind} {name}", rank, shard, (frame,), **settings)
        for name, (action, first, count) in LOST.items():
            if kind == "Done" and action == "truncate":
                continue
            frame = Frame(kind, action, first, count)
            if kind in ("Offer", "Reply"):
                yield Cell(step, f"{kind} {name}", rank, shard, (frame,), ON, "moves_rejected")
            elif kind in ("Prepare", "Prepared"):
                # The stop sends everything then.
                yield Cell(step, f"{kind} {name}", rank, shard, (frame,), **settings)
            else:
                yield Cell(step, f"{kind} {name}", rank, shard, (frame,), STOPS, **settings)
        yield Cell(step, f"{kind} with a damaged header", rank, shard, (Frame(kind, "header"),), STOPS, **settings)
        if kind not in ("Load", "Drain"):
            # Those two wait for the slowest rank, as long as the engine itself would.
            yield Cell(step, f"{kind} never sent", rank, shard, (Frame(kind, "drop", 1, 9),), STOPS, **settings)
    damaged = Frame("Root", "corrupt", 1, 4)
    yield Cell(START, "Root corrupted", rank, shard, (Frame("Root", "corrupt"),))
    yield Cell(START, "Root corrupted four times", rank, shard, (damaged,), OFF)


# Frames of one kind that an exchange sends to a peer.
COPIES = 2
# What is sent to each peer before the first check's details, by exchange: Root, Load.
BEFORE_DETAIL = 2 * COPIES


def answers(rank: int, shard: int, dp: int) -> Iterator[Cell]:
    """What says that a message was read, was not, or is wanted again, is damaged itself."""
    before = (rank - 1) % dp
    lost = {"Ack": 0, "Again": 1, "Refused": 4}
    for kind, damaged in lost.items():
        # A message that asks for such an answer.
        others = ((before, Frame("Offer", "corrupt", 1, damaged)),) if damaged else ()
        outcome = (ON, "moves_rejected") if kind == "Refused" else (ON, None)
        for name, (action, first, count) in REPAIRED.items():
            # They have no payload to be cut.
            if action == "truncate" or (action == "corrupt" and count > 1) or (kind != "Ack" and first > 1):
                continue
            frame = Frame(kind, action, first, count, 1500 // (dp - 1))
            yield Cell(OFFER, f"{kind} {name}", rank, shard, (frame,), *outcome, others)
        if kind == "Again":
            yield Cell(OFFER, "Again never sent", rank, shard, (Frame(kind, "drop", 1, 9),), STOPS, None, others)
        else:
            yield Cell(OFFER, f"{kind} sent once", rank, shard, (Frame(kind, "drop"),), *outcome, others)
    first = BEFORE_DETAIL + 1
    for name, action, count in (("with a damaged header", "header", 1), ("never sent", "drop", COPIES)):
        yield Cell(PLAN, f"Ack {name}", rank, shard, (Frame("Ack", action, first, count),), STOPS)


# Method: (step, counter); those that are called once more when they raise count nothing.
METHODS = {
    "counts": (LOAD, "faults"),
    "producer": (LOAD, "faults"),
    "detail": (PLAN, "faults"),
    "capture": (OFFER, "moves_rejected"),
    "reserve": (RESERVE, "moves_rejected"),
    "install": (COMMIT, "moves_rolled_back"),
    "forget": (COMMIT, None),
    "activate": (COMMIT, None),
    "settle": (COMMIT, None),
    "take_sync": (RETURN, None),
    "accept_sync": (RETURN, None),
    "has_work": (RETURN, None),
    "listen": (COMMIT, None),
}
# Without these no rank can go on. Of what is called behind the last word of an exchange (settle, accept_sync), a rank
# that fails for good leaves its peers in the engine's own collective, as any error of an engine does.
VITAL = ("forget", "activate", "take_sync")
# The engine's own all-reduce, and what a caller asks who wants to switch the feature off.
NOT_OF_A_ROLLOUT = {"reduce", "queued"}


def adapter(rank: int, shard: int, dp: int) -> Iterator[Cell]:
    """Every method of the adapter raises, is slow, or is interrupted."""
    for method, (step, counter) in METHODS.items():
        for name, first in (("", 1), (", later", 3)):
            raises = (Raises(method, first),)
            yield Cell(step, f"{method} raises{name}", rank, shard, raises, ON, counter)
        yield Cell(step, f"{method} is slow", rank, shard, (Slow(method),))
    # Undone where it was to go, thawed where it was.
    before, after = (rank - 1) % dp, (rank + 1) % dp
    failing = Raises("install")
    yield Cell(COMMIT, "release raises", rank, shard, (failing, Raises("release")), ON, "moves_rolled_back")
    thaw = (Raises("thaw"),)
    yield Cell(COMMIT, "thaw raises", rank, shard, thaw, ON, "moves_rolled_back", ((after, failing),))
    for method, (step, counter) in METHODS.items():
        if counter is not None:
            always = (Raises(method, 1, FOR_EVER),)
            yield Cell(step, f"{method} always raises", rank, shard, always, ON, counter)
    for method in VITAL:
        always = (Raises(method, 1, FOR_EVER),)
        yield Cell(METHODS[method][0], f"{method} always raises", rank, shard, always, STOPS)
    adaptive = SETTINGS["Measured"]
    for name, one in (("raises", Raises("slot")), ("raises, later", Raises("slot", 3)), ("is slow", Slow("slot"))):
        yield Cell(LOAD, f"slot {name}", rank, shard, (one,), **adaptive)
    # Called in the step that delivers the last results: with one check in the rollout, those of every rank.
    for name, one in (("raises", Raises("deliver")), ("is slow", Slow("deliver"))):
        yield Cell(RETURN, f"deliver {name}", rank, shard, (one,), config={"check_interval": 26}, moves=3)
    # On the way out.
    for method in ("abandon", "dismiss_all"):
        leaves = (Raises("forget", 1, 2), Raises(method))
        yield Cell(COMMIT, f"forget raises twice, {method} raises", rank, shard, leaves, STOPS)
    yield Cell(LOAD, "kv_layout raises", rank, shard, (Raises("kv_layout"),))
    yield Cell(LOAD, "kv_layout always raises", rank, shard, (Raises("kv_layout", 1, FOR_EVER),), ON, "faults")
    for method in ("counts", "detail", "capture", "reserve", "install", "take_sync"):
        interrupted = (Raises(method, interrupt=True),)
        yield Cell(METHODS[method][0], f"Ctrl-C in {method}", rank, shard, interrupted, STOPS)
    # One deadline for the check and for what follows it.
    both = (Slow("detail", 2.5), Frame("Measured", "drop", 1, 9))
    yield Cell(PLAN, "detail is slow, Measured never sent", rank, shard, both, STOPS, **SETTINGS["Measured"])
    waits = (Slow("counts", 0, interrupt_after=0.3),)
    yield Cell(LOAD, "Ctrl-C while a peer is awaited", rank, shard, waits, STOPS, None, ((before, Slow("counts", 2)),))
    stalled = (Mock("HcclBatchSendRecv", Action.STALL), Slow("reserve", 0, interrupt_after=0.5))
    yield Cell(TRANSFER, "Ctrl-C in a stalled transfer", rank, shard, stalled, STOPS)


# Those that are called for a copy in the background.
COPYING = ("outlook", "watch", "watched", "prepare", "dismiss")


def copying(rank: int, shard: int) -> Iterator[Cell]:
    """The adapter's methods and the transfer of a copy in the background."""

    def cell(fault: str, *injections: Any, outcome: str = ON, counter: str | None = None) -> Cell:
        return Cell(COPY, fault, rank, shard, injections, outcome, counter, precopy=True)

    for method in COPYING:
        yield cell(f"{method} raises", Raises(method))
        yield cell(f"{method} raises, later", Raises(method, 3))
        yield cell(f"{method} is slow", Slow(method))
        yield cell(f"Ctrl-C in {method}", Raises(method, interrupt=True), outcome=STOPS)
        if method != "dismiss":
            yield cell(f"{method} always raises", Raises(method, 1, FOR_EVER))
    batch = "HcclBatchSendRecv"
    for name, first, count in (("", 1, 1), (", later", 3, 1), (", always", 1, FOR_EVER)):
        lasts = "moves_rolled_back" if count == FOR_EVER else None
        link = Mock(batch, Action.FAIL_TASK, ACL_INTERNAL, first, count)
        fails = Mock(batch, Action.RETURN, HCCL_INTERNAL, first, count)
        copy = Mock("aclrtMemcpyAsync", Action.FAIL_TASK, ACL_INTERNAL, first, count)
        wrong = Mock(batch, Action.CORRUPT, 7, first, count)
        yield cell(f"a copy in the background: {batch} fails{name}", fails, counter=lasts)
        yield cell(f"a copy in the background: the link fails{name}", link, counter=lasts)
        yield cell(f"a copy in the background: staging fails{name}", copy)
        yield cell(f"a copy in the background: a wrong byte{name}", wrong, counter="moves_rolled_back")
    stalls = Mock(batch, Action.STALL)
    yield cell("a copy in the background stalls", stalls)
    yield cell("a copy in the background is slow", Mock(batch, Action.DELAY, 1200))
    # In the check that would end it.
    interrupted = Raises("counts", 2, interrupt=True)
    yield cell("Ctrl-C while a copy in the background stalls", stalls, interrupted, outcome=STOPS)


STREAMS = ("aclrtRecordEvent", "aclrtSynchronizeEventWithTimeout")
# That of a kernel's index, of one and of two dimensions. Instead of a kernel there are copies; one for several moves
# that is refused is made anew move by move. A move fails with the third refusal at the latest.
COPIES_OF_BLOCKS, REFUSALS = "aclrtMemcpy*", 3
BREAKS = Mock("HcclBatchSendRecv", Action.RETURN, HCCL_INTERNAL)


def transfer(rank: int, shard: int) -> Iterator[Cell]:
    """Every symbol that a transfer calls fails, in the call or in the stream."""

    def cell(fault: str, *rules: Mock, counter: str | None = "moves_rolled_back", step: str = TRANSFER) -> Cell:
        return Cell(step, fault, rank, shard, rules, ON, counter)

    for name, first, count in (("", 1, 1), (", later", 5, 1), (", always", 1, FOR_EVER)):
        for symbol in STREAMS:
            # If the first is that behind a kernel, there are copies instead, whose own comes next.
            calls = count and (2 if symbol == "aclrtRecordEvent" else 1)
            yield cell(f"{symbol} fails{name}", Mock(symbol, Action.RETURN, ACL_INTERNAL, first, calls))
        refused = Mock(COPIES_OF_BLOCKS, Action.RETURN, ACL_INTERNAL, first, count and REFUSALS)
        yield cell(f"copies are refused{name}", refused)
        batch = "HcclBatchSendRecv"
        yield cell(f"{batch} fails{name}", Mock(batch, Action.RETURN, HCCL_INTERNAL, first, count))
        yield cell(f"{batch}: the link fails{name}", Mock(batch, Action.FAIL_TASK, ACL_INTERNAL, first, count))
        yield cell(f"{batch}: a wrong byte{name}", Mock(batch, Action.CORRUPT, 7, first, count))
    for first in (1, 2, 9):
        late = f" (call {first})"
        out = Mock(COPIES_OF_BLOCKS, Action.RETURN, ACL_OUT_OF_MEMORY, first, REFUSALS)
        yield cell(f"no device memory for a copy{late}", out)
        yield cell(f"a copy fails in its stream{late}", Mock("aclrtMemcpyAsync", Action.FAIL_TASK, ACL_INTERNAL, first))
    for symbol in ("aclrtMemcpyAsync", "aclrtMemcpy2dAsync"):
        yield cell(f"{symbol} is refused once", Mock(symbol, Action.RETURN, ACL_INTERNAL), counter=None)
        yield cell(f"{symbol} fails in its stream", Mock(symbol, Action.FAIL_TASK, ACL_INTERNAL))
    yield cell("a transfer stalls", Mock("HcclBatchSendRecv", Action.STALL))
    yield cell("a copy stalls", Mock("aclrtMemcpyAsync", Action.STALL))
    yield cell("a transfer is slow", Mock("HcclBatchSendRecv", Action.DELAY, 1200), counter=None)
    stalls = Mock("HcclBatchSendRecv", Action.STALL)
    yield cell(
        "the state of the links cannot be had", stalls, Mock("HcclGetCommAsyncError", Action.RETURN, HCCL_INTERNAL)
    )
    yield cell("a failed stream cannot be aborted", stalls, Mock("aclrtStreamAbort", Action.RETURN, ACL_INTERNAL))
    # After a failure, streams, events and the communicator are made anew.
    copy = Mock("aclrtMemcpyAsync", Action.FAIL_TASK, ACL_INTERNAL)
    for symbol in ("aclrtCreateStreamWithConfig", "aclrtCreateEventExWithFlag"):
        yield cell(f"{symbol} fails after a copy has", copy, Mock(symbol, Action.RETURN, ACL_INTERNAL))
        yield cell(f"{symbol} fails after a send has", BREAKS, Mock(symbol, Action.RETURN, ACL_INTERNAL))
    yield cell("a device is lost", Mock("aclrtGetDevice", Action.RETURN, ACL_INTERNAL, 1, FOR_EVER),
               Mock("aclrtSetDevice", Action.RETURN, ACL_INTERNAL, 1, FOR_EVER), counter="faults")  # fmt: skip
    for symbol, code in JOINING.items():
        if symbol == "HcclGetRootInfo" and rank != 0:
            continue
        again = Mock(symbol, Action.RETURN, code)
        yield cell(f"{symbol} fails after a send has", BREAKS, again, counter="faults", step=PLAN)
    stall = Mock("HcclCommInitRootInfoConfig", Action.DELAY, 1000 * DEADLINE_SECONDS)
    yield cell("a new communicator takes too long", BREAKS, stall, counter="faults", step=PLAN)
    twice = Mock("HcclCommInitRootInfoConfig", Action.RETURN, HCCL_INTERNAL, 1, 2)
    yield cell("a new communicator fails twice", BREAKS, twice, counter="faults", step=PLAN)


JOINING = {
    "HcclGetRootInfo": HCCL_INTERNAL,
    "HcclCommInitRootInfoConfig": HCCL_MEMORY,
    "HcclGetRankSize": HCCL_INTERNAL,
    "HcclGetRankId": HCCL_INTERNAL,
}
OPENING = {
    "aclInit": ACL_INTERNAL,
    "aclrtSetDevice": ACL_INTERNAL,
    "aclrtMalloc": ACL_OUT_OF_MEMORY,
    "aclrtMallocHost": ACL_OUT_OF_MEMORY,
    "aclrtCreateStreamWithConfig": ACL_INTERNAL,
    "aclrtCreateEventExWithFlag": ACL_INTERNAL,
    "seqshiftMockRegisterDeviceMemory": ACL_INTERNAL,
}
# A failure to give something back costs nobody anything.
CLOSING = (
    "HcclCommDestroy",
    "aclrtDestroyStream",
    "aclrtDestroyEvent",
    "aclrtFree",
    "aclrtFreeHost",
    "seqshiftMockUnregisterDeviceMemory",
)


def starting(rank: int, shard: int) -> Iterator[Cell]:
    """Every symbol that is called when a group is joined or left."""
    for symbol, code in (*OPENING.items(), *JOINING.items()):
        if symbol == "HcclGetRootInfo" and rank != 0:
            continue
        # The device may be current already; then it is not set.
        rules = [Mock(symbol, Action.RETURN, code, early=True)]
        if symbol == "aclrtSetDevice":
            rules.append(Mock("aclrtGetDevice", Action.RETURN, ACL_INTERNAL, early=True))
        yield Cell(START, f"{symbol} fails", rank, shard, tuple(rules), OFF)
    for symbol in CLOSING:
        yield Cell(START, f"{symbol} fails at the end", rank, shard, (Mock(symbol, Action.RETURN, ACL_INTERNAL),))


def everything(rank: int, shard: int, dp: int, tp: int) -> list[Cell]:
    """All cells of one process."""
    return [
        *starting(rank, shard),
        *messages(rank, shard, dp, tp),
        *answers(rank, shard, dp),
        *adapter(rank, shard, dp),
        *copying(rank, shard),
        *transfer(rank, shard),
    ]


# These give texts or answers that an error is only described with, or what no fault can change; an event that cannot be
# asked is waited for.
HARMLESS = {"aclGetRecentErrMsg", "HcclGetErrorString", "aclrtGetSocName", "aclrtQueryEventStatus"}


def injected(cells: Iterable[Cell], kind: type) -> list[Any]:
    """All injections of a kind, wherever."""
    every = (one for cell in cells for one in (*cell.injections, *(other for _, other in cell.others)))
    return [one for one in every if isinstance(one, kind)]


def matrix(dp: int, tp: int = 1) -> list[Cell]:
    """All cells of a group."""
    return [cell for rank in range(dp) for shard in range(tp) for cell in everything(rank, shard, dp, tp)]


def sample(cells: Iterable[Cell], seed: int, most: int | None = None) -> list[Cell]:
    """One cell of each fault, on a random rank; with `most`, so many of them, shared out over the steps."""
    source = random.Random(seed)
    by_fault: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        by_fault.setdefault((cell.step, cell.fault), []).append(cell)
    chosen = [source.choice(group) for group in by_fault.values()]
    if most is None:
        return chosen
    by_step: dict[str, list[Cell]] = {}
    for cell in source.sample(chosen, len(chosen)):
        by_step.setdefault(cell.step, []).append(cell)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*by_step.values()))
    return list(itertools.islice(filter(None, turns), most))
