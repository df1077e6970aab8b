"""The main workload at DP=2: rank 1 has finished at the first check and takes half of rank 0's sequences; every
output is as if nothing had moved, and exactly the blocks that hold computed tokens are sent.
"""

from __future__ import annotations

import pytest
from bed import rollout, workload
from bed.rollout import Case, run_cases
from bed.verify import kv_blocks, moved_away, total, verify
from seqshift.cpu_bed.engine import make_llm
from seqshift.cpu_bed.model import DEFAULT

INTERVAL = rollout.CONFIG["check_interval"]
GEAR_AFTER = 8
BLOCK_BYTES = 128 * DEFAULT.kv_bytes_per_token(4)


@pytest.fixture(scope="module")
def ranks(bed):
    # The second one with shorter prompts: rows of the block table then hold stale entries.
    return bed.run(run_cases, [Case("main"), Case("compact")], deadline=180)


def test_outputs_lockstep_work_and_tables_are_as_unhooked(ranks):
    verify(ranks)


@pytest.mark.parametrize("case", [0, 1], ids=["main", "compact"])
def test_the_first_check_moves_exactly_eight(ranks, case):
    busy, drained = (rank[case].hooked.trace.batches for rank in ranks)
    assert [len(b) for b in busy[INTERVAL - 1 : INTERVAL + 1]] == [16, GEAR_AFTER]
    assert [len(b) for b in drained[INTERVAL - 1 : INTERVAL + 1]] == [4, GEAR_AFTER]
    assert sum(step == INTERVAL for _, step in moved_away(ranks[0][case], INTERVAL)) == 8
    assert total(ranks, "moves_rejected", case) == total(ranks, "moves_rolled_back", case) == 0
    assert total(ranks, "pinned", case) == {}


@pytest.mark.parametrize("case", [0, 1], ids=["main", "compact"])
def test_exactly_the_blocks_with_computed_tokens_are_sent(ranks, case):
    pair = ranks[0][case]
    moved = moved_away(pair, INTERVAL)
    assert pair.hooked.stats["sequences_moved"] == len(moved)
    blocks = [kv_blocks(pair, *one) for one in moved]
    assert pair.hooked.stats["kv_bytes_moved"] == sum(blocks) * BLOCK_BYTES
    assert ranks[1][case].hooked.stats["kv_bytes_moved"] == 0
    if case == 0:
        assert max(blocks) >= 3


def progress(ctx):
    llm = make_llm(ctx)
    prompts, params = workload.main(ctx.dp_rank).as_vllm()
    bars = []

    def bar(*args, **kwargs):
        from tqdm import tqdm

        bars.append(tqdm(*args, **kwargs))
        return bars[-1]

    with rollout.hooks():
        llm.generate(prompts, params, use_tqdm=bar)
    import seqshift

    return [(b.n, b.total) for b in bars], seqshift.stats()["sequences_moved"]


def test_the_progress_bar_ends_at_its_total(bed):
    ranks = bed.run(progress)
    assert sum(moved for _, moved in ranks) >= 8
    for (bars, _), count in zip(ranks, [16, 4]):
        assert bars[-1] == (count, count)
