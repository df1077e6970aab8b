"""`plan_migrations`: the best moves for a group of ranks whose load is given."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seqshift._native import plan_core
from seqshift.messages import shown

__all__ = ["Move", "Plan", "RankLoad", "SequenceLoad", "plan_migrations"]

_LARGEST = 2**32 - 1
"""Counts and block numbers are 32-bit in the native planner."""

_MOST_SEQUENCES = 2**26
"""Of a whole group; keeps the planner within a few GiB."""


@dataclass(frozen=True)
class SequenceLoad:
    """One running request: the KV blocks that it holds, and whether its state can be carried to another rank."""

    request_id: Any
    kv_blocks: int
    movable: bool = True


@dataclass(frozen=True)
class RankLoad:
    """The load of one rank.

    `free_kv_blocks` may be given to arriving requests; the caller has already kept room for growth. `None` means no
    limit, as for `max_num_seqs`. `sequences` describes all running requests; without it they count one block each and
    all can move. `waiting_kv_blocks` is what each waiting request needs: one number for all, or one per request in
    queue order; one block when `None`. The planner takes it off the rank's slots and blocks before others come there.
    `pinned_waiting` counts further waiting requests, which cannot be carried to another rank, and
    `pinned_waiting_kv_blocks` says in the same ways what each of them needs. They run here as soon as there is room:
    running sequences keep out of it, and make more where nothing else is to be gained and another rank can take them.
    """

    rank: int
    running: int
    waiting: int = 0
    free_kv_blocks: int | None = None
    max_num_seqs: int | None = None
    sequences: Sequence[SequenceLoad] | None = None
    waiting_kv_blocks: int | Sequence[int] | None = None
    pinned_waiting: int = 0
    pinned_waiting_kv_blocks: int | Sequence[int] | None = None


@dataclass(frozen=True)
class Move:
    """`count` sequences go from one rank to another.

    Running ones (`needs_kv`) are named by `request_ids`, if the rank's `sequences` were given. Waiting ones are named
    by `waiting_positions`, if the rank's `waiting_kv_blocks` lists them: their places in that list, from 0, ascending,
    not always the first ones. Whichever does not apply is empty.
    """

    from_rank: int
    to_rank: int
    count: int
    request_ids: tuple[Any, ...]
    needs_kv: bool
    waiting_positions: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The moves and why they are as they are.

    `lower_bound` is the lowest gear that counts and `max_num_seqs` alone would allow. `reasons` holds `lowered`,
    `waiting_served`, `already_lowest`, `blocked_by_max_num_seqs`, `blocked_by_kv`, `blocked_by_pins`,
    `below_minimum_gain` or `single_rank`.
    """

    gear_before: int
    gear_after: int
    lower_bound: int
    reasons: tuple[str, ...]
    moves: tuple[Move, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain lists and dicts, fit for JSON when the request ids are."""
        plan = dataclasses.asdict(self)
        plan["reasons"] = list(self.reasons)
        for move in plan["moves"]:
            move.update(request_ids=list(move["request_ids"]), waiting_positions=list(move["waiting_positions"]))
        plan["moves"] = list(plan["moves"])
        return plan


def plan_migrations(
    loads: Iterable[RankLoad | Mapping[str, Any]],
    graph_batch_sizes: Iterable[int],
    *,
    max_num_seqs: int | None = None,
    minimum_gain: float = 0.0,
) -> Plan:
    """The best plan for a group; the same for every order of `loads`.

    `graph_batch_sizes` are the effective gears in any order; a count above the largest is its own gear.
    `minimum_gain` is the least fraction of the time per step that a plan must save, taking it as proportional to the
    gear. Raises `ValueError` that names the field and the value. The request ids of one rank must differ.
    """
    ranks = [_rank_load(load, f"loads[{i}]") for i, load in enumerate(_items(loads, "loads"))]
    _check_names(ranks)
    total = sum(load.running + load.waiting + load.pinned_waiting for load in ranks)
    if total > _MOST_SEQUENCES:
        raise ValueError(f"loads: {total} running and waiting in total; at most {_MOST_SEQUENCES} can be planned")
    gears = [
        _integer(gear, f"graph_batch_sizes[{i}]", least=1)
        for i, gear in enumerate(_items(graph_batch_sizes, "graph_batch_sizes"))
    ]
    slots = None if max_num_seqs is None else _integer(max_num_seqs, "max_num_seqs")
    before, after, bound, reasons, moves = plan_core(
        [_as_tuple(load) for load in ranks], gears, slots, _fraction(minimum_gain, "minimum_gain")
    )
    by_rank = {load.rank: load for load in ranks}

    def move(source: int, to: int, count: int, indices: list[int], needs_kv: bool) -> Move:
        load = by_rank[source]
        if needs_kv:
            ids = tuple(load.sequences[i].request_id for i in indices) if load.sequences is not None else ()
            return Move(source, to, count, ids, needs_kv)
        listed = isinstance(load.waiting_kv_blocks, tuple)
        return Move(source, to, count, (), needs_kv, tuple(indices) if listed else ())

    return Plan(before, after, bound, tuple(reasons), tuple(move(*entry) for entry in moves))


def _as_tuple(load: RankLoad) -> tuple[Any, ...]:
    waiting = _listed(load.waiting_kv_blocks, load.waiting)
    pinned = _listed(load.pinned_waiting_kv_blocks, load.pinned_waiting)
    if pinned is None:
        pinned = [1] * load.pinned_waiting
    sequences = load.sequences
    if sequences is not None:
        sequences = [(sequence.kv_blocks, sequence.movable) for sequence in sequences]
    return load.rank, load.running, load.waiting, waiting, pinned, load.free_kv_blocks, load.max_num_seqs, sequences


def _listed(blocks: int | Sequence[int] | None, count: int) -> Sequence[int] | None:
    return [blocks] * count if isinstance(blocks, int) else blocks


# --- Checks: each returns the value to use or raises ValueError with field, value and what is allowed. ---


def _rank_load(load: Any, where: str) -> RankLoad:
    given = _fields(load, RankLoad, where)
    for name in ("rank", "running"):
        given[name] = _integer(given[name], f"{where}.{name}")
    for name, largest in (("free_kv_blocks", 2**63), ("max_num_seqs", _LARGEST)):
        if given.get(name) is not None:
            given[name] = _integer(given[name], f"{where}.{name}", largest=largest)
    if given.get("sequences") is not None:
        entries = enumerate(_items(given["sequences"], f"{where}.sequences"))
        listed = tuple(_sequence_load(entry, f"{where}.sequences[{i}]") for i, entry in entries)
        if len(listed) != given["running"]:
            raise ValueError(
                f"{where}.sequences: {len(listed)} entries, but running = {given['running']}; list every running "
                "request, or leave sequences out"
            )
        given["sequences"] = listed
    for name in ("waiting", "pinned_waiting"):
        given[name] = _integer(given.get(name, 0), f"{where}.{name}")
        given[f"{name}_kv_blocks"] = _waiting_blocks(given.get(f"{name}_kv_blocks"), given[name], where, name)
    return RankLoad(**given)


def _check_names(ranks: list[RankLoad]) -> None:
    """No rank may be there twice, and no request id on one rank: every engine counts its own requests from 0."""
    entries: dict[int, int] = {}
    for i, load in enumerate(ranks):
        if entries.setdefault(load.rank, i) != i:
            raise ValueError(f"loads[{i}].rank = {load.rank}: loads[{entries[load.rank]}] is of the same rank")
        places: dict[Any, int] = {}
        for j, sequence in enumerate(load.sequences or ()):
            problem = None
            try:
                first = places.setdefault(sequence.request_id, j)
                if first != j:
                    problem = f"loads[{i}].sequences[{first}] has the same; a rank's requests have ids of their own"
            except TypeError:
                problem = "must be hashable, such as a string or an integer"
            if problem is not None:
                given = shown(sequence.request_id)
                raise ValueError(f"loads[{i}].sequences[{j}].request_id = {given}: {problem}")


def _waiting_blocks(value: Any, count: int, load: str, name: str) -> int | tuple[int, ...] | None:
    """What each of the `count` requests of the field `name` needs."""
    where = f"{load}.{name}_kv_blocks"
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        blocks = tuple(_integer(entry, f"{where}[{i}]") for i, entry in enumerate(value))
        if len(blocks) != count:
            raise ValueError(
                f"{where}: {len(blocks)} entries, but {name} = {count}; give one per request, or one number for all"
            )
        return blocks
    return None if value is None else _integer(value, where)


def _sequence_load(sequence: Any, where: str) -> SequenceLoad:
    given = _fields(sequence, SequenceLoad, where)
    given["kv_blocks"] = _integer(given["kv_blocks"], f"{where}.kv_blocks")
    if not isinstance(given.get("movable", True), bool):
        raise ValueError(f"{where}.movable = {shown(given['movable'])}: must be true or false")
    return SequenceLoad(**given)


def _fields(value: Any, kind: type, where: str) -> dict[str, Any]:
    """The fields of an object of `kind` or of a mapping with the same keys."""
    fields = dataclasses.fields(kind)
    if isinstance(value, kind):
        return {field.name: getattr(value, field.name) for field in fields}
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} = {shown(value)}: must be a {kind.__name__} or a mapping with its fields")
    names = [field.name for field in fields]
    for key in value:
        if key not in names:
            raise ValueError(f"{where}.{key} = {shown(value[key])}: unknown field; known are {', '.join(names)}")
    for field in fields:
        if field.default is dataclasses.MISSING and field.name not in value:
            raise ValueError(f"{where}.{field.name}: missing")
    return dict(value)


def _items(value: Any, where: str) -> Iterable[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ValueError(f"{where} = {shown(value)}: must be a list")
    return value


def _integer(value: Any, where: str, least: int = 0, largest: int = _LARGEST) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not least <= number <= largest:
        raise ValueError(f"{where} = {shown(value)}: must be an integer in {least}..{largest}")
    return number


def _fraction(value: Any, where: str) -> float:
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not 0 <= number <= 1:
        raise ValueError(f"{where} = {shown(value)}: must be a number in 0..1")
    return float(number)
