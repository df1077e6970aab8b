"""The demo on a terminal: progress while it runs, tables when it has."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from seqshift.demo.result import NO_PADDING, Result, gear_of
from seqshift.demo.settings import RANKS, Settings

SHOWN_STEPS = 14
SHOWN_DIFFERENCES = 20
PHASES = {
    "import": "importing vLLM",
    "engine": "starting the engines",
    "calibration": "measuring step times",
    "without": "rollout without rebalancing",
    "rebalanced": "rollout with rebalancing",
}


class Display:
    """A line for each phase; ranks report to the datagram socket at `address`."""

    def __init__(self, console: Console, settings: Settings) -> None:
        self._settings = settings
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]\N{CHECK MARK}"),
            TextColumn("{task.description}", table_column=Column(no_wrap=True, min_width=27)),
            BarColumn(bar_width=12),
            TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
            TextColumn("{task.fields[state]}", table_column=Column(no_wrap=True, min_width=28)),
            console=console,
        )
        self._tasks: dict[str, Any] = {}
        self._counts = [0] * RANKS
        self._folder = tempfile.TemporaryDirectory(prefix="seqshift-")
        self.address = str(Path(self._folder.name) / "progress")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._listener = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Display:
        self._progress.start()
        self._listener.start()
        self._enter("import")
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        # An empty datagram ends the listener.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"", self.address)
        self._listener.join()
        self._socket.close()
        self._folder.cleanup()
        if kind is None:
            self._finish()
        self._progress.stop()

    def _listen(self) -> None:
        while words := self._socket.recv(4096):
            self._take(json.loads(words))

    def _take(self, words: dict[str, Any]) -> None:
        phase, rank = words["phase"], words["rank"]
        if phase not in self._tasks:
            self._enter(phase)
        self._counts[rank] = words["sequences"]
        if rank == 0 and words["step"]:
            state = " | ".join(map(str, self._counts))
            if phase == "calibration":
                self._progress.update(self._tasks[phase], state=state)
            else:
                gear = gear_of(max(self._counts), self._settings.gears)
                state = f"step {words['step']}, gear {gear}, {state}"
                self._progress.update(self._tasks[phase], completed=words["step"], state=state)

    def _enter(self, phase: str) -> None:
        self._finish()
        # Each response has its exact length, so that the longest gives the steps.
        total = max(map(max, self._settings.lengths())) if phase in ("without", "rebalanced") else None
        self._tasks[phase] = self._progress.add_task(PHASES[phase], total=total, state="")

    def _finish(self) -> None:
        for task in self._tasks.values():
            total = self._progress.tasks[task].total or 1
            self._progress.update(task, total=total, completed=total, state="")


def show(console: Console, result: Result) -> None:
    """Prints the tables."""
    console.print()
    console.print(Text(describe(result), style="dim"))
    for part in (_summary(result), _timeline(result), _checks(result), _costs(result)):
        console.print()
        console.print(part)
    console.print()
    for note in [NO_PADDING, *busy(result)]:
        console.print(Text(note, style="dim"))
    console.print()
    for line in result.differences[:SHOWN_DIFFERENCES]:
        console.print(Text(line, style="red"))
    if result.problems:
        console.print(Text("FAILED: " + "; ".join(result.problems), style="bold red"))
    else:
        console.print(Text(f"All {result.compared} outputs are identical, field by field.", style="bold green"))


def busy(result: Result) -> list[str]:
    """A warning about the wall times, when the machine was not free."""
    load, cores = result.machine["load_before"], result.machine["cores"]
    if load <= cores / 2:
        return []
    return [
        f"Other programs kept this machine busy (load {load:.1f} on {cores} cores before the start), so that the wall "
        "times of the two rollouts cannot be compared; processor times can, with care."
    ]


def seconds(value: float) -> str:
    """A duration of a rollout."""
    return f"{value:.2f} s"


def milliseconds(value: float) -> str:
    """A short duration."""
    return f"{1000 * value:.1f} ms"


def mebibytes(value: int) -> str:
    """An amount of KV."""
    return f"{value / 2**20:.1f} MiB"


def change(without: float, rebalanced: float) -> str:
    """How many times faster."""
    return f"{without / rebalanced:.2f}x" if rebalanced else ""


def summary_rows(result: Result) -> list[tuple[str, str, str, str]]:
    """(what, without, rebalanced, speed-up)"""
    one, two = result.without, result.rebalanced

    def timed(name: str, a: float, b: float) -> tuple[str, str, str, str]:
        return name, seconds(a), seconds(b), change(a, b)

    return [
        timed("wall time, measured", one.wall_seconds, two.wall_seconds),
        timed("busier rank's CPU time, measured", one.cpu_seconds, two.cpu_seconds),
        timed("step cost by gear, computed", one.computed_seconds, two.computed_seconds),
        ("steps", str(one.steps), str(two.steps), ""),
        ("tokens", str(one.tokens), str(two.tokens), ""),
        ("mean gear", f"{one.mean_gear:.1f}", f"{two.mean_gear:.1f}", ""),
        ("checks", "", str(result.checks), ""),
        ("sequences moved", "", str(result.sequences_moved), ""),
        ("moves rejected", "", str(result.moves_rejected), ""),
        ("KV moved", "", mebibytes(result.kv_bytes_moved), ""),
        ("pause of all checks", "", milliseconds(result.pause_seconds), ""),
        ("outputs identical", "", verdict(result), ""),
    ]


def verdict(result: Result) -> str:
    """Whether the outputs are the same."""
    return f"all {result.compared}" if result.identical else f"NO, {len(result.differences)} differences"


def shown_steps(result: Result) -> list[int]:
    """Steps, from 1, that are enough to see the course: evenly spread, the last included."""
    last = max(result.without.steps, result.rebalanced.steps)
    return sorted({1 + round(i * (last - 1) / (SHOWN_STEPS - 1)) for i in range(SHOWN_STEPS)})


def describe(result: Result) -> str:
    """The run in one line."""
    chosen, machine = result.settings, result.machine
    return (
        f"DP={RANKS}, {chosen.sequences} sequences per rank, responses of up to {chosen.longest} tokens, "
        f"check every {chosen.check_interval} steps, seed {chosen.seed}; Qwen2 of {chosen.layers} layers, "
        f"hidden size {chosen.hidden}, fp32; {machine['cores']} cores of {machine['cpu']}, "
        f"load {machine['load_before']:.1f} before the start"
    )


def _summary(result: Result) -> Table:
    table = Table(title="One rollout, twice on the same engines", title_justify="left")
    table.add_column("")
    for name in ("without", "rebalanced", "speed-up"):
        table.add_column(name, justify="right")
    for row in summary_rows(result):
        table.add_row(*row)
    return table


def _timeline(result: Result) -> Table:
    table = Table(title="Gear and sequences of each rank over time", title_justify="left")
    table.add_column("step", justify="right")
    for name in ("without", "rebalanced"):
        table.add_column(f"gear\n{name}", justify="right")
        table.add_column("ranks\n" + name, justify="right")
    for step in shown_steps(result):
        cells = []
        for arm in (result.without, result.rebalanced):
            if step > arm.steps:
                cells += ["", ""]
                continue
            point = arm.timeline[step - 1]
            cells += [str(point.gear), " | ".join(f"{count:>2}" for count in point.sequences)]
        table.add_row(str(step), *cells)
    return table


def _checks(result: Result) -> Table:
    table = Table(title="Checks that moved sequences", title_justify="left")
    for name in ("at step", "moved", "gear", "KV", "pause"):
        table.add_column(name, justify="right")
    for check in result.rebalanced.checks:
        table.add_row(
            str(check.step), str(check.moved), gears_around(result, check.step), mebibytes(check.kv_bytes),
            milliseconds(check.pause_seconds),
        )  # fmt: skip
    return table


def gears_around(result: Result, step: int) -> str:
    """The gear before and from that step on."""
    timeline = result.rebalanced.timeline
    return f"{timeline[step - 2].gear} -> {timeline[step - 1].gear}"


def _costs(result: Result) -> Table:
    table = Table(title="CPU time of a decode step, measured", title_justify="left")
    table.add_column("gear", justify="right")
    table.add_column("per step", justify="right")
    for gear, cost in result.step_cost.items():
        table.add_row(str(gear), milliseconds(cost))
    return table
