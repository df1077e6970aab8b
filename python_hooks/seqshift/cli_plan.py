"""`seqshift plan`: the plan for a group state in a file, for people who debug one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from seqshift.console import literal_console, printable
from seqshift.messages import shown
from seqshift.planning import Plan, plan_migrations

_KEYS = ("loads", "graph_batch_sizes", "max_num_seqs", "minimum_gain")

_DIGITS = 100
"""Of any number in a file; request ids may be longer than counts."""


def plan_command(
    file: Annotated[
        Path, typer.Argument(help="JSON: loads, graph_batch_sizes and, if wanted, max_num_seqs, minimum_gain.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Print the plan for the group state in FILE.

    FILE holds an object like {"graph_batch_sizes": [16, 8, 4], "loads": [{"rank": 0, "running": 12}, {"rank": 1,
    "running": 2, "free_kv_blocks": 40}]}; loads have the fields of seqshift.RankLoad.
    """
    try:
        state = _read(file)
        plan = plan_migrations(**state)
    except ValueError as error:
        typer.echo(f"seqshift plan: {file}: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(plan.to_dict(), indent=2))
    else:
        _show(plan, state["loads"])


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8-sig")
        state = json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except OSError as error:
        raise ValueError(error.strerror or "cannot be read") from None
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError("nested too deeply; loads are lists of objects") from None
    if not isinstance(state, dict):
        raise ValueError(f"must be an object with the keys {', '.join(_KEYS)}")
    for key in state:
        if key not in _KEYS:
            raise ValueError(f"{key} = {shown(state[key])}: unknown key; known are {', '.join(_KEYS)}")
    for key in _KEYS[:2]:
        if key not in state:
            raise ValueError(f"{key}: missing")
    return state


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key} = {shown(value)}: given twice in one object, first as {shown(found[key])}")
        found[key] = value
    return found


def _integer(digits: str) -> int:
    # Conversion takes time quadratic in the digits, and newer Pythons refuse it.
    if len(digits) > _DIGITS:
        raise ValueError(f"{digits[:20]}...: a number of {len(digits)} digits; none may have more than {_DIGITS}")
    return int(digits)


def _show(plan: Plan, loads: list[dict[str, Any]]) -> None:
    console = literal_console()
    console.print(f"gear {plan.gear_before} -> {plan.gear_after} (lower bound {plan.lower_bound})")
    console.print("reasons: " + (", ".join(plan.reasons)))
    arrivals = {load["rank"]: 0 for load in loads}
    for move in plan.moves:
        arrivals[move.from_rank] -= move.count
        arrivals[move.to_rank] += move.count
    ranks = Table("rank", "running", "waiting", "arrivals")
    for load in sorted(loads, key=lambda load: load["rank"]):
        net = arrivals[load["rank"]]
        waiting = str(load.get("waiting", 0))
        if load.get("pinned_waiting"):
            waiting += f" + {load['pinned_waiting']} pinned"
        ranks.add_row(str(load["rank"]), str(load["running"]), waiting, f"{net:+d}" if net else "0")
    console.print(ranks)
    if plan.moves:
        moves = Table("from", "to", "count", "kind", "requests")
        for move in plan.moves:
            kind = "running, with KV" if move.needs_kv else "waiting"
            requests = ", ".join(map(printable, move.request_ids))
            if move.waiting_positions:
                many = "s" if move.count > 1 else ""
                requests = f"position{many} {', '.join(map(str, move.waiting_positions))}"
            moves.add_row(str(move.from_rank), str(move.to_rank), str(move.count), kind, requests)
        console.print(moves)
