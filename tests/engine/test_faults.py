"""A fault of the KV path costs the moves that it hits, on both ends, and nothing else: every output is as unhooked.

Faults are injected by rule into the mock of one rank, on the real engine, under a plan that moves at every check.
"""

from __future__ import annotations

import pytest
from bed import rollout, workload
from bed.mock_control import Action, MockControl
from bed.rollout import Case, Pair
from bed.verify import total, verify
from seqshift.cpu_bed.engine import make_llm

CASE = Case("busy", {}, {"check_interval": 5, "deadline_seconds": 8, "max_failures": 1000}, "shuffle")
HCCL_E_INTERNAL = 4
ACL_ERROR_RT_INTERNAL = 507000
# (symbol, action, rank, first call hit, value[, number of calls hit])
FAULTS = {
    "a send is refused at rank 0": ("HcclBatchSendRecv", Action.RETURN, 0, 1, HCCL_E_INTERNAL),
    "a send is refused at rank 1, later": ("HcclBatchSendRecv", Action.RETURN, 1, 3, HCCL_E_INTERNAL),
    "a link fails while it sends": ("HcclBatchSendRecv", Action.FAIL_TASK, 1, 1, ACL_ERROR_RT_INTERNAL),
    "a transfer stalls past the deadline": ("HcclBatchSendRecv", Action.STALL, 0, 1, 0),
    "a payload is damaged": ("HcclBatchSendRecv", Action.CORRUPT, 0, 1, 0),
    # That of a kernel's index, one for several moves, and one for one of them.
    "copies are refused": ("aclrtMemcpy*", Action.RETURN, 1, 1, ACL_ERROR_RT_INTERNAL, 3),
}


def hit(count):
    """How many calls a rule hits."""
    return count[0] if count else 1


def faulty(ctx, path):
    """An unhooked run, then a hooked one per fault on the same engine."""
    import torch

    control = MockControl(path) if ctx.rank == 0 else None
    with rollout.hooks(CASE.config, CASE.plan):
        llm = make_llm(ctx)
    work = workload.busy(ctx.dp_rank)
    (plain,) = rollout.run_rollouts(ctx, llm, [work], hooked=False)
    pairs, hits = [], []
    for symbol, action, rank, first, value, *count in FAULTS.values():
        with rollout.hooks(CASE.config, CASE.plan):
            # The group is joined here, before the rule is armed.
            rollout.run_rollout(llm, workload.busy(ctx.dp_rank, requests=1, first=8), hooked=True)
            rule = None
            if control is not None:
                rule = control.arm(symbol, action, rank=rank, first=first, count=hit(count), value=value)
            torch.distributed.barrier()
            pairs.append(Pair(CASE, plain, rollout.run_rollout(llm, work, hooked=True)))
            torch.distributed.barrier()
            if rule is not None:
                hits.append(rule.hits)
                rule.release()
                rule.disarm()
    return pairs, hits


@pytest.fixture(scope="module")
def ranks(bed, tmp_path_factory):
    path = tmp_path_factory.mktemp("mock") / "control"
    MockControl(path)
    return bed.run(faulty, path, env={"SEQSHIFT_MOCK_CONTROL": str(path)}, deadline=300)


@pytest.mark.parametrize("case", range(len(FAULTS)), ids=list(FAULTS))
def test_outputs_are_equal_and_moves_go_on(ranks, case):
    pairs = [[pairs[case]] for pairs, _ in ranks]
    assert ranks[0][1][case] == hit([*FAULTS.values()][case][5:])
    verify(pairs)
    # Both ends count a move that was undone.
    undone = [rank[0].hooked.stats["moves_rolled_back"] for rank in pairs]
    assert undone[0] == undone[1] >= 1
    assert total(pairs, "sequences_moved") >= 20
