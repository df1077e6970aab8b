"""What this process has done since the hooks went in, summed over its engines."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Stats:
    """Counters of one process. `sequences_moved` counts moves away from here; rejects and rollbacks both ends."""

    steps: int = 0
    checks: int = 0
    plans: int = 0
    """Checks whose plan was not empty."""
    sequences_moved: int = 0
    sequences_received: int = 0
    moves_rejected: int = 0
    moves_rolled_back: int = 0
    pinned: Counter = field(default_factory=Counter)
    """Requests that cannot be moved, by reason."""
    kv_bytes_moved: int = 0
    """Sent from here."""
    pause_seconds: float = 0.0
    """Spent in checks, from the moment that all ranks had entered."""
    gear: int = 0
    """The group's, after the last check."""
    failures: Counter = field(default_factory=Counter)
    """Moves that failed, by reason."""

    def record(self, rank: int, report: dict[str, Any]) -> None:
        """Adds a check's report."""
        self.checks += 1
        self.pause_seconds += report["pause_seconds"]
        self.kv_bytes_moved += report["kv_bytes"]
        self.plans += bool(report["moves"])
        for source, destination, error, rejected in report["moves"]:
            if rank not in (source, destination):
                continue
            if error is None:
                self.sequences_moved += source == rank
                self.sequences_received += destination == rank
                continue
            self.moves_rejected += rejected
            self.moves_rolled_back += not rejected
            self.failures[error] += 1

    def as_dict(self) -> dict[str, Any]:
        """A copy in plain types."""
        values = asdict(self)
        values["pinned"] = dict(self.pinned)
        values["failures"] = dict(self.failures)
        return values


STATS = Stats()


def reset() -> None:
    """Back to zero, in place: hooks hold the object."""
    STATS.__init__()  # type: ignore[misc]
