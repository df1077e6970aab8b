"""Random rollouts, half of them with a random fault, differ in nothing from unhooked ones and leave nothing behind.

Ten of them here, always the same; `make soak` runs two hundred new ones and also measures how memory grows.
"""

from __future__ import annotations

from bed.seeds import seed_of
from bed.soak import Group
from bed.soak_run import SEED, leaks, run_soak


def test_ten_random_rollouts(bed):
    found = run_soak(bed, seed_of(SEED, 1), 10, (Group(2), Group(3, 6)))
    assert found.problems == []
    assert found.rollouts == 10
    assert found.moved > 0


def test_what_counts_as_a_leak():
    assert leaks([5, 6, 7, 8, 9])
    assert leaks([5, 5, 6, 6, 7, 7, 8])
    assert not leaks([5, 7, 7, 7, 7])
    assert not leaks([5, 9, 5, 9, 5])
