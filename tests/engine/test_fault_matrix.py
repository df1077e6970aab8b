"""Whatever fails, in whatever step, on whatever rank or TP shard: a fixed sample of the matrix (`make faults` is all).

Every request finishes with the outputs of the unhooked run, tables and free blocks are as there, counters tell what
happened, every check ends within its deadline, and all ranks go on, switch themselves off or stop alike.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bed.fault_cells import HARMLESS, NOT_OF_A_ROLLOUT, Frame, Mock, Raises, injected, matrix, sample
from bed.fault_matrix import SEED, run_matrix, table
from bed.fault_run import called
from bed.seeds import seed_of

# DP ranks, TP shards, cells.
SAMPLES = [(2, 1, 40), (2, 2, 14), (3, 1, 8), (4, 1, 4)]


@pytest.fixture(scope="module")
def seed() -> int:
    return seed_of(SEED, 1)


@pytest.mark.parametrize(("dp", "tp", "count"), SAMPLES)
def test_a_sample_of_the_matrix(bed, seed, dp, tp, count):
    cells = sample(matrix(dp, tp), seed, count)
    assert len({cell.step for cell in cells}) >= min(count, 8)
    found = run_matrix(bed, cells, dp, tp)
    print(table(found))
    assert not any(verdict.wrong for verdict in found.values()), table(found)
    assert max(verdict.seconds for verdict in found.values()) > 0


def named_in(pattern: str, *path: str) -> set[str]:
    """What a pattern's only group finds in a source file."""
    source = Path(__file__).parents[2].joinpath(*path).read_text(encoding="utf-8")
    return set(re.findall(pattern, source, re.MULTILINE))


def test_every_kind_of_message_has_a_cell():
    kinds = named_in(r"^    (\w+) = \d+,$", "src", "wire", "frame.rs")
    # The first word on a connection, and the last.
    assert kinds - {one.kind for one in injected(matrix(2, 2), Frame)} == {"Hello", "Leave"}
    assert len(kinds) >= 18


def test_every_method_of_the_adapter_has_a_cell():
    asked = named_in(r'\.call_method[01]\(\s*"(\w+)"', "src", "python", "engine.rs")
    asked |= named_in(r"\.adapter\.(\w+)\(", "python_hooks", "seqshift", "session.py")
    asked |= named_in(r'\._(?:insist|attempt)\("(\w+)"', "python_hooks", "seqshift", "session.py")
    assert asked - {one.method for one in injected(matrix(2), Raises)} == NOT_OF_A_ROLLOUT
    assert len(asked) >= 25


def test_every_symbol_that_is_called_has_a_cell(bed, tmp_path):
    env = {rank: {"SEQSHIFT_MOCK_CONTROL": str(tmp_path / f"rank{rank}")} for rank in range(2)}
    for calls in bed.run(called, rank_env=env):
        assert calls["HcclBatchSendRecv"] >= 4
        assert set(calls) - {one.symbol for one in injected(matrix(2), Mock)} - HARMLESS == set()
