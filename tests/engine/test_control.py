"""The test bed itself: unhooked runs are repeatable bit for bit, and a rank that hangs, dies or raises is reported."""

from __future__ import annotations

import os
import signal
import time

import pytest
from bed import rollout, workload
from bed.observe import lockstep_faults
from seqshift.cpu_bed.compare import assert_equal
from seqshift.cpu_bed.engine import init_distributed, make_llm
from seqshift.cpu_bed.ranks import ScenarioError


def twice(ctx, names):
    llm = make_llm(ctx)
    works = [getattr(workload, name)(ctx.dp_rank) for name in names for _ in range(2)]
    return rollout.run_rollouts(ctx, llm, works, hooked=False)


def test_unhooked_runs_are_repeatable(bed):
    names = ["main", "busy", "seeded", "several", "mixed"]
    ranks = bed.run(twice, names, deadline=240)
    for rank, runs in enumerate(ranks):
        for name, first, second in zip(names, runs[::2], runs[1::2]):
            assert_equal(first.outputs, second.outputs, f"rank {rank}, {name}")
    for runs in zip(*ranks):
        assert lockstep_faults([r.trace for r in runs]) == []
        assert all(r.trace.repeated_tokens == 0 for r in runs)


def hang(ctx):
    import torch

    init_distributed(ctx)
    if ctx.rank == 0:
        torch.distributed.barrier()
    else:
        wait_for_nobody()


def wait_for_nobody():
    signal.pause()


def test_a_hang_is_ended_with_the_stacks_of_all_ranks(bed):
    start = time.monotonic()
    with pytest.raises(ScenarioError) as failure:
        bed.run(hang, deadline=6)
    assert time.monotonic() - start < 30
    text = str(failure.value)
    assert "not finished within 6 s" in text
    assert "in barrier" in text
    assert "in wait_for_nobody" in text


def die(ctx):
    print("last words of", ctx.rank, flush=True)
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def test_a_dead_rank_is_reported_with_its_log_and_the_others_stacks(bed):
    with pytest.raises(ScenarioError) as failure:
        bed.run(die, deadline=60)
    text = str(failure.value)
    assert "died without a report, signal SIGKILL" in text
    assert "last words of 1" in text
    assert "in die" in text


def fail(ctx):
    if ctx.rank == 0:
        raise ValueError("deliberate")


def test_an_exception_is_reported_with_its_traceback(bed):
    with pytest.raises(ScenarioError, match=r"ValueError: deliberate"):
        bed.run(fail, dp=1, deadline=60)


def leave_a_child(ctx):
    pid = os.fork()
    if pid == 0:
        signal.pause()
    return pid


def test_no_process_is_left_behind(bed):
    (child,) = bed.run(leave_a_child, dp=1)
    deadline = time.monotonic() + 10
    while (status := process_state(child)) not in ("Z", None):
        assert time.monotonic() < deadline, status


def process_state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None
