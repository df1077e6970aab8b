"""vLLM alone, without hooks: whatever is prefilled beside a prompt, and whether its blocks are cached, its log
probabilities are the same to the bit. Every exact comparison with a run that has requests elsewhere rests on that.
"""

from __future__ import annotations

import pytest
from bed import rollout, workload
from bed.workload import Workload
from seqshift.cpu_bed.compare import assert_equal
from seqshift.cpu_bed.engine import make_llm

# One, two and three tokens beyond a block of 128, and one beyond a piece of 32 and of 64 that attention might cut.
LENGTHS = (129, 130, 131, 161, 257, 289, 321)
# Around the lengths at which attention cuts in another way, 192 and 768.
BESIDE = (1, 3, 191, 192, 768, 900)


def contexts(ctx) -> dict[int, list]:
    """By prompt length, the output alone and then in every other context."""
    llm = make_llm(ctx)

    def run(*lengths: int, fresh: bool = True) -> list:
        work = Workload(
            tuple(workload.prompt(0, length, length) for length in lengths),
            tuple(workload.sampling(3, logprobs=1) for _ in lengths),
        )
        llm.request_counter.reset()
        return rollout.run_rollout(llm, work, hooked=False, fresh=fresh).outputs[:1]

    found = {}
    for length in LENGTHS:
        outputs = found[length] = [run(length)]
        for other in BESIDE:
            outputs.append(run(length, other))
            # Its own blocks are cached now, and the other's are as well.
            outputs.append(run(length, other, fresh=False))
            run(length)
            outputs.append(run(length, other, fresh=False))
    return found


@pytest.fixture(scope="module")
def found(bed):
    (rank,) = bed.run(contexts, dp=1, deadline=120)
    return rank


@pytest.mark.parametrize("length", LENGTHS)
def test_a_prefill_does_not_depend_on_its_batch(found, length):
    alone, *others = found[length]
    assert len(others) == 3 * len(BESIDE)
    assert {o.num_cached_tokens for (o,) in others} == {0, (length - 1) // 128 * 128}
    for at, other in enumerate(others):
        what = f"{length} tokens beside {BESIDE[at // 3]}, run {at % 3}"
        assert_equal(alone, other, what, ignore=("num_cached_tokens",))
