"""`seqshift simulate`: what moving sequences would gain in a rollout."""

# typer evaluates the annotations, and `X | None` cannot be evaluated on Python 3.9.
# ruff: noqa: UP045

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.table import Table

from seqshift import simulation, simulation_report
from seqshift.console import literal_console
from seqshift.messages import shown, with_option
from seqshift.option_values import integer, number

_NO_BOUND = " (no lower bound here, since requests may wait for slots or KV: a policy can be faster)"
_COLUMNS = (
    "policy",
    "wall s",
    "to oracle",
    "to bound",
    "steps",
    "TPOT ms",
    "checks",
    "moves",
    "KV GB/die",
    "pause s",
    "preempted",
)


_OPTIONS = {"prompt_correlation": "--correlation", "samples_per_prompt": "--samples"}
"""Options that are not named like their field."""

_WIDTH = 120
"""Columns that the table needs; a pipe has 80, which would cut the numbers."""


def simulate_command(
    setup: Annotated[str, typer.Option(help="Rollout to start from: deepseek-v3 or qwen3-235b.")] = "deepseek-v3",
    ranks: Annotated[Optional[str], typer.Option(metavar="INTEGER", help="DP ranks, up to 4096.")] = None,
    prompts: Annotated[Optional[str], typer.Option(metavar="INTEGER", help="Prompts of the rollout.")] = None,
    samples: Annotated[Optional[str], typer.Option(metavar="INTEGER", help="Responses per prompt (n).")] = None,
    prompt_tokens: Annotated[Optional[str], typer.Option(metavar="INTEGER", help="Tokens of a prompt.")] = None,
    lengths: Annotated[
        Optional[str], typer.Option(help="Response lengths: dapo_32k, openr1_32k or longtail_32k.")
    ] = None,
    lengths_csv: Annotated[Optional[Path], typer.Option(help="Response lengths: CSV with a header.")] = None,
    column: Annotated[Optional[str], typer.Option(help="Column of --lengths-csv.")] = None,
    correlation: Annotated[
        Optional[str], typer.Option(metavar="FLOAT", help="Of the responses of one prompt, 0 to 1.")
    ] = None,
    max_num_seqs: Annotated[
        Optional[str], typer.Option(metavar="INTEGER", help="Most running sequences per rank.")
    ] = None,
    gears: Annotated[Optional[str], typer.Option(help="Graph batch sizes, as in 64,32,16,8,4.")] = None,
    kv_capacity_tokens: Annotated[
        Optional[str], typer.Option(metavar="INTEGER", help="KV tokens that a rank holds; no limit.")
    ] = None,
    link: Annotated[Optional[str], typer.Option(help="hccs or roce.")] = None,
    check_interval: Annotated[Optional[str], typer.Option(metavar="INTEGER", help="Most steps between checks.")] = None,
    seed: Annotated[Optional[str], typer.Option(metavar="INTEGER", help="Seed of the lengths.")] = None,
    policy: Annotated[Optional[list[str]], typer.Option(help="Only these policies; may be repeated.")] = None,
    suggest_gears: Annotated[
        Optional[str], typer.Option(metavar="INTEGER", help="Find this many graph batch sizes instead.")
    ] = None,
    graph_seconds: Annotated[
        Optional[str], typer.Option(metavar="FLOAT", help="Seconds to compile one graph; 0.")
    ] = None,
    graph_mib: Annotated[Optional[str], typer.Option(metavar="FLOAT", help="Memory of one graph, MiB; 0.")] = None,
    graph_budget_mib: Annotated[
        Optional[str], typer.Option(metavar="FLOAT", help="Memory for all graphs, MiB.")
    ] = None,
    report: Annotated[Optional[Path], typer.Option(help="Write charts to this .html or .svg file.")] = None,
    routing: Annotated[bool, typer.Option("--routing", help="Routing instead; see --routing --help.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Simulate a rollout under several policies, or suggest graph batch sizes for it; with --routing, a router."""
    try:
        chosen = simulation.make_setup(
            setup,
            lengths=_lengths(lengths, lengths_csv, column),
            link=link,
            ranks=_natural("ranks", ranks, most=4096),
            prompts=_natural("prompts", prompts),
            samples_per_prompt=_natural("samples", samples),
            prompt_tokens=_natural("prompt-tokens", prompt_tokens),
            prompt_correlation=_finite("correlation", correlation),
            max_num_seqs=_natural("max-num-seqs", max_num_seqs, most=2**16 - 1),
            gears=_gears(gears),
            kv_capacity_tokens=_natural("kv-capacity-tokens", kv_capacity_tokens),
            check_interval=_natural("check-interval", check_interval),
            seed=_natural("seed", seed, least=0),
        )
        if report is not None:
            _check_report(report)
        cost = {
            "graph_seconds": number("graph-seconds", graph_seconds),
            "graph_mib": number("graph-mib", graph_mib),
            "graph_budget_mib": number("graph-budget-mib", graph_budget_mib),
        }
        count = integer("suggest-gears", suggest_gears)
        if count is not None:
            for option, given in (("report", report), ("policy", policy), ("gears", gears)):
                if given:
                    raise ValueError(f"--{option}: has no meaning with --suggest-gears; leave it out")
            given = {option: value for option, value in cost.items() if value is not None}
            _suggest(chosen, count, given, as_json)
        else:
            for option, value in cost.items():
                if value is not None:
                    raise ValueError(f"--{option.replace('_', '-')} = {value}: needs --suggest-gears")
            published = None if _changed(setup, chosen) else simulation.presets()["setups"][setup]
            _compare(chosen, policy or simulation.POLICIES, published, report, as_json)
    except ValueError as error:
        named = with_option(error, {**_OPTIONS, str(lengths_csv): "--lengths-csv"})
        typer.echo(f"seqshift simulate: {named}", err=True)
        raise typer.Exit(2) from None


def _check_report(file: Path) -> None:
    if file.suffix not in (".html", ".svg"):
        raise ValueError(f"--report = {str(file)!r}: must end in .html or .svg")
    if not file.parent.is_dir():
        raise ValueError(f"--report = {str(file)!r}: the folder {str(file.parent)!r} does not exist; create it first")


def _lengths(name: str | None, file: Path | None, column: str | None) -> Any:
    if name is not None and file is not None:
        raise ValueError(f"--lengths = {name!r}: give either a preset or --lengths-csv, not both")
    if column is not None and file is None:
        raise ValueError(f"--column = {column!r}: needs --lengths-csv")
    return name if file is None else simulation.read_lengths(file, column)


def _natural(option: str, text: str | None, least: int = 1, most: int = 2**32 - 1) -> int | None:
    allowed = f"must be an integer in {least}..{most}"
    value = integer(option, text, allowed)
    if value is not None and not least <= value <= most:
        raise ValueError(f"--{option} = {value}: {allowed}")
    return value


def _finite(option: str, text: str | None) -> float | None:
    value = number(option, text)
    if value is not None and not math.isfinite(value):
        raise ValueError(f"--{option} = {value}: must be a finite number")
    return value


def _gears(text: str | None) -> list[int] | None:
    if text is None:
        return None
    gears = [part.strip() for part in text.split(",")]
    # The length first: no conversion of thousands of digits.
    if not all(part.isdecimal() and len(part) < 10 and 0 < int(part) < 2**16 for part in gears):
        raise ValueError(f"--gears = {shown(text)}: must be integers in 1..{2**16 - 1}, separated by commas")
    return [int(part) for part in gears]


def _changed(name: str, setup: dict[str, Any]) -> bool:
    return setup != simulation.presets()["setups"][name]["setup"]


def _compare(
    setup: dict[str, Any], policies: list[str], published: dict[str, Any] | None, report: Path | None, as_json: bool
) -> None:
    result = simulation.compare(setup, policies)
    rows = _rows(result)
    notes = [
        f"{result['sequences']} sequences, {result['tokens']} tokens on {setup['ranks']} ranks",
        f"oracle (perfect gears): {result['oracle_seconds']:.1f} s",
        f"bound (KV spread too): {result['bound_seconds']:.1f} s{'' if result['bound_holds'] else _NO_BOUND}",
    ]
    if published is not None:
        without, moved = published["published_without_seconds"], published["published_with_seconds"]
        notes.append(f"published: {without:.0f} s with one graph, {moved:.0f} s with the published method")
        result["published"] = {"static_seconds": without, "published_seconds": moved}
    if report is not None:
        text = simulation_report.svg(result) if report.suffix == ".svg" else simulation_report.html(result, rows, notes)
        try:
            report.write_text(text, encoding="utf-8")
        except OSError as error:
            problem = error.strerror or "cannot be written"
            raise ValueError(f"--report = {str(report)!r}: {problem}") from None
    if as_json:
        typer.echo(json.dumps(result))
        return
    console = literal_console()
    console.width = max(console.width, _WIDTH)
    for note in notes:
        console.print(note)
    table = Table(rows[0][0])
    for column in rows[0][1:]:
        table.add_column(column, justify="right")
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)


def _rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = [_COLUMNS]
    for policy in result["policies"]:
        rows.append(
            (
                policy["policy"],
                f"{policy['wall_seconds']:.1f}",
                f"{policy['gap_to_oracle']:+.2%}",
                f"{policy['gap_to_bound']:+.2%}",
                str(policy["steps"]),
                f"{policy['mean_tpot_seconds'] * 1000:.1f}",
                str(policy["checks"]),
                str(policy["sequences_moved"] + policy["waiting_moved"]),
                f"{policy['kv_bytes_moved'] / 1e9:.1f}",
                f"{policy['pause_seconds']:.2f}",
                str(policy["preemptions"]),
            )
        )
    return rows


def _suggest(setup: dict[str, Any], count: int, cost: dict[str, Any], as_json: bool) -> None:
    found = simulation.suggest_gears(setup, count, **cost)
    if as_json:
        typer.echo(json.dumps(found))
        return
    console = literal_console()
    table = Table("gears")
    for column in ("expected s", "adaptive s", "graphs MiB"):
        table.add_column(column, justify="right")
    for name, prefix in (("gears", ""), ("baseline", "baseline_")):
        table.add_row(
            ", ".join(map(str, found[name])),
            f"{found[prefix + 'expected_seconds']:.1f}",
            f"{found[prefix + 'adaptive_seconds']:.1f}",
            f"{len(found[name]) * cost.get('graph_mib', 0):.0f}",
        )
    console.print(table)
    given, baseline, gain = found["baseline_given"], found["baseline"], found["expected_gain"]
    if given != baseline:
        largest = baseline[0]
        reason = "has no graph for so many" if largest > max(given) else "does not end there"
        console.print(f"max_num_seqs is {largest}, {given} {reason}: compared with {baseline}")
    if gain > 0:
        console.print(f"expected gain over {baseline}: {gain:.2%}")
    else:
        graphs = f"{len(found['gears'])} graphs against {len(baseline)}"
        console.print(f"no gain over {baseline}: {abs(gain):.2%} more time expected, with {graphs}")
