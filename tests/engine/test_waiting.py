"""Requests without a complete prefill: waiting ones move without KV where another rank has room and theirs has not, and
half-prefilled ones stay until they decode.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from bed import workload
from bed.rollout import Case, Pair, hooks, run_cases, run_pairs, run_rollout
from bed.verify import PREEMPTED, total, verify
from bed.workload import Workload
from seqshift.cpu_bed.compare import assert_equal, differences
from seqshift.cpu_bed.engine import make_llm
from seqshift.cpu_bed.model import DEFAULT

OFTEN = {"check_interval": 5}
BLOCK_BYTES = 128 * DEFAULT.kv_bytes_per_token(4)
# 16 sequences against 2, on engines of 4 slots.
UNEVEN = {"outputs": [[40 + 3 * i for i in range(16)], [10, 12]]}
SLOTS = 4
WAITING = [
    Case("given", UNEVEN, OFTEN),
    Case("given", {**UNEVEN, "temperature": 1.0, "seed": 8, "logprobs": 1, "n": 2}, OFTEN),
    Case("given", {**UNEVEN, "prompts": 200, "logprobs": 2}, OFTEN, "shuffle"),
    Case("given", {**UNEVEN, "prompt_logprobs": 1}, OFTEN),
    # Six requests of each prompt, of which the first computes it for all.
    Case("repeated", {**UNEVEN, "copies": 6}, OFTEN),
]


@pytest.fixture(scope="module")
def waiting(bed):
    return bed.run(run_cases, WAITING, {"max_num_seqs": SLOTS}, deadline=240)


@pytest.mark.parametrize(
    "case", range(len(WAITING)), ids=["gears", "sampled", "shuffle", "prompt_logprobs", "repeated"]
)
def test_outputs_are_as_unhooked(waiting, case):
    verify([[rank[case]] for rank in waiting])


def test_waiting_requests_move_without_kv(waiting):
    plain, hooked = (getattr(waiting[0][0], run).trace.batches for run in ("plain", "hooked"))
    assert total(waiting, "sequences_moved", 0) >= 4
    # The other rank runs on when its own two have finished, and the group needs fewer steps.
    assert len(plain) > len(hooked)
    assert max(len(batch) for batch in waiting[1][0].hooked.trace.batches) == SLOTS
    # Prompts of 30 tokens: what moved while it waited has taken no KV along.
    moved = total(waiting, "sequences_moved", 0)
    with_kv = sum(rank[0].hooked.stats["kv_bytes_moved"] for rank in waiting) // BLOCK_BYTES
    assert with_kv < moved


def test_running_sequences_make_room_for_requests_that_cannot_move(waiting):
    """The other rank runs what has left, and the group needs fewer steps."""
    plain, hooked = (getattr(waiting[0][4], run).trace.batches for run in ("plain", "hooked"))
    blocks = sum(rank[4].hooked.stats["kv_bytes_moved"] for rank in waiting) // BLOCK_BYTES
    assert blocks >= 2 * total(waiting, "sequences_moved", 4) > 0
    assert len(hooked) < len(plain)


def test_a_waiting_request_with_prompt_logprobs_stays(waiting):
    """Its first output carries them, and only tokens go home."""
    own = {o.request_id for o in waiting[0][3].plain.outputs}
    first = set().union(*waiting[0][3].hooked.trace.batches)
    assert own <= first


def test_requests_that_cannot_move_keep_their_slots(bed):
    """Two running sequences of the other rank would fit there, and lower the gear for as long as the two wait."""
    gears = {"check_interval": 10, "graph_batch_sizes": [8, 6, 4, 2, 1]}
    ranks = bed.run(run_cases, [Case("queued", {}, gears)], {"max_num_seqs": [8, 4]}, deadline=120)
    verify(ranks)
    plain, hooked = (getattr(ranks[1][0], run).trace.batches for run in ("plain", "hooked"))
    assert set(plain[10]) == set(hooked[10]) == {"0", "1", "4", "5"}
    # Moved later, when the two have finished.
    assert total(ranks, "sequences_moved") >= 2


def test_blocks_that_are_computed_anew_are_not_given_away(bed):
    """vLLM takes none from its cache for a request that wants its prompt's log probabilities."""
    engine = {"max_num_seqs": 16, "kv_mib": [64, 9]}
    ranks = bed.run(run_cases, [Case("cached", {}, OFTEN)], engine, deadline=120)
    verify(ranks, **PREEMPTED)
    runs = (ranks[1][0].plain, ranks[1][0].hooked)
    plain, hooked = (next(i for i, batch in enumerate(run.trace.batches) if "3" in batch) for run in runs)
    assert 0 < hooked <= plain


def test_waiting_samples_that_end_at_different_lengths(bed):
    """vLLM says for a parent what was cached for the sample that ended last: which one that is depends on when they
    began, and so on what has moved.
    """
    cases = [Case("staggered", {}, OFTEN, plan) for plan in (None, "shuffle")]
    ranks = bed.run(run_cases, cases, {"max_num_seqs": SLOTS}, deadline=240)
    verify(ranks, ignore=("num_cached_tokens",))
    for pair in ranks[0]:
        assert {o.num_cached_tokens for o in (*pair.plain.outputs, *pair.hooked.outputs)} <= {0, 256}
        assert len({len(one.token_ids) for o in pair.plain.outputs for one in o.outputs}) > 5
        assert pair.hooked.stats["sequences_moved"] > 0


LONG, BUDGET, TOLERANCE = 600, 64, 1e-4
LENGTHS = [[30 + 9 * i for i in range(8)], [20]]
CHUNKED = [
    Case("given", {"outputs": LENGTHS, "prompts": LONG, "logprobs": 1}, {"check_interval": 1}, plan)
    for plan in ("shuffle", None)
]


def cut_elsewhere(ctx) -> tuple[list[Pair], list, list]:
    """The cases, and the outputs of their requests without hooks, alone and when another one takes from the budget."""
    with hooks():
        llm = make_llm(ctx, max_num_batched_tokens=BUDGET)
    pairs = run_pairs(ctx, llm, CHUNKED)
    work = workload.given(ctx.dp_rank, **CHUNKED[0].options)
    beside = Workload((workload.prompt(9, 9, 10), *work.prompts), (workload.sampling(150), *work.params))
    alone, outputs = pairs[0].plain.outputs, run_rollout(llm, beside, hooked=False).outputs[1:]
    return pairs, alone, [replace(two, request_id=one.request_id) for one, two in zip(alone, outputs)]


@pytest.fixture(scope="module")
def chunked(bed):
    return bed.run(cut_elsewhere, deadline=240)


def test_where_a_prompt_is_cut_changes_rounding_without_hooks(chunked):
    for _, alone, beside in chunked:
        assert_equal(alone, beside, "beside another prompt", logprob_tolerance=TOLERANCE)


@pytest.mark.parametrize("case", range(len(CHUNKED)), ids=["shuffle", "gears"])
def test_half_prefilled_requests_are_not_taken_for_complete(chunked, case):
    """Every prefill takes ten steps, with a check before each of them, and no token of it is computed twice."""
    pairs = [rank[0] for rank in chunked]
    # Decoding requests take from the budget of those in their prompt, so moving them cuts prompts in other places.
    differs = any(differences(alone, beside) for _, alone, beside in chunked)
    verify([[rank[case]] for rank in pairs], logprob_tolerance=TOLERANCE if differs else 0.0)
    for rank in pairs:
        trace = rank[case].plain.trace
        for request_id in {i for batch in trace.batches for i in batch}:
            (output,) = (o.outputs[0] for o in rank[case].plain.outputs if o.request_id == request_id)
            steps = sum(request_id in batch for batch in trace.batches)
            assert steps - len(output.token_ids) + 1 >= LONG / BUDGET
    assert total(pairs, "sequences_moved", case) >= (40 if CHUNKED[case].plan else 1)


def in_chunks(ctx, **options) -> str:
    """What vLLM raises, without hooks, for a prompt of several chunks."""
    llm = make_llm(ctx, max_num_batched_tokens=BUDGET)
    work = workload.given(0, [[3]], prompts=2 * BUDGET, **options)
    try:
        run_rollout(llm, work, hooked=False)
    except RuntimeError as error:
        return str(error)
    return ""


def test_seeded_chunks_end_vllms_cpu_engine(bed):
    """Why half-prefilled requests are tested greedy."""
    (error,) = bed.run(in_chunks, temperature=1.0, seed=1, dp=1, deadline=60)
    assert "CPU Generator does not use offset" in error
    assert bed.run(in_chunks, dp=1, deadline=60) == [""]
