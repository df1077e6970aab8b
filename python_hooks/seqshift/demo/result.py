"""What came out of a demo, and what follows from it; plain values, no vLLM."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from seqshift.cpu_bed.compare import differences
from seqshift.demo.settings import Settings

if TYPE_CHECKING:
    from seqshift.demo.rank import RankResult, Rollout

NO_PADDING = (
    "vLLM's CPU backend does not pad a batch to a gear: the wall time measured here gains from the balance alone. "
    "The step cost by gear is computed, in both columns alike: the processor time of a decode step measured at each "
    "gear on this machine, with short contexts, summed over the steps at the gear of the group's fullest rank. "
    "That is what padding to static graphs would make it, and it leaves the checks out."
)


@dataclass(frozen=True)
class Point:
    """The group in one step."""

    step: int
    """From 1."""
    sequences: tuple[int, ...]
    """In the forward of each rank."""
    gear: int
    """The smallest that holds the fullest rank."""


@dataclass(frozen=True)
class Check:
    """A check at the start of a step that moved something, summed over the ranks."""

    step: int
    moved: int
    kv_bytes: int
    pause_seconds: float
    """Of the rank that was held up longest."""


@dataclass(frozen=True)
class Arm:
    """The rollout, without or with rebalancing."""

    wall_seconds: float
    cpu_seconds: float
    """Processor time of the busier rank in each step, summed over the steps."""
    computed_seconds: float
    """Step cost by gear, summed over the steps."""
    tokens: int
    timeline: tuple[Point, ...]
    checks: tuple[Check, ...]

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.timeline)

    @property
    def mean_gear(self) -> float:
        """Over the steps."""
        return sum(point.gear for point in self.timeline) / max(1, self.steps)


@dataclass(frozen=True)
class Result:
    """A whole demo."""

    settings: Settings
    machine: dict[str, Any]
    step_cost: dict[int, float]
    """Processor seconds of a decode step by gear, mean over the ranks."""
    without: Arm
    rebalanced: Arm
    checks: int
    sequences_moved: int
    kv_bytes_moved: int
    pause_seconds: float
    """Of the rank that was held up longest."""
    moves_rejected: int
    moves_rolled_back: int
    compared: int
    """Outputs that were compared."""
    differences: tuple[str, ...]
    """Between the outputs without and with rebalancing, one line each."""

    @property
    def identical(self) -> bool:
        """Whether all outputs are equal in all fields."""
        return not self.differences

    @property
    def problems(self) -> list[str]:
        """Why the demo has failed; empty when it has not."""
        found = []
        if self.differences:
            found.append(f"{len(self.differences)} differences between outputs")
        if not self.checks and self.rebalanced.steps > self.settings.check_interval:
            found.append("rebalancing was off")
        if self.moves_rolled_back:
            found.append(f"{self.moves_rolled_back} moves failed and were undone")
        return found

    def to_dict(self) -> dict[str, Any]:
        """One JSON document."""
        document = asdict(self)
        for name in ("without", "rebalanced"):
            arm = getattr(self, name)
            document[name] |= {"steps": arm.steps, "mean_gear": arm.mean_gear}
        return document | {"identical": self.identical, "problems": self.problems, "note": NO_PADDING}


def result(settings: Settings, ranks: list[RankResult], load: float) -> Result:
    """Puts the ranks' results together; `load` is the machine's load average before the demo."""
    found, compared = [], 0
    for rank, one in enumerate(ranks):
        compared += len(one.without.outputs)
        found += [f"rank {rank}: {line}" for line in differences(one.without.outputs, one.rebalanced.outputs)]
    step_cost = {gear: sum(one.step_cost[gear] for one in ranks) / len(ranks) for gear in settings.gears}
    stats = [one.rebalanced.stats for one in ranks]
    return Result(
        settings=settings,
        machine={"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)), "load_before": load},
        step_cost=step_cost,
        without=_arm([one.without for one in ranks], settings, step_cost),
        rebalanced=_arm([one.rebalanced for one in ranks], settings, step_cost),
        checks=max(one["checks"] for one in stats),
        sequences_moved=sum(one["sequences_moved"] for one in stats),
        kv_bytes_moved=sum(one["kv_bytes_moved"] for one in stats),
        pause_seconds=max(one["pause_seconds"] for one in stats),
        # Both ends count a move that did not come about.
        moves_rejected=sum(one["moves_rejected"] for one in stats) // 2,
        moves_rolled_back=sum(one["moves_rolled_back"] for one in stats) // 2,
        compared=compared,
        differences=tuple(found),
    )


def gear_of(count: int, gears: list[int]) -> int:
    """The smallest gear that holds `count` sequences."""
    return min(gear for gear in gears if gear >= count)


def cpu_name() -> str:
    """The processor as the kernel names it."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else "unknown processor"


def _arm(rollouts: list[Rollout], settings: Settings, step_cost: dict[int, float]) -> Arm:
    logs = [one.steps for one in rollouts]
    if len({len(log) for log in logs}) != 1:
        raise RuntimeError(f"the ranks took different numbers of steps: {[len(log) for log in logs]}")
    timeline, checks, before = [], [], [None] * len(logs)
    for number, steps in enumerate(zip(*logs), 1):
        counts = tuple(step.sequences for step in steps)
        timeline.append(Point(number, counts, gear_of(max(counts), settings.gears)))

        def grown(name: str, steps: tuple = steps, before: tuple | list = before) -> list:
            return [getattr(now, name) - (getattr(old, name) if old else 0) for now, old in zip(steps, before)]

        if moved := sum(grown("moved")):
            checks.append(Check(number, moved, sum(grown("kv_bytes")), max(grown("pause_seconds"))))
        before = list(steps)
    return Arm(
        wall_seconds=max(one.seconds for one in rollouts),
        cpu_seconds=sum(max(step.cpu_seconds for step in steps) for steps in zip(*logs)),
        computed_seconds=sum(step_cost[point.gear] for point in timeline),
        tokens=sum(len(c.token_ids) for one in rollouts for output in one.outputs for c in output.outputs),
        timeline=tuple(timeline),
        checks=tuple(checks),
    )
