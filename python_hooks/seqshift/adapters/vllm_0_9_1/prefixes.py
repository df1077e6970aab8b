"""Prompt blocks that waiting requests share with others of their engine."""

from __future__ import annotations

from collections import Counter
from typing import Any

from vllm.v1.core.kv_cache_utils import hash_request_tokens
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request


class Prefixes:
    """The prefix cache of one engine as its waiting requests will find it; without one, nothing is shared."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._blocks = scheduler.kv_cache_manager
        self._starts: Counter = Counter()

    def look(self) -> None:
        """Counts the requests with each first block, of those that have not computed it yet: one will, for all.

        What is said of a request afterwards rests on that.
        """
        self._starts.clear()
        if self._blocks.enable_caching:
            size = self._blocks.block_size
            ahead = (r for r in self._scheduler.requests.values() if r.num_computed_tokens < size)
            self._starts.update(hashes[0] for request in ahead if (hashes := self._hashes(request)))

    def shared(self, request: Request) -> bool:
        """Whether blocks of a waiting request are, or will be, computed here once for it and others."""
        if not self._blocks.enable_caching or not (hashes := self._hashes(request)):
            return False
        return self._starts[hashes[0]] > 1 or bool(self._hit(request))

    def held(self, request: Request) -> int:
        """Blocks of a waiting request that running ones hold: it takes no free ones for them.

        vLLM looks nothing up for a request that wants its prompt's log probabilities: all of it is computed.
        """
        if not self._blocks.enable_caching or request.sampling_params.prompt_logprobs is not None:
            return 0
        return sum(block.ref_cnt > 0 for block in self._hit(request))

    def _hashes(self, request: Request) -> list[Any]:
        """One per full block."""
        hashes = self._blocks.req_to_block_hashes[request.request_id]
        if not hashes and request.num_tokens >= self._blocks.block_size:
            # Kept for the scheduler, which would compute the same.
            hashes = hash_request_tokens(self._blocks.caching_hash_fn, self._blocks.block_size, request)
            self._blocks.req_to_block_hashes[request.request_id] = hashes
        return hashes

    def _hit(self, request: Request) -> list[Any]:
        """The cached blocks."""
        return self._blocks.coordinator.find_longest_cache_hit(self._hashes(request), request.num_tokens - 1)[0][0]
