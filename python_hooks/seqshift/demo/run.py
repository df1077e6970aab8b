"""Runs the demo from start to end."""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from pathlib import Path

from seqshift.console import literal_console
from seqshift.cpu_bed.model import model_path
from seqshift.cpu_bed.ranks import Bed, ScenarioError
from seqshift.demo import rank, report, terminal
from seqshift.demo.result import Result, result
from seqshift.demo.settings import RANKS, Settings

VLLM = "0.9.1+cpu"


def measure(bed: Bed, settings: Settings, deadline: float, load: float, address: str | None = None) -> Result:
    """Runs the rollouts in ranks of a started bed and compares them; `load` is the machine's load average before.

    Raises:
        ScenarioError: a rank failed, or not all have finished within `deadline` seconds; it holds their stacks.
    """
    ranks = bed.run(rank.run, settings, address, dp=RANKS, deadline=deadline)
    return result(settings, ranks, load)


def unfit() -> str | None:
    """Why the demo cannot run with the installed vLLM, or None."""
    try:
        version = metadata.version("vllm")
    except metadata.PackageNotFoundError:
        version = "not installed"
    if version == VLLM:
        return None
    return f"vllm = {version}: the demo needs {VLLM}; `make bed` installs it"


def main(settings: Settings, *, report_path: Path, as_json: bool, deadline: float) -> int:
    """Runs, prints and writes; returns the exit status."""
    errors = literal_console(stderr=True)
    console = errors if as_json else literal_console()
    if missing := unfit():
        errors.print(f"FAILED: {missing}", style="red", highlight=False)
        return 1
    bed = Bed()
    try:
        with terminal.Display(console, settings) as display:
            # Importing vLLM is a load of its own.
            load = os.getloadavg()[0]
            bed.start()
            # Written here, so that both ranks find it.
            model_path(settings.model)
            measured = measure(bed, settings, deadline, load, display.address)
    except ScenarioError as error:
        errors.print(f"FAILED: {error}", style="red", highlight=False)
        return 1
    finally:
        bed.stop()
    report_path.parent.mkdir(parents=True, exist_ok=True)
    report_path.write_text(report.html(measured), encoding="utf-8")
    if as_json:
        json.dump(measured.to_dict(), sys.stdout)
        print()
    else:
        terminal.show(console, measured)
        console.print(f"Report: {report_path}", highlight=False)
    return 1 if measured.problems else 0
