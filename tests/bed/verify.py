"""What must hold for every hooked rollout, whatever was moved; used by the tests of all contracts."""

from __future__ import annotations

from collections import Counter
from typing import Any

from seqshift.cpu_bed.compare import assert_equal

from bed.observe import lockstep_faults
from bed.rollout import Pair

# Tables that an unhooked rollout leaves empty.
EMPTY = (
    "scheduler.requests",
    "scheduler.waiting",
    "scheduler.running",
    "scheduler._cached_reqs_data",
    "manager.req_to_block_hashes",
    "manager.req_to_blocks",
    "manager.num_cached_block",
    "output_processor.request_states",
    "output_processor.parent_requests",
    "should_execute_dummy_batch",
    "referenced_blocks",
)


# Where vLLM has preempted a request, its prefill is computed again, in another way than the decode steps were.
PREEMPTED = {"recomputed": True, "logprob_tolerance": 1e-4}


def verify(ranks: list[list[Pair]], tp: int = 1, recomputed: bool = False, cached: bool = True, **compare: Any) -> None:
    """Outputs, lockstep, computed tokens and tables of every case; `ranks[rank][case]`.

    With TP, the shards of a DP rank are checked like ranks of the DP group of their TP index. `recomputed`: vLLM may
    have computed tokens again. Without `cached`, the prefix cache may have served other prompts than unhooked.
    """
    if not cached:
        compare = {**compare, "ignore": (*compare.get("ignore", ()), "num_cached_tokens")}
    for by_rank in zip(*ranks):
        case = str(by_rank[0].case)
        same_outputs(by_rank, case, **compare)
        for shard in range(tp):
            group = by_rank[shard::tp]
            faults = lockstep_faults([pair.hooked.trace for pair in group])
            assert faults == [], f"{case}, TP shard {shard}: {faults[:10]}"
            if not recomputed:
                no_work_repeated(group, case, cached)
        for rank, pair in enumerate(by_rank):
            nothing_left(pair, f"{case}, rank {rank}")


def same_outputs(by_rank: tuple[Pair, ...], case: str, **compare: Any) -> None:
    """Every field of every output is as in the unhooked run."""
    for rank, pair in enumerate(by_rank):
        assert_equal(pair.plain.outputs, pair.hooked.outputs, f"{case}, rank {rank}", **compare)


def no_work_repeated(group: tuple[Pair, ...], case: str, cached: bool = True) -> None:
    """The group computes each token once: as many prompt tokens as unhooked, if the prefix cache has served the same
    (`cached`), and one token per step for the rest.
    """

    plain = [pair.plain.trace for pair in group]
    hooked = [pair.hooked.trace for pair in group]
    for name in (*(["prefill_tokens"] if cached else []), "decode_tokens", "repeated_tokens"):
        expected, actual = (sum(getattr(trace, name) for trace in traces) for traces in (plain, hooked))
        assert actual == expected, f"{case}: {name}: {actual} != {expected}"


def nothing_left(pair: Pair, where: str) -> None:
    """Tables and blocks after the rollout are as after an unhooked one."""
    after = pair.hooked.after
    left = {name: after[name] for name in EMPTY if after[name]}
    assert left == {}, f"{where}: left behind: {left}"
    assert after["free_blocks"] == pair.plain.after["free_blocks"], where
    # The runner keeps what finished in the last step until the scheduler tells it, in the next rollout.
    finished = after["scheduler.finished_req_ids"]
    assert after["runner.requests"] == finished, where
    assert after["runner.input_batch"] == finished, where


def total(ranks: list[list[Pair]], name: str, case: int = 0) -> Any:
    """A counter of seqshift.stats() summed over the ranks; of counters by reason, the sums by reason."""
    values = [rank[case].hooked.stats[name] for rank in ranks]
    if not isinstance(values[0], dict):
        return sum(values)
    sums: Counter = Counter()
    for value in values:
        sums.update(value)
    return dict(+sums)


def moved_away(pair: Pair, interval: int) -> list[tuple[str, int]]:
    """(request id, steps done) of own requests that left this rank for the first time at a check, in that order."""
    lengths = {o.request_id: len(o.outputs[0].token_ids) for o in pair.plain.outputs}
    batches = pair.hooked.trace.batches
    found: dict[str, int] = {}
    for step in range(interval, len(batches), interval):
        for request_id in set(batches[step - 1]) - set(batches[step]):
            if request_id in lengths and lengths[request_id] > step:
                found.setdefault(request_id, step)
    return sorted(found.items(), key=lambda item: (item[1], int(item[0])))


def kv_blocks(pair: Pair, request_id: str, steps: int, block_size: int = 128) -> int:
    """Blocks that hold the computed tokens of a request whose prompt was computed in the first of `steps` steps."""
    (prompt,) = (len(o.prompt_token_ids) for o in pair.plain.outputs if o.request_id == request_id)
    return -(-(prompt + steps - 1) // block_size)
