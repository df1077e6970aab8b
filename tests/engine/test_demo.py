"""The demo, scaled down, on the real engine: sequences move, the gear falls, and every output is what it was."""

from __future__ import annotations

import json

from seqshift.demo import report, run
from seqshift.demo.settings import Settings

SETTINGS = Settings(
    sequences=8, median_length=40, longest=140, check_interval=10, seed=11, hidden=256, layers=2
)  # fmt: skip


def test_a_small_demo(bed):
    result = run.measure(bed, SETTINGS, deadline=180, load=0.0)
    print(json.dumps(result.to_dict()))
    assert result.problems == []
    assert (result.identical, result.compared) == (True, 16)
    assert sum(check.moved for check in result.rebalanced.checks) == result.sequences_moved > 0
    assert sum(check.kv_bytes for check in result.rebalanced.checks) == result.kv_bytes_moved > 0
    # A check comes before the steps whose number is one above a multiple of the interval.
    assert {check.step % SETTINGS.check_interval for check in result.rebalanced.checks} == {1}
    assert result.without.checks == ()
    # One step more where the last results are still on their way home when the group drains.
    longest = max(map(max, SETTINGS.lengths()))
    assert result.without.steps == longest
    assert result.rebalanced.steps in (longest, longest + 1)
    # Nothing is added or lost: both arms compute the same number of tokens.
    assert result.without.tokens == result.rebalanced.tokens == sum(map(sum, SETTINGS.lengths()))
    assert result.rebalanced.mean_gear < result.without.mean_gear
    assert set(result.step_cost) == set(SETTINGS.gears)
    assert "identical" in report.html(result)
