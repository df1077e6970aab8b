"""Observers of an engine in a rank, the same with and without hooks.

An `Observer` wraps attributes of the engine's own objects while it is attached and records, in order, every forward
of the model and every all-reduce over the two DP groups. `state` is what is left in the engine between rollouts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

# Events. A forward is FORWARD (real) or DUMMY; STEP is the all-reduce of `has_unfinished`, SYNC the one that
# `set_forward_context` makes inside every forward.
FORWARD, DUMMY, STEP, SYNC = "forward", "dummy", "step", "sync"


@dataclass
class Trace:
    """What an Observer has seen; plain values."""

    events: list[str] = field(default_factory=list)
    # Tokens computed for a request without output yet: its prompt.
    prefill_tokens: int = 0
    # Tokens computed beyond the one that a request with output needs per step: repeated work.
    repeated_tokens: int = 0
    decode_tokens: int = 0
    # The requests of each forward, in the order of the forwards; () for a dummy one.
    batches: list[tuple[str, ...]] = field(default_factory=list)

    def count(self, *kinds: str) -> int:
        """Number of events of these kinds."""
        counts = Counter(self.events)
        return sum(counts[k] for k in kinds)

    def summary(self) -> dict[str, int]:
        """The totals that must agree on all ranks."""
        return {
            "forwards": self.count(FORWARD, DUMMY),
            "step reductions": self.count(STEP),
            "forward reductions": self.count(SYNC),
        }

    def lockstep_faults(self) -> list[str]:
        """Violations of "exactly one forward between two consecutive all-reduces", `[]` if it holds.

        One rollout is STEP (forward STEP)*; every forward contains exactly one SYNC.
        """
        faults = []
        forwards = syncs = 0
        steps = [e for e in self.events if e == STEP]
        if not steps or self.events[0] != STEP or self.events[-1] != STEP:
            faults.append("a rollout must begin and end with the all-reduce of has_unfinished")
        seen = 0
        for event in self.events:
            if event == STEP:
                if seen and forwards != 1:
                    faults.append(f"{forwards} forwards between all-reduces {seen} and {seen + 1}")
                if seen and syncs != 1:
                    faults.append(f"{syncs} forward all-reduces between all-reduces {seen} and {seen + 1}")
                seen += 1
                forwards = syncs = 0
            elif event == SYNC:
                syncs += 1
            else:
                forwards += 1
        return faults


def lockstep_faults(traces: list[Trace]) -> list[str]:
    """Violations of the lockstep over the ranks of a DP group: each rank's own, and totals that differ."""
    faults = [f"rank {i}: {fault}" for i, trace in enumerate(traces) for fault in trace.lockstep_faults()]
    totals = [trace.summary() for trace in traces]
    if any(t != totals[0] for t in totals):
        faults.append(f"totals differ: {totals}")
    return faults


class Observer:
    """Records one engine while used as a context manager; at most one per process at a time."""

    def __init__(self, llm: Any) -> None:
        engine = llm.llm_engine
        self.trace = Trace()
        self._dp_group = engine.dp_group
        self._scheduler = engine.engine_core.engine_core.scheduler
        self._runner = runner_of(llm)
        self._kind: str | None = None
        self._undo: list[Any] = []

    def __enter__(self) -> Trace:
        import torch

        hook = self._runner.model.register_forward_pre_hook(self._on_forward)
        self._undo.append(hook.remove)
        self._wrap(self._runner, "execute_model", self._execute)
        self._wrap(self._runner, "_dummy_run", self._dummy)
        self._wrap(torch.distributed, "all_reduce", self._reduce)
        return self.trace

    def __exit__(self, *_: Any) -> None:
        while self._undo:
            self._undo.pop()()

    def _wrap(self, owner: Any, name: str, wrapper: Any) -> None:
        original = getattr(owner, name)
        own = name in vars(owner)

        def replacement(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        def undo() -> None:
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)

        setattr(owner, name, replacement)
        self._undo.append(undo)

    def _on_forward(self, *_: Any) -> None:
        self.trace.events.append(self._kind or "unknown")

    def _execute(self, original: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        self._count_tokens(scheduler_output)
        self._kind = FORWARD
        try:
            return original(scheduler_output, *args, **kwargs)
        finally:
            self._kind = None

    def _dummy(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._kind = DUMMY
        self.trace.batches.append(())
        try:
            return original(*args, **kwargs)
        finally:
            self._kind = None

    def _reduce(self, original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm.distributed.parallel_state import get_dp_group

        group = kwargs.get("group") or (args[1] if len(args) > 1 else None)
        if group is self._dp_group and group is not None:
            self.trace.events.append(STEP)
        elif group is get_dp_group().cpu_group:
            self.trace.events.append(SYNC)
        return original(tensor, *args, **kwargs)

    def _count_tokens(self, scheduler_output: Any) -> None:
        trace = self.trace
        scheduled = scheduler_output.num_scheduled_tokens
        if scheduled:
            trace.batches.append(tuple(scheduled))
        for request_id, tokens in scheduled.items():
            if self._scheduler.requests[request_id].num_output_tokens == 0:
                trace.prefill_tokens += tokens
            else:
                trace.decode_tokens += 1
                trace.repeated_tokens += tokens - 1


def runner_of(llm: Any) -> Any:
    """The model runner of an in-process engine."""
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner


def state(llm: Any) -> dict[str, Any]:
    """What is left in an engine's tables between two rollouts, and its KV blocks; plain values.

    After an unhooked rollout the scheduler and the output processor are empty; the runner keeps the requests that
    finished in the last step until the next one, so those tables hold ids of this rank's last step.
    """
    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    runner = runner_of(llm)
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    single = manager.coordinator.single_type_managers[0]
    return {
        "scheduler.requests": sorted(scheduler.requests),
        "scheduler.waiting": [r.request_id for r in scheduler.waiting],
        "scheduler.running": [r.request_id for r in scheduler.running],
        "scheduler.finished_req_ids": sorted(scheduler.finished_req_ids),
        "scheduler._cached_reqs_data": sorted(k for k, v in scheduler._cached_reqs_data.items() if v),
        "manager.req_to_block_hashes": sorted(manager.req_to_block_hashes),
        "manager.req_to_blocks": sorted(k for k, v in single.req_to_blocks.items() if v),
        "manager.num_cached_block": sorted(single.num_cached_block),
        "runner.requests": sorted(runner.requests),
        "runner.input_batch": sorted(i for i in runner.input_batch.req_ids if i is not None),
        "runner.generators": len(runner.input_batch.generators),
        "output_processor.request_states": sorted(engine.output_processor.request_states),
        "output_processor.parent_requests": sorted(engine.output_processor.parent_requests),
        "should_execute_dummy_batch": engine.should_execute_dummy_batch,
        "free_blocks": pool.get_num_free_blocks(),
        "referenced_blocks": {b.block_id: b.ref_cnt for b in pool.blocks if b.ref_cnt and not b.is_null},
    }


def reset_prefix_cache(llm: Any) -> None:
    """Empties the prefix cache; an error if a block is still in use, which vLLM only logs."""
    manager = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager
    if not manager.reset_prefix_cache():
        raise AssertionError(f"blocks are still in use between rollouts: {state(llm)['referenced_blocks']}")


def metrics(llm: Any) -> dict[str, float]:
    """vLLM's own metrics of this process (needs log statistics): counters by name and labels, histograms by count.

    Histograms of times and of iterations are given by their count only; those of token numbers by their sum as well.
    """
    found = {}
    for metric in llm.get_metrics():
        labels = ",".join(f"{k}={v}" for k, v in sorted(metric.labels.items()) if k not in ("model_name", "engine"))
        key = f"{metric.name}{{{labels}}}"
        if type(metric).__name__ == "Counter":
            found[key] = metric.value
        elif type(metric).__name__ == "Histogram":
            found[f"{key}.count"] = metric.count
            if metric.name.endswith("_tokens"):
                found[f"{key}.sum"] = metric.sum
    return found
