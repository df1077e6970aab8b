"""A moved sequence ends as it would have at home: by length, stop token, stop string or EOS, with the same reason.

One stop string's text begins before the move and ends after it.
"""

from __future__ import annotations

from bed import rollout, workload
from bed.rollout import Case
from bed.verify import moved_away, verify
from seqshift.cpu_bed.engine import make_llm
from seqshift.cpu_bed.model import EOS_TOKEN_ID

INTERVAL = rollout.CONFIG["check_interval"]
# Request -> its length.
IN_THE_STEP = {7: INTERVAL, 11: 2 * INTERVAL, 15: 2 * INTERVAL + 1}


def ends(ctx):
    llm = make_llm(ctx)
    stops = {}
    if ctx.dp_rank == 0:
        stops = choose(rollout.run_rollouts(ctx, llm, [workload.main(0)], hooked=False)[0].outputs)
    else:
        rollout.run_rollouts(ctx, llm, [workload.main(1)], hooked=False)
    cases = [Case("stopping", {"stops": stops}, plan=plan) for plan in ("pingpong", None)]
    return rollout.run_pairs(ctx, llm, cases)


def choose(outputs):
    """Sampling parameters that end each request of rank 0 in its own way, at a known token of its greedy output."""
    stops = {}
    for index, output in enumerate(outputs):
        tokens = output.outputs[0].token_ids
        kind = index % 4
        if kind == 0:
            # The move is between these two tokens.
            before, after = tokens[INTERVAL - 1 : INTERVAL + 1]
            stops[index] = {"stop": [f"{before} t{after}"]}
        elif kind == 1:
            at = next(i for i in range(2 * INTERVAL, len(tokens)) if tokens[i] not in tokens[:i])
            stops[index] = {"stop_token_ids": [tokens[at]]}
        elif kind == 2:
            stops[index] = {"ignore_eos": False, "min_tokens": 2 * INTERVAL + 3, "logit_bias": {EOS_TOKEN_ID: 50.0}}
        elif index == 3:
            one, two = tokens[2 * INTERVAL : 2 * INTERVAL + 2]
            stops[index] = {"stop": [f"{one} t{two}"], "include_stop_str_in_output": True}
        elif index in IN_THE_STEP:
            # Before, in and after the very step of a check.
            end = IN_THE_STEP[index]
            stops[index] = {"stop": ["{} t{}".format(*tokens[end - 2 : end])]}
    return stops


def test_moved_sequences_end_as_at_home(bed):
    ranks = bed.run(ends, deadline=180)
    verify(ranks)
    pair = ranks[0][0]
    # All but the one that has ended by then.
    assert len(moved_away(pair, INTERVAL)) == 15
    for index, output in enumerate(pair.hooked.outputs):
        (completion,) = output.outputs
        length = len(completion.token_ids)
        kind = index % 4
        if kind == 0:
            assert (completion.finish_reason, length) == ("stop", INTERVAL + 1)
            assert isinstance(completion.stop_reason, str)
        elif kind == 1:
            assert completion.finish_reason == "stop"
            assert completion.stop_reason == completion.token_ids[-1]
            assert length > 2 * INTERVAL
        elif kind == 2:
            assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
            assert completion.token_ids[-1] == EOS_TOKEN_ID
        elif index == 3:
            assert completion.text.endswith(completion.stop_reason)
            assert length == 2 * INTERVAL + 2
        elif index in IN_THE_STEP:
            assert (completion.finish_reason, length) == ("stop", IN_THE_STEP[index])
        else:
            assert completion.finish_reason == "length"
