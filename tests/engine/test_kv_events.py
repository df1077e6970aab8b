"""KV cache events (`kv_events_config`): on every rank they tell what its prefix cache holds, blocks of requests that
came from elsewhere included; nothing is told that an unhooked group would not tell.
"""

from __future__ import annotations

from collections import Counter

from bed import rollout, workload
from bed.verify import verify
from seqshift.cpu_bed.engine import make_llm

OFTEN = {"check_interval": 5}
BLOCK_SIZE = 128


def replayed(events):
    """(copies of each block hash after these events, tokens of every block stored, how many were evicted)"""
    cached, tokens, evicted = Counter(), set(), 0
    for event in events:
        kind = type(event).__name__
        if kind == "AllBlocksCleared":
            cached.clear()
        elif kind == "BlockRemoved":
            cached.subtract(event.block_hashes)
            evicted += len(event.block_hashes)
        else:
            cached.update(event.block_hashes)
            assert event.block_size == BLOCK_SIZE
            assert len(event.token_ids) == len(event.block_hashes) * BLOCK_SIZE
            tokens |= {
                tuple(event.token_ids[first : first + BLOCK_SIZE])
                for first in range(0, len(event.token_ids), BLOCK_SIZE)
            }
    return +cached, tokens, evicted


def telling(ctx):
    """Rollouts without and with hooks in a KV cache so small that blocks are evicted, and what was told of them."""
    from vllm.config import KVEventsConfig

    # vLLM 0.9.1's own "null" publisher does not take its configuration.
    events = KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint="inproc://events")
    # 64 blocks.
    llm = make_llm(ctx, kv_events_config=events, kv_mib=32)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    works = [workload.busy(ctx.dp_rank), workload.shared(ctx.dp_rank), workload.several(ctx.dp_rank)]
    works += [workload.given(ctx.dp_rank, [[70] * 8, [60] * 8], prompts=length) for length in (200, 210, 220)]
    runs, found = [], []
    for hooked in (False, True):
        assert pool.reset_prefix_cache()
        scheduler.kv_cache_manager.take_events()
        told: list = []
        scheduler.kv_event_publisher.publish = lambda batch, told=told: told.extend(batch.events)
        runs.append(rollout.run_rollouts(ctx, llm, works, hooked=hooked, config=OFTEN, plan="shuffle", fresh=False))
        llm.request_counter.reset()
        # What no later step has published.
        told += scheduler.kv_cache_manager.take_events()
        cached, tokens, evicted = replayed(told)
        held = Counter({key.get_hash_value(): len(blocks) for key, blocks in pool.cached_block_hash_to_block.items()})
        found.append((cached == +held, tokens, evicted))
    pairs = [rollout.Pair(rollout.Case("events"), *pair) for pair in zip(*runs)]
    return pairs, found


def test_they_tell_what_is_cached(bed):
    ranks = bed.run(telling, deadline=180)
    verify([pairs for pairs, _ in ranks])
    assert sum(pair.hooked.stats["sequences_moved"] for pairs, _ in ranks for pair in pairs) >= 50
    for _, found in ranks:
        assert [right for right, _, _ in found] == [True, True]
        assert all(evicted > 0 for _, _, evicted in found)
    plain, hooked = (set().union(*(found[run][1] for _, found in ranks)) for run in (0, 1))
    assert hooked == plain
