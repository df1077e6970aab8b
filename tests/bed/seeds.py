"""Seeds of random tests; printed, since they repeat a run."""

from __future__ import annotations

import os
import time


def seed_of(variable: str, default: int | None = None) -> int:
    """What the environment variable says, else `default`, else a new one."""
    given = os.environ.get(variable)
    seed = int(given) if given else default if default is not None else time.time_ns() % 1_000_000
    print(f"{variable}={seed}", flush=True)
    return seed
