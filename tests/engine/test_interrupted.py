"""Ctrl-C in a check stops the rollout on all ranks within the deadline and leaves no socket, file, thread or segment
behind; the ranks are told how to go on, and then all is as before.
"""

from __future__ import annotations

import os
import signal
import time

import pytest
from bed import rollout, workload
from bed.segments import handles, left_behind, more_handles, segments
from seqshift.cpu_bed.engine import make_llm

DEADLINE_SECONDS = 10
CONFIG = {"check_interval": 4, "deadline_seconds": DEADLINE_SECONDS}


def interrupted(ctx):
    """Rank 0 is interrupted in its third capture; what is left, what a second try says, and a rollout joined anew."""
    import torch

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with rollout.hooks(CONFIG, "shuffle"):
        llm = make_llm(ctx)
    engine = llm.llm_engine
    work = workload.busy(ctx.dp_rank, requests=4, first=30)
    (plain,) = rollout.run_rollouts(ctx, llm, [work], hooked=False)
    with rollout.hooks(CONFIG, "shuffle"):
        # The first look at the group joins it; what a process keeps for good, it has from then on.
        engine.has_unfinished_requests()
    before, threads = handles(), len(os.listdir("/proc/self/task"))

    def fails():
        start = time.monotonic()
        with pytest.raises((KeyboardInterrupt, RuntimeError)) as error:
            llm.generate(*work.as_vllm(), use_tqdm=False)
        engine.abort_request(list(engine.output_processor.request_states))
        engine.should_execute_dummy_batch = False
        torch.distributed.barrier()
        return f"{error.type.__name__}: {error.value}", time.monotonic() - start

    with rollout.hooks(CONFIG, "shuffle"):
        engine.has_unfinished_requests()
        if ctx.dp_rank == 0:
            adapter = engine.__dict__["_seqshift_session"].adapter
            original, calls = adapter.capture, []

            def capture(*args):
                calls.append(args)
                if len(calls) == 3:
                    signal.raise_signal(signal.SIGINT)
                return original(*args)

            adapter.capture = capture
        words = [fails()]
        # While the hooks are still in.
        more = more_handles(before)
        more_threads = len(os.listdir("/proc/self/task")) - threads
        words.append(fails())
    (again,) = rollout.run_rollouts(ctx, llm, [work], hooked=True, config=CONFIG, plan="shuffle")
    same = again.outputs == plain.outputs
    return words, more, more_threads, same, again.stats["sequences_moved"]


def test_nothing_is_left_and_the_ranks_can_join_anew(bed):
    before = segments()
    ranks = bed.run(interrupted, deadline=120)
    assert ranks[0][0][0][0].startswith("KeyboardInterrupt")
    assert "rank 0" in ranks[1][0][0][0]
    for words, more, more_threads, same, moved in ranks:
        assert all(seconds < DEADLINE_SECONDS + 2 for _, seconds in words)
        assert "enable_rollout_rebalance()" in words[1][0]
        assert (more, more_threads <= 0) == ({}, True)
        assert same
        assert moved > 0
    assert left_behind(before) == set()
