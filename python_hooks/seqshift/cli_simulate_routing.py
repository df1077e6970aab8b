"""`seqshift simulate --routing`: what a routing policy would gain and cost."""

# typer evaluates the annotations, and `X | None` cannot be evaluated on Python 3.9.
# ruff: noqa: UP045

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from typer.core import TyperCommand

from seqshift import simulate_routing
from seqshift.console import literal_console
from seqshift.messages import with_option
from seqshift.option_values import integer

FLAG = "--routing"


def routing_command(
    workload: Annotated[
        str, typer.Option(help=f"Sessions and replicas to start from: {', '.join(simulate_routing.presets())}.")
    ] = "published-8.7k",
    trace: Annotated[Optional[Path], typer.Option(help="Sessions: CSV with session, context_*, output_*.")] = None,
    replicas: Annotated[Optional[str], typer.Option(metavar="INTEGER", help="Number of replicas.")] = None,
    sessions: Annotated[Optional[str], typer.Option(metavar="INTEGER", help="Number of sessions.")] = None,
    kv_pool_tokens: Annotated[
        Optional[str], typer.Option(metavar="INTEGER", help="Tokens that a replica's KV pool holds.")
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="INTEGER", help="Number of seeds; medians are shown.")] = "5",
    seed: Annotated[str, typer.Option(metavar="INTEGER", help="The first seed.")] = "1",
    suggest_margin: Annotated[bool, typer.Option("--suggest-margin", help="Find the best margin instead.")] = False,
    published: Annotated[bool, typer.Option(help="Show the published figures beside the simulated ones.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Simulate multi-turn sessions over replicas under several routing policies, or suggest a margin for them."""
    try:
        study = simulate_routing.make_study(
            workload,
            trace=trace,
            replicas=integer("replicas", replicas),
            sessions=integer("sessions", sessions),
            kv_pool_tokens=integer("kv-pool-tokens", kv_pool_tokens),
            seeds=integer("seeds", seeds),
            first_seed=integer("seed", seed),
        )
        if suggest_margin:
            found = simulate_routing.suggest_margin(study)
            result, report = {"workload": workload, **found}, found["report"]
        else:
            report = simulate_routing.compare(study)
            result = {"workload": workload, **report}
            if published:
                result["published"] = simulate_routing.beside_published()
    except ValueError as error:
        typer.echo(f"seqshift simulate {FLAG}: {with_option(error, {str(trace): '--trace'})}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(result))
        return
    console = literal_console()
    source = workload if trace is None else str(trace)
    console.print(f"{source}: {study['replicas']} replicas, mean context {report['mean_context']:.0f} tokens")
    console.print(
        f"Medians over seeds {study['seeds'][0]} to {study['seeds'][-1]}. time: until the last session ends; change: "
        "paired, against sticky; broken: pins, of all met; skew: (greatest - mean) / mean requests in flight; "
        "starved: replica time with nothing in flight while another replica had several."
    )
    console.print(_policies(report))
    if suggest_margin:
        margin = found["affinity_break_margin"]
        console.print("no margin: leave pins alone" if margin is None else f"affinity_break_margin: {margin:g}")
    elif published:
        console.print(_published(result["published"]))


def _policies(report: dict[str, Any]) -> Table:
    table = Table("policy", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("time s", "change", "hit rate", "broken", "skew", "starved"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in report["rows"]:
        table.add_row(
            row["policy"],
            f"{row['generation_seconds']:.1f}",
            f"{row['paired_change']:+.1%}",
            f"{row['prefix_hit_rate']:.1%}",
            f"{row['broken']}/{row['broken'] + row['kept']}",
            f"{row['queue_skew']:.2f}",
            f"{row['starvation']:.1%}",
        )
    return table


def _published(rows: list[dict[str, Any]]) -> Table:
    table = Table("margin 2", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("published", "simulated", "hit rate published", "simulated"):
        table.add_column(column, justify="right")
    for row in rows:
        rates = row["published"]["hit_rates"]
        table.add_row(
            row["name"],
            f"{row['published']['change']:+.1%}",
            f"{row['margin_2']['paired_change']:+.1%}",
            "" if rates is None else f"{rates[0]:.1%} to {rates[1]:.1%}",
            f"{row['sticky']['prefix_hit_rate']:.1%} to {row['margin_2']['prefix_hit_rate']:.1%}",
        )
    return table


class SimulateCommand(TyperCommand):
    """`seqshift simulate`, which is about routing if the flag says so: each has options of its own."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if FLAG not in args:
            return super().make_context(info_name, args, parent, **extra)
        own = typer.Typer(add_completion=False)
        own.command("simulate")(routing_command)
        rest = [argument for argument in args if argument != FLAG]
        return typer.main.get_command(own).make_context(f"{info_name} {FLAG}", rest, parent, **extra)
