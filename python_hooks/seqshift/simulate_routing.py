"""Studies of the routing simulator: presets, traces, and the table of policies.

The model is described in docs/simulator.md, the fields of a study in `seqshift::sim::routing`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from seqshift._native import routing_presets
from seqshift._native import simulate_routing as _simulate
from seqshift.csv_file import read_csv

CHARACTERS_PER_TOKEN = 4
# Seconds between two turns of a trace that does not say.
THINK_SECONDS = 1.0


def presets() -> dict[str, dict[str, Any]]:
    """The presets by name, each with `about`, `study` and `published`."""
    return {preset["name"]: preset for preset in json.loads(routing_presets())}


def make_study(
    preset: str,
    *,
    trace: Path | None = None,
    replicas: int | None = None,
    sessions: int | None = None,
    kv_pool_tokens: int | None = None,
    seeds: int = 5,
    first_seed: int = 1,
) -> dict[str, Any]:
    """A study from a preset, with what is given changed.

    Args:
        preset: a name of `presets`.
        trace: sessions to use instead of generated ones, see `read_trace`.
        replicas: number of replicas.
        sessions: number of sessions; of a trace the first ones, repeated if there are too few.
        kv_pool_tokens: tokens that the KV pool of a replica holds.
        seeds: how many seeds to try.
        first_seed: the first of them.

    Raises:
        ValueError: naming the argument.
    """
    known = presets()
    if preset not in known:
        raise ValueError(f"workload = {preset!r}: unknown; known are {', '.join(known)}")
    for name, value, least, most in (
        ("replicas", replicas, 1, 4096),
        ("sessions", sessions, 1, 1_000_000),
        ("kv_pool_tokens", kv_pool_tokens, 1, 2**40),
        ("seeds", seeds, 1, 1000),
        ("seed", first_seed, 0, 2**32 - 1),
    ):
        if value is not None and not least <= value <= most:
            raise ValueError(f"{name} = {value}: must be an integer in {least}..{most}")
    study = known[preset]["study"]
    if replicas is not None:
        study["replicas"] = replicas
    if sessions is not None:
        study["workload"]["sessions"] = sessions
    if kv_pool_tokens is not None:
        study["model"]["kv_pool_tokens"] = kv_pool_tokens
    if trace is not None:
        recorded = read_trace(trace)
        wanted = len(recorded) if sessions is None else sessions
        study["trace"] = [recorded[i % len(recorded)] for i in range(wanted)]
    study["seeds"] = list(range(first_seed, first_seed + seeds))
    return study


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Sessions from a CSV file.

    Columns: `session`, `context_tokens` and `output_tokens`, or `context_chars` and `output_chars` at four characters
    per token; `think_seconds` if there is one. Rows of a session are its turns in order.

    Raises:
        ValueError: naming the file and the column or row.
    """
    columns, records = read_csv(path)
    unit = "tokens" if "context_tokens" in columns else "chars"
    scale = 1 if unit == "tokens" else CHARACTERS_PER_TOKEN
    needed = ("session", f"context_{unit}", f"output_{unit}")
    for column in needed:
        if column not in columns:
            raise ValueError(f"{path}: line 1: no column {column}; sessions need {', '.join(needed)}")
    sessions: dict[str, list[dict[str, float]]] = {}
    for line, cells in records:
        row, where = dict(zip(columns, cells)), f"{path}: line {line}"
        turn = {
            "context": max(1.0, _number(where, needed[1], row[needed[1]]) / scale),
            "output": max(1.0, _number(where, needed[2], row[needed[2]]) / scale),
            "think_seconds": _number(where, "think_seconds", row.get("think_seconds") or THINK_SECONDS),
        }
        sessions.setdefault(row["session"], []).append(turn)
    if not sessions:
        raise ValueError(f"{path}: no sessions")
    return [{"turns": turns} for turns in sessions.values()]


def _number(where: str, column: str, text: Any) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"{where}: {column} = {text!r}: must be a number of at least 0")
    return value


def compare(study: dict[str, Any]) -> dict[str, Any]:
    """The table of policies: `mean_context` and `rows`, the first of which is "sticky".

    A row has `policy`, `generation_seconds`, `paired_change` (of the generation time against the first row on the same
    sessions), `prefix_hit_rate`, `kept`, `broken`, `queue_skew` and `starvation`; medians over the seeds.
    """
    return json.loads(_simulate(json.dumps(study)))


def suggest_margin(study: dict[str, Any]) -> dict[str, Any]:
    """The `affinity_break_margin` with the least generation time, None to leave pins alone, and the `report` of all.

    Among margins that are equally good within 0.2 % the largest is taken: it moves the fewest conversations.
    """
    return json.loads(_simulate(json.dumps(study), suggest=True))


def beside_published(seeds: int = 15) -> list[dict[str, Any]]:
    """Margin 2 in the four settings with published figures: `name`, `published`, and both rows of the simulator."""
    result = []
    for name, preset in presets().items():
        if preset["published"] is None:
            continue
        study = make_study(name, seeds=seeds)
        sticky, margin = json.loads(_simulate(json.dumps(study), margin=2.0))["rows"]
        result.append({"name": name, "published": preset["published"], "sticky": sticky, "margin_2": margin})
    return result
