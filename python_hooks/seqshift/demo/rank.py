"""What runs in each rank: step times by batch size, then the rollout without and with rebalancing.

One engine serves all of it, in the same processes. Only this file of the demo needs vLLM.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import seqshift
from seqshift.cpu_bed.compare import OutputRecord, record
from seqshift.cpu_bed.engine import make_llm, repaired_rows
from seqshift.cpu_bed.ranks import RankContext
from seqshift.demo.settings import Settings

# Decode steps per batch size; the median of them is taken.
CALIBRATION_STEPS = 16
PROGRESS_SECONDS = 0.1


@dataclass
class Step:
    """One engine step of one rank. Counters are those of this rank since the rollout began."""

    seconds: float
    """From the start of the rollout to the end of the step."""
    cpu_seconds: float
    """Processor time of this step in this process: unlike `seconds`, without waiting for peers and other programs."""
    sequences: int
    """In this step's forward."""
    moved: int
    kv_bytes: int
    pause_seconds: float


@dataclass
class Rollout:
    """One generate() on one rank."""

    seconds: float
    steps: list[Step]
    outputs: list[OutputRecord]
    stats: dict[str, Any] = field(default_factory=dict)
    """seqshift.stats() at the end, with rebalancing."""


@dataclass
class RankResult:
    """What a rank returns."""

    step_cost: dict[int, float]
    """Processor seconds of a decode step by number of sequences."""
    without: Rollout
    rebalanced: Rollout


class Recorder:
    """Logs every step of an engine while used as a context manager, at the cost of a few calls per step."""

    def __init__(self, llm: Any, progress: Progress) -> None:
        self.steps: list[Step] = []
        self._engine = llm.llm_engine
        self._scheduler = self._engine.engine_core.engine_core.scheduler
        self._progress = progress
        self._sequences = 0
        self._start = 0.0

    def __enter__(self) -> list[Step]:
        # On the instances, so that the hooks on the classes stay below and count as part of the step.
        self._engine.step = self._step
        self._scheduler.schedule = self._schedule
        self._start = time.perf_counter()
        return self.steps

    def __exit__(self, *_: Any) -> None:
        del self._engine.step, self._scheduler.schedule

    def _step(self) -> list:
        # A rank without work runs a dummy forward and does not schedule.
        self._sequences = 0
        cpu = time.process_time()
        outputs = type(self._engine).step(self._engine)
        cpu = time.process_time() - cpu
        stats = seqshift.stats()
        self.steps.append(
            Step(
                seconds=time.perf_counter() - self._start,
                cpu_seconds=cpu,
                sequences=self._sequences,
                moved=stats["sequences_moved"],
                kv_bytes=stats["kv_bytes_moved"],
                pause_seconds=stats["pause_seconds"],
            )
        )
        self._progress.step(len(self.steps), self._sequences)
        return outputs

    def _schedule(self) -> Any:
        scheduled = type(self._scheduler).schedule(self._scheduler)
        self._sequences = len(scheduled.num_scheduled_tokens)
        return scheduled


class Progress:
    """Tells the asking process how far this rank is; never waits for it."""

    def __init__(self, address: str | None, rank: int) -> None:
        self._socket = None
        if address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._socket.connect(address)
        self._rank = rank
        self._phase = ""
        self._next = 0.0

    def phase(self, name: str) -> None:
        """A part of the demo begins."""
        self._phase = name
        self._send(0, 0)

    def step(self, step: int, sequences: int) -> None:
        """A step has ended; reported a few times per second."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + PROGRESS_SECONDS
            self._send(step, sequences)

    def _send(self, step: int, sequences: int) -> None:
        if self._socket is not None:
            words = {"rank": self._rank, "phase": self._phase, "step": step, "sequences": sequences}
            # A display that has fallen behind or gone must not stop a rank.
            with contextlib.suppress(OSError):
                self._socket.send(json.dumps(words).encode())


def run(ctx: RankContext, settings: Settings, address: str | None) -> RankResult:
    """The whole demo on one rank; `address` is the datagram socket that takes the progress."""
    progress = Progress(address, ctx.dp_rank)
    progress.phase("engine")
    llm = make_llm(
        ctx,
        model=settings.model,
        max_num_seqs=settings.sequences,
        max_model_len=settings.max_model_len,
        additional_config={"torchair_graph_config": {"enabled": True, "graph_batch_sizes": [settings.sequences]}},
    )
    progress.phase("calibration")
    prompts = settings.prompts(ctx.dp_rank)
    step_cost = {gear: _step_cost(llm, prompts[:gear], progress) for gear in reversed(settings.gears)}
    lengths = settings.lengths()[ctx.dp_rank]
    progress.phase("without")
    with repaired_rows():
        without = _rollout(llm, prompts, lengths, progress)
    progress.phase("rebalanced")
    seqshift.enable_rollout_rebalance(
        {
            "check_interval": settings.check_interval,
            "graph_batch_sizes": settings.gears,
            "backend": "mock",
            "profile": False,
        }
    )
    try:
        # The ranks join at an engine's first rollout here; a user's join when the engine is made.
        _rollout(llm, prompts[:1], [2], progress)
        rebalanced = _rollout(llm, prompts, lengths, progress)
        rebalanced.stats = seqshift.stats()
    finally:
        seqshift.disable_rollout_rebalance()
    return RankResult(step_cost, without, rebalanced)


def _rollout(llm: Any, prompts: list[list[int]], lengths: list[int], progress: Progress) -> Rollout:
    """Greedy, each response of exactly its length; logprobs are asked for so that they are compared too."""
    import torch
    from vllm import SamplingParams

    llm.reset_prefix_cache()
    llm.request_counter.reset()
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, logprobs=0) for n in lengths]
    torch.distributed.barrier()
    start = time.perf_counter()
    with Recorder(llm, progress) as steps:
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    return Rollout(time.perf_counter() - start, steps, record(outputs))


def _step_cost(llm: Any, prompts: list[list[int]], progress: Progress) -> float:
    """Median processor time of a decode step with that many sequences."""
    steps = _rollout(llm, prompts, [CALIBRATION_STEPS + 4] * len(prompts), progress).steps
    # The first and the last steps hold prefills or fewer sequences.
    return median(step.cpu_seconds for step in steps[2 : CALIBRATION_STEPS + 2] if step.sequences == len(prompts))
