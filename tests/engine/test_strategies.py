"""KV blocks that all move by kernels instead of copies change nothing on the engine."""

from __future__ import annotations

from bed.mock_control import RANKS, MockControl
from bed.rollout import Case, run_cases
from bed.verify import total, verify

CASES = [Case("mixed", {}, {"check_interval": 5}, "shuffle")]


def test_nothing_changes(bed, tmp_path):
    path = tmp_path / "control"
    control = MockControl(path)
    env = {"SEQSHIFT_TEST_KV_STRATEGY": "kernels", "SEQSHIFT_MOCK_CONTROL": str(path)}
    ranks = bed.run(run_cases, CASES, env=env, deadline=300)
    verify(ranks)
    assert total(ranks, "sequences_moved") >= 50
    assert total(ranks, "moves_rolled_back") == 0
    for kernel in ("aclnnIndexSelect", "aclnnInplaceIndexCopy"):
        assert sum(control.calls(kernel, rank) for rank in range(RANKS)) > 100
