"""Both ends of a copy in the background, while the engine goes on: requests that are watched, and blocks that are held.

Full blocks of a running request never change, so they can be read while it runs. What is written to has been taken
out of the pool, under a name that no request has.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.request import Request, RequestStatus


class Copies:
    """By ticket, which the native side gives out."""

    def __init__(self, scheduler: Any, runner: Any) -> None:
        self._scheduler = scheduler
        self._runner = runner
        # _unfit has made sure that there is one.
        (self._manager,) = scheduler.kv_cache_manager.coordinator.single_type_managers
        self._watched: dict[int, tuple[Request, Any]] = {}
        self._held: set[int] = set()

    # --- At the source ---

    def watch(self, request: Request, ticket: int) -> list[int]:
        """Full blocks of a running request, which is remembered together with its blocks' incarnation."""
        # The runner extends these lists; it replaces them when the request comes back from a preemption.
        rows = self._runner.requests[request.request_id].block_ids
        self._watched[ticket] = (request, rows)
        return self._full(request)

    def watched(self, running: list[Request], ticket: int) -> tuple[int, list[int]] | str:
        """(index in `running`, full blocks) of the request, or what has become of it."""
        request, rows = self._watched[ticket]
        if request.status == RequestStatus.FINISHED_ABORTED:
            return "aborted"
        if request.is_finished():
            return "finished"
        cached = self._runner.requests.get(request.request_id)
        if request.status != RequestStatus.RUNNING or cached is None or cached.block_ids is not rows:
            # An abort at its origin takes a request out without another status.
            return "preempted" if request.request_id in self._scheduler.requests else "aborted"
        return running.index(request), self._full(request)

    def _full(self, request: Request) -> list[int]:
        blocks = self._manager.req_to_blocks[request.request_id]
        return [block.block_id for block in blocks[: request.num_computed_tokens // self._manager.block_size]]

    # --- At the destination ---

    def prepare(self, ticket: int, count: int, free: int) -> list[int]:
        """Holds `count` blocks, those held already included; `free` may be given away.

        Raises:
            ValueError: there are too few.
        """
        name = _name(ticket)
        more = count - len(self._manager.req_to_blocks.get(name, ()))
        if more > free:
            raise ValueError(f"{more} KV blocks wanted for a copy in the background, {free} free here")
        self._held.add(ticket)
        self._manager.num_cached_block.setdefault(name, 0)
        self._manager.allocate_new_blocks(name, count * self._manager.block_size)
        return [block.block_id for block in self._manager.req_to_blocks[name]]

    def claim(self, ticket: int, request_id: str) -> None:
        """Held blocks are the request's now."""
        self._held.remove(ticket)
        for table in (self._manager.req_to_blocks, self._manager.num_cached_block):
            table[request_id] = table.pop(_name(ticket))

    # --- At both ---

    def dismiss(self, ticket: int) -> None:
        """Forgets a ticket; what is still held is free."""
        self._watched.pop(ticket, None)
        if ticket in self._held:
            self._manager.free(_name(ticket))
            self._held.remove(ticket)

    def dismiss_all(self) -> None:
        """Forgets all tickets."""
        for ticket in {*self._watched, *self._held}:
            self.dismiss(ticket)


def _name(ticket: int) -> str:
    # No request has it: those of other ranks have three parts, and those of this one belong to the caller.
    return f"\0seqshift/held/{ticket}"
