"""A fault of the KV path costs the moves that it hits, on both ends, and nothing else: every output is as unhooked.

Faults are injected by rule into the mock of one rank, on the real engine, under a plan that moves at every check.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from bed import rollout, workload
from bed.mock_control import Action, MockControl
from bed.rollout import Case, Pair
from bed.verify import total, verify
from seqshift.cpu_bed.engine import make_llm

CASE = Case("busy", {}, {"check_interval": 5, "deadline_seconds": 8, "max_failures": 1000}, "shuffle")
HCCL_E_INTERNAL = 4
ACL_ERROR_RT_INTERNAL = 507000


class Rule(NamedTuple):
    """A rule of the mock of one rank, and how many calls it hits from its first on."""

    symbol: str
    action: Action
    rank: int
    first: int = 1
    value: int = 0
    count: int = 1


FAULTS = {
    "a send is refused at rank 0": Rule("HcclBatchSendRecv", Action.RETURN, 0, value=HCCL_E_INTERNAL),
    "a send is refused at rank 1, later": Rule("HcclBatchSendRecv", Action.RETURN, 1, first=3, value=HCCL_E_INTERNAL),
    "a link fails while it sends": Rule("HcclBatchSendRecv", Action.FAIL_TASK, 1, value=ACL_ERROR_RT_INTERNAL),
    "a transfer stalls past the deadline": Rule("HcclBatchSendRecv", Action.STALL, 0),
    "a payload is damaged": Rule("HcclBatchSendRecv", Action.CORRUPT, 0),
    # That of a kernel's index, one for several moves, and one for one of them.
    "copies are refused": Rule("aclrtMemcpy*", Action.RETURN, 1, value=ACL_ERROR_RT_INTERNAL, count=3),
}


def faulty(ctx, path):
    """An unhooked run, then a hooked one per fault on the same engine."""
    import torch

    control = MockControl(path) if ctx.rank == 0 else None
    with rollout.hooks(CASE.config, CASE.plan):
        llm = make_llm(ctx)
    work = workload.busy(ctx.dp_rank)
    (plain,) = rollout.run_rollouts(ctx, llm, [work], hooked=False)
    pairs, hits = [], []
    for fault in FAULTS.values():
        with rollout.hooks(CASE.config, CASE.plan):
            # The group is joined here, before the rule is armed.
            rollout.run_rollout(llm, workload.busy(ctx.dp_rank, requests=1, first=8), hooked=True)
            rule = None
            if control is not None:
                rule = control.arm(**fault._asdict())
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
    assert ranks[0][1][case] == [*FAULTS.values()][case].count
    verify(pairs)
    # Both ends count a move that was undone.
    undone = [rank[0].hooked.stats["moves_rolled_back"] for rank in pairs]
    assert undone[0] == undone[1] >= 1
    assert total(pairs, "sequences_moved") >= 20
