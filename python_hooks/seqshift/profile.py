"""The profile lines, with the tags that users grep for."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from seqshift.config import RolloutRebalanceConfig

log = logging.getLogger("seqshift")


class Profile:
    """Prints what the group does. Group lines come from its first rank, the others from every rank."""

    def __init__(self, config: RolloutRebalanceConfig, rank: int, gears: Sequence[int]) -> None:
        self.enabled = config.profile
        self.interval = config.profile_interval
        self.rank = rank
        self.gears = sorted(gears)
        self.gear = 0
        self._since = time.perf_counter()
        self._at = 0

    def gear_of(self, count: int) -> int:
        """The smallest gear that holds `count` sequences; above the largest, the count itself."""
        return next((gear for gear in self.gears if gear >= count), count)

    def step(self, steps: int) -> None:
        """Called before each step of a rollout; `steps` counts from 1."""
        if steps <= self._at:
            self._since, self._at = time.perf_counter(), 0
        if not self.enabled or steps - self._at < self.interval:
            return
        now = time.perf_counter()
        duration = now - self._since
        cost = 1000 * duration / (steps - self._at)
        self._since, self._at = now, steps
        log.info(
            "[ProfileDuration=%.3fs] [ProfileStepCost=%.2fms] [TPOT=%.2fms] [CurrentMaxBS=%d] rank %d, step %d",
            duration,
            cost,
            cost,
            self.gear,
            self.rank,
            steps,
        )

    def checked(self, report: dict[str, Any]) -> None:
        """Called after each check with its report."""
        counts = [running for running, _ in report["counts"]]
        for source, destination, error, _ in report["moves"]:
            if error is None:
                counts[source] -= 1
                counts[destination] += 1
        before, self.gear = self.gear, self.gear_of(max(counts))
        if not self.enabled:
            return
        if self.rank == 0:
            log.info("[BSMap] %s", {rank: self.gear_of(count) for rank, count in enumerate(counts)})
            log.info("[SeqCntMap] %s", dict(enumerate(counts)))
            if before != self.gear:
                log.info("[MaxBSChanged: %d -> %d]", before, self.gear)
            if report["moves"]:
                log.info(
                    "[RebalanceScheduleTasks] %d moves, gear %d -> %d (%s)",
                    len(report["moves"]),
                    report["gear_before"],
                    report["gear_after"],
                    ", ".join(report["reasons"]),
                )
        for source, destination, error, _ in report["moves"]:
            if source == self.rank and error is None:
                log.info("[TaskSendKvCache] rank %d -> rank %d", source, destination)
            elif destination == self.rank and error is None:
                log.info(
                    "[ReceivedTask] [ReceivedKvCache] [ReceivedTaskLoaded] rank %d -> rank %d", source, destination
                )
            elif self.rank in (source, destination):
                log.warning("a move from rank %d to rank %d failed: %s", source, destination, error)
