"""The command `seqshift demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqshift.demo.settings import Settings

REPORT = Path("results") / "demo.html"
DEADLINE_SECONDS = 600.0


def demo(
    report: Annotated[Path, typer.Option(help="where the HTML report goes")] = REPORT,
    json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
    seed: Annotated[int, typer.Option(help="of weights, prompts and lengths")] = Settings.seed,
    sequences: Annotated[int, typer.Option(help="per rank; also the largest gear")] = Settings.sequences,
    median_length: Annotated[int, typer.Option(help="median response, in tokens")] = Settings.median_length,
    longest: Annotated[int, typer.Option(help="longest response, in tokens")] = Settings.longest,
    check_interval: Annotated[int, typer.Option(help="steps between two checks")] = Settings.check_interval,
    hidden: Annotated[int, typer.Option(help="hidden size of the model")] = Settings.hidden,
    layers: Annotated[int, typer.Option(help="layers of the model")] = Settings.layers,
    deadline: Annotated[float, typer.Option(help="seconds that all rollouts may take")] = DEADLINE_SECONDS,
) -> None:
    """One long-tailed rollout on a real vLLM with DP=2, without and with rebalancing, compared field by field.

    Needs the CPU test bed of vLLM 0.9.1 (`make bed`). The exit status is 1 when an output differs or a rank fails.
    """
    from seqshift.demo import run

    try:
        settings = Settings(sequences, median_length, longest, check_interval, seed, hidden, layers)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    raise typer.Exit(run.main(settings, report_path=report, as_json=json, deadline=deadline))
