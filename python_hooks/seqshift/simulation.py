"""The rollout simulator: setups, length files and the calls into the native core."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqshift._native import simulate_core, simulate_presets
from seqshift.csv_file import read_csv
from seqshift.messages import shown

__all__ = ["LINKS", "POLICIES", "compare", "make_setup", "presets", "read_lengths", "suggest_gears"]

POLICIES = ("static", "gears", "published", "interval", "adaptive", "oracle", "bound")

LINKS = {"hccs": 90e9, "roce": 23.8e9}
"""Bytes per second of one die, measured in large blocks: HCCS between two nodes of a supernode, and RoCE."""

LENGTH_COLUMNS = ("output_tokens", "GeneratedTokens", "length", "tokens")
"""Columns that are looked for in a length file, in this order; a file with one column needs none of these names."""


def presets() -> dict[str, Any]:
    """`setups`: the published rollouts by name, with their published seconds; `lengths`: distributions by name."""
    return json.loads(simulate_presets())


def make_setup(name: str, *, lengths: Any = None, link: str | None = None, **changes: Any) -> dict[str, Any]:
    """A named setup with changes; `lengths` is a preset's name or a list of observed lengths."""
    known = presets()
    setup = dict(_choice("setup", name, known["setups"])["setup"])
    if isinstance(lengths, str):
        setup["lengths"] = _choice("lengths", lengths, known["lengths"])
    elif lengths is not None:
        setup["lengths"] = {"observed": list(lengths)}
    if link is not None:
        setup["transfer"] = {**setup["transfer"], "bandwidth": _choice("link", link, LINKS)}
    setup.update({field: value for field, value in changes.items() if value is not None})
    return setup


def compare(setup: Mapping[str, Any], policies: Sequence[str] = POLICIES) -> dict[str, Any]:
    """Wall time, gaps to the oracle and to the bound, moves and timeline of each policy."""
    for policy in policies:
        _choice("policy", policy, dict.fromkeys(POLICIES))
    return _ask({"compare": {"setup": setup, "policies": list(policies)}})


def suggest_gears(
    setup: Mapping[str, Any],
    count: int,
    *,
    graph_seconds: float = 0.0,
    graph_mib: float = 0.0,
    graph_budget_mib: float | None = None,
    baseline: Sequence[int] = (64, 32, 16, 8, 4),
) -> dict[str, Any]:
    """The at most `count` gears with the least expected rollout time, and their gain over `baseline`.

    Compared with is `baseline` as an engine has it whose largest graph is `max_num_seqs`: without larger gears, with
    that one. The result has the given gears in `baseline_given`, these in `baseline`, and the gain in `expected_gain`,
    a fraction of at most 0 where the suggestion is no gain.
    """
    if not 1 <= count <= setup["max_num_seqs"]:
        raise ValueError(f"suggest_gears = {count}: must be in 1..{setup['max_num_seqs']} (max_num_seqs)")
    cost = {"graph_seconds": graph_seconds, "graph_mib": graph_mib, "graph_budget_mib": graph_budget_mib}
    for field, value in cost.items():
        if value is not None and not 0 <= value < math.inf:
            raise ValueError(f"{field} = {value}: must be a finite number of at least 0")
    if graph_budget_mib is not None and not graph_mib:
        raise ValueError(f"graph_budget_mib = {graph_budget_mib}: needs graph_mib, the memory of one graph")
    request = {"setup": setup, "count": count, **cost, "baseline": list(baseline)}
    return _ask({"suggest_gears": request})


def read_lengths(file: Path, column: str | None = None) -> list[int]:
    """Response lengths from a CSV file with a header; `ValueError` says which line is wrong."""
    header, records = read_csv(file)
    if header in ([], [""]):
        raise ValueError(f"{file}: line 1: the file is empty; it needs a header and one length per line")
    index = _column(file, header, column)
    lengths = []
    for line, cells in records:
        value = cells[index]
        # The second condition: no conversion of thousands of digits.
        if not value.isdecimal() or len(value.lstrip("0")) > 10 or not 0 < int(value) < 2**31:
            raise ValueError(
                f"{file}: line {line}: {header[index]} = {shown(value)}: must be an integer in 1..{2**31 - 1}"
            )
        lengths.append(int(value))
    if not lengths:
        raise ValueError(f"{file}: no lengths after the header")
    return lengths


def _column(file: Path, header: list[str], column: str | None) -> int:
    if column is not None:
        if not column or column not in header:
            raise ValueError(f"{file}: line 1: no column {column!r}; the file has {', '.join(header) or 'none'}")
        return header.index(column)
    for name in LENGTH_COLUMNS:
        if name in header:
            return header.index(name)
    if len(header) == 1 and not header[0].isdecimal():
        return 0
    raise ValueError(f"{file}: line 1: none of the columns {', '.join(LENGTH_COLUMNS)}; name one with --column")


def _choice(field: str, name: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise ValueError(f"{field} = {name!r}: unknown; known are {', '.join(known)}")
    return known[name]


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    return json.loads(simulate_core(json.dumps(request)))
