"""Random rollouts, half of them with a random fault, differ in nothing from unhooked ones and leave nothing behind.

Ten of them here, always the same; `make soak` runs two hundred new ones and also measures how memory grows.
"""

from __future__ import annotations

from dataclasses import replace

from bed.fault_cells import DEADLINE_SECONDS, matrix
from bed.fault_run import CELL_SECONDS
from bed.seeds import seed_of
from bed.soak import Group, draw, longest_seconds
from bed.soak_run import SEED, leaks, run_soak


def test_ten_random_rollouts(bed):
    found = run_soak(bed, seed_of(SEED, 1), 10, (Group(2), Group(3, 6)))
    assert found.problems == []
    assert found.rollouts == 10
    assert found.moved > 0


def test_only_a_fault_that_lasts_gives_a_rollout_more_time():
    group = Group(2)
    lasting = next(cell for cell in matrix(2) if cell.lasting)
    once = next(cell for cell in matrix(2) if not cell.lasting)
    one = draw(1, 0, 2)

    def more(cell, failures):
        config = {**one.config, "trigger": "interval", "check_interval": 2, "max_failures": failures}
        return longest_seconds(replace(one, cell=cell, config=config), group) - CELL_SECONDS

    assert more(once, 1000) == 0
    assert more(lasting, 3) == 3 * DEADLINE_SECONDS
    assert more(lasting, 1000) > 10 * DEADLINE_SECONDS


def test_what_counts_as_a_leak():
    assert leaks([5, 6, 7, 8, 9])
    assert leaks([5, 5, 6, 6, 7, 7, 8])
    assert not leaks([5, 7, 7, 7, 7])
    assert not leaks([5, 9, 5, 9, 5])
