"""A rank, or one TP shard of it, that is killed in whatever step is named by all others within the deadline, and
nothing is left behind.

Two of the steps here; with SEQSHIFT_FAULTS=all (`make faults`) every one of them.
"""

from __future__ import annotations

import os
import signal
import time

import pytest
from bed import rollout, workload
from bed.mock_control import Action, MockControl
from bed.segments import handles, left_behind, more_handles, segments
from seqshift.cpu_bed.engine import make_llm
from seqshift.cpu_bed.ranks import ScenarioError

DEADLINE_SECONDS = 30
CONFIG = {"check_interval": 5, "deadline_seconds": DEADLINE_SECONDS, "max_failures": 1000}
# The adapter's method in which the victim is killed; None: while its KV is on its way.
STEPS = {
    "transfer": None,
    "commit, after the exchange of outcomes": "activate",
    "offer": "capture",
    "reserve": "reserve",
    "commit": "install",
    "return": "take_sync",
    "return, after its exchange": "accept_sync",
}
CHOSEN = list(STEPS) if os.environ.get("SEQSHIFT_FAULTS") == "all" else list(STEPS)[:2]


def killed(ctx, victim, method, words):
    """The victim dies in the second such call; the others write down what their generate() raised, and when."""
    llm = make_llm(ctx)
    with rollout.hooks(CONFIG, "shuffle"):
        # The first look at the group joins it; what a process keeps for good, it has from then on.
        llm.llm_engine.has_unfinished_requests()
    before = handles()
    with rollout.hooks(CONFIG, "shuffle"):
        llm.llm_engine.has_unfinished_requests()
        if ctx.rank == victim and method is None:
            MockControl(os.environ["SEQSHIFT_MOCK_CONTROL"]).arm("HcclBatchSendRecv", Action.KILL_IN_TASK, first=2)
        elif ctx.rank == victim:
            adapter = llm.llm_engine.__dict__["_seqshift_session"].adapter
            original, calls = getattr(adapter, method), []

            def dies(*args):
                calls.append(args)
                if len(calls) == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*args)

            setattr(adapter, method, dies)
        prompts, params = workload.busy(ctx.dp_rank).as_vllm()
        start = time.monotonic()
        with pytest.raises(RuntimeError) as error:
            llm.generate(prompts, params, use_tqdm=False)
        seconds = time.monotonic() - start
    left = more_handles(before)
    (words / str(ctx.rank)).write_text(f"{seconds}\n{left}\n{error.value}")


# DP ranks, TP shards, the process that is killed.
@pytest.mark.parametrize(("dp", "tp", "victim"), [(3, 1, 1), (2, 2, 2)], ids=["three ranks", "two shards"])
@pytest.mark.parametrize("step", CHOSEN)
def test_survivors_name_it(bed, tmp_path, step, dp, tp, victim):
    words = tmp_path / "words"
    words.mkdir()
    before = segments()
    env = {victim: {"SEQSHIFT_MOCK_CONTROL": str(tmp_path / "control")}}
    with pytest.raises(ScenarioError, match="SIGKILL"):
        bed.run(killed, victim, STEPS[step], words, dp=dp, tp=tp, rank_env=env, deadline=120)
    for rank in set(range(dp * tp)) - {victim}:
        seconds, left, error = (words / str(rank)).read_text().split("\n", 2)
        assert f"rank {victim // tp}" in error, f"{rank}: {error}"
        assert float(seconds) < DEADLINE_SECONDS
        assert left == "{}"
    assert left_behind(before) == set()
