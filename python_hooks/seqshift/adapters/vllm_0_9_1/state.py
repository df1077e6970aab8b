"""The requests of one engine at a step boundary, as the protocol sees them.

Of `EngineState`, the native side calls `counts`, `detail`, `capture`, `reserve`,
`install`, `activate`, `release`, `forget`, `thaw`, `take_sync` and `accept_sync`, in the
order of the protocol, and for copies in the background `watch`, `watched`, `prepare` and `dismiss`. `settle`,
`take_sync`, `accept_sync`, `dismiss` and what follows the exchange of outcomes (`activate`, `release`, `forget`,
`thaw`) are called once more when they raise. What a move must carry, and why in this way:

* A decoding request has KV for all tokens but the last, and the runner's own copy lacks that last token until the
  next step; so a request is movable iff it runs, has output, and `num_computed_tokens == num_tokens - 1`.
* The origin keeps the request in its output processor, so whether a rank has work is asked of the scheduler alone.
* At the destination the runner's input batch is not touched: the next step finds no row and adds the request with
  everything, without a prefill.
"""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass
from typing import Any, Callable

import msgspec
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output.request import StructuredOutputRequest
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from seqshift._native import count_slot
from seqshift.adapters import kv_caches
from seqshift.adapters.vllm_0_9_1.copies import Copies
from seqshift.adapters.vllm_0_9_1.prefixes import Prefixes
from seqshift.adapters.vllm_0_9_1.returns import Away, Foreign, Returns

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SamplingParams).decode


@dataclass
class Reservation:
    """A slot and KV blocks for a request on its way here."""

    request: Request
    manifest: dict
    away: Away | None
    """Set when it comes home."""
    cached: CachedRequestState | None = None
    detokenizer: Any = None


class Rejected(Exception):
    """The destination does not take a request; the text is the reason that the source sees."""


class EngineState(Returns):
    """One engine's requests, and how they leave it and come to it."""

    def __init__(self, engine: LLMEngine, dp_rank: int, count_pinned: Callable[[str], None]) -> None:
        super().__init__(engine, dp_rank)
        core = engine.engine_core.engine_core
        self.blocks = core.scheduler.kv_cache_manager
        self.runner = core.model_executor.driver_worker.worker.model_runner
        self.block_size = self.blocks.block_size
        self.reserved: dict[tuple[int, int], Reservation] = {}
        self._copies = Copies(self.scheduler, self.runner)
        self._prefixes = Prefixes(self.scheduler)
        self._serial = 0
        self._count_pinned = count_pinned
        # Requests whose reason has been counted; a request pinned for good is not examined again.
        self._pinned: weakref.WeakKeyDictionary[Request, str] = weakref.WeakKeyDictionary()
        self._movable_kind: weakref.WeakSet[Request] = weakref.WeakSet()
        self._running: list[Request] = []
        self._waiting: list[Request] = []
        self._captured: dict[tuple[str, int], tuple[int, int]] = {}
        self._batch_changed = False

    # --- What the session asks ---

    def has_work(self) -> bool:
        """Whether the scheduler has anything unfinished; the output processor also holds what is away."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    def settle(self) -> None:
        """After a check: the sampler's metadata, and which kind of forward comes next."""
        if self._batch_changed:
            # The request that ends an empty batch has the runner do it.
            if self.runner.input_batch.num_reqs:
                with torch.inference_mode():
                    self.runner.input_batch.refresh_sampling_metadata()
            self._batch_changed = False
        self._engine().should_execute_dummy_batch = not self.has_work()
        self.listen()

    def producer(self) -> int | None:
        """The stream that computes on the KV caches; None where the host does."""
        if self.runner.device.type != "npu":
            return None
        # The getter waits until torch_npu's queue of host launches is empty, so what was launched is in the stream.
        return torch.npu.current_stream().npu_stream

    def kv_layout(self) -> list[list[kv_caches.SubCache]]:
        """Per layer its sub-caches; raises ValueError for a tensor that is none."""
        nz = kv_caches.keeps_nz(self.runner.vllm_config.additional_config)
        return kv_caches.describe(self.runner.kv_caches, self.blocks.kv_cache_config.num_blocks, nz)

    def slot(self) -> int:
        """This rank's counts as one int32."""
        return count_slot(len(self.scheduler.running), len(self.scheduler.waiting))

    def reduce(self, mine: int) -> list[int]:
        """The engine's own all-reduce of "anyone unfinished?", with every rank's `slot` in it."""
        engine = self._engine()
        slots = torch.zeros(engine.dp_group.size(), dtype=torch.int32)
        slots[self.rank] = mine
        torch.distributed.all_reduce(slots, op=torch.distributed.ReduceOp.MAX, group=engine.dp_group)
        result = slots.tolist()
        if not mine and any(result):
            engine.should_execute_dummy_batch = True
        return result

    def outlook(self) -> tuple[float, int | None]:
        """(KV blocks of an average running sequence, the most tokens that one of them may still generate)"""
        running = self.scheduler.running
        if not running:
            return 0.0, None
        tokens = sum(request.num_computed_tokens for request in running)
        remaining = max(request.max_tokens - request.num_output_tokens for request in running)
        return tokens / self.block_size / len(running), max(0, remaining)

    # --- Step 1 and 2: load and details ---

    def counts(self) -> tuple[int, int, int, int, bool]:
        """(running, waiting, free KV blocks, max_num_seqs, something to return)"""
        scheduler = self.scheduler
        slots = scheduler.max_num_running_reqs
        return len(scheduler.running), len(scheduler.waiting), self._free(), slots, self.has_returns()

    def _free(self) -> int:
        # One block of growth is kept for every running request.
        return max(0, self.blocks.block_pool.get_num_free_blocks() - len(self.scheduler.running))

    def detail(self) -> tuple[list[tuple], list[int], list[int], int]:
        """(running: (key or None, KV blocks, movable), blocks of each waiting request that may move,
        blocks of each that may not, free KV blocks)

        A preempted request counts one block of growth, or it would soon be preempted again.
        """
        self._running = list(self.scheduler.running)
        self._waiting = []
        self._captured.clear()
        waiting, pinned = [], []
        self._prefixes.look()
        for request in self.scheduler.waiting:
            blocks = -(-request.num_tokens // self.block_size) + (request.num_output_tokens > 0)
            if self._may_wait_elsewhere(request):
                self._waiting.append(request)
                waiting.append(blocks)
            else:
                pinned.append(blocks - self._prefixes.held(request))
        running = []
        for request in self._running:
            foreign = self.foreign.get(request.request_id)
            blocks = -(-request.num_computed_tokens // self.block_size)
            running.append((foreign.key if foreign else None, blocks, self._may_move(request)))
        return running, waiting, pinned, self._free()

    def _can_be_carried(self, request: Request) -> bool:
        if request in self._pinned:
            return False
        if request not in self._movable_kind:
            if reason := self._pin_reason(request):
                self._pinned[request] = reason
                self._count_pinned(reason)
                return False
            self._movable_kind.add(request)
        return True

    def _may_move(self, request: Request) -> bool:
        return (
            self._can_be_carried(request)
            and request.status == RequestStatus.RUNNING
            and request.num_output_tokens > 0
            and request.num_computed_tokens == request.num_tokens - 1
        )

    def _may_wait_elsewhere(self, request: Request) -> bool:
        if request.num_computed_tokens > 0 or not self._can_be_carried(request):
            return False
        if request.num_output_tokens > 0:
            # vLLM has taken its KV; where there is room, it is computed again sooner.
            return request.status == RequestStatus.PREEMPTED
        return (
            request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
            and request.request_id not in self.foreign
            # Its first output carries them, and only tokens go home.
            and request.sampling_params.prompt_logprobs is None
            and not self._prefix_is_here(request)
        )

    def _prefix_is_here(self, request: Request) -> bool:
        """Whether a waiting request would find blocks on this rank that it would compute anew elsewhere, or has others
        find its own: an earlier prompt, another sample of its own prompt, or a request that waits as well.
        """
        if not self.blocks.enable_caching:
            return False
        state = self.processor.request_states.get(request.request_id)
        return (state is not None and state.parent_req is not None) or self._prefixes.shared(request)

    def _pin_reason(self, request: Request) -> str | None:
        """Why a request's state cannot be carried, or None."""
        params = request.sampling_params
        if request.use_structured_output:
            return "structured_output"
        if request.lora_request is not None:
            return "lora"
        if request.has_encoder_inputs or self.runner.uses_mrope:
            return "multimodal"
        if params.logits_processors:
            return "logits_processors"
        if request.kv_transfer_params is not None:
            return "kv_transfer_params"
        try:
            _encode(params)
        except TypeError:
            return "sampling_params"
        return None

    # --- Step 3: offer ---

    def capture(self, where: str, index: int) -> tuple[dict, list[int]]:
        """(manifest, KV blocks) of a request; changes nothing."""
        request = self._source(where, index)
        foreign = self.foreign.get(request.request_id)
        if foreign is None:
            self._serial += 1
            key = (self.rank, self._serial)
        else:
            key = foreign.key
        self._captured[where, index] = key
        generator, blocks = None, []
        if where == "running":
            used = -(-request.num_computed_tokens // self.block_size)
            blocks = list(self.blocks.get_block_ids(request.request_id)[0][:used])
        cached = self.runner.requests.get(request.request_id)
        if cached is not None and cached.generator is not None:
            generator = cached.generator.get_state().numpy().tobytes()
        manifest = {
            "key": key,
            "request_id": foreign.request_id if foreign else request.request_id,
            "hops": foreign.hops + 1 if foreign else 1,
            "prompt": request.prompt_token_ids,
            "output": list(request.output_token_ids),
            "sampling_params": foreign.params if foreign else _encode(request.sampling_params),
            "eos_token_id": request.eos_token_id,
            "cache_salt": request.cache_salt,
            "num_computed_tokens": request.num_computed_tokens if where == "running" else 0,
            "num_cached_tokens": request.num_cached_tokens,
            "generator_state": generator,
            "kv_blocks": len(blocks),
        }
        return manifest, blocks

    def _source(self, where: str, index: int) -> Request:
        return (self._running if where == "running" else self._waiting)[index]

    # --- Step 4: reserve ---

    def reserve(self, manifest: dict, ticket: int | None = None) -> list[int]:
        """Reserves a slot and KV blocks; returns the blocks, those held for the ticket first.

        Raises:
            Rejected: says what is missing.
        """
        key = tuple(manifest["key"])
        scheduler = self.scheduler
        away = None
        request_id = f"seqshift/{key[0]}/{key[1]}/{manifest['request_id']}"
        if key[0] == self.rank:
            request_id = manifest["request_id"]
            away = self.away.get(key[1])
            if away is None or self._aborted(away):
                raise Rejected("its origin has aborted it")
            self._flush_finished(request_id)
        if key in self.reserved or request_id in scheduler.requests:
            raise Rejected(f"request id {request_id!r} is in use here")
        request = Request(
            request_id=request_id,
            prompt_token_ids=manifest["prompt"],
            multi_modal_inputs=None,
            multi_modal_hashes=None,
            multi_modal_placeholders=None,
            sampling_params=(params := _decode(manifest["sampling_params"])),
            eos_token_id=manifest["eos_token_id"],
            structured_output_request=StructuredOutputRequest(sampling_params=params),
            cache_salt=manifest["cache_salt"],
        )
        request.num_cached_tokens = manifest["num_cached_tokens"]
        blocks: list[int] = []
        if manifest["output"]:
            if request.num_prompt_tokens + len(manifest["output"]) >= scheduler.max_model_len:
                raise Rejected(f"max_model_len is {scheduler.max_model_len} here")
            request.append_output_token_ids(manifest["output"])
            # Until it has KV.
            request.status = RequestStatus.PREEMPTED
        if computed := manifest["num_computed_tokens"]:
            arriving = sum(1 for r in self.reserved.values() if r.request.num_computed_tokens)
            if len(scheduler.running) + arriving >= scheduler.max_num_running_reqs:
                raise Rejected(f"max_num_seqs is {scheduler.max_num_running_reqs} here")
            if ticket is not None:
                self._copies.claim(ticket, request_id)
            if self.blocks.allocate_slots(request, computed, delay_cache_blocks=True) is None:
                self.blocks.free(request)
                free = self.blocks.block_pool.get_num_free_blocks()
                raise Rejected(f"{manifest['kv_blocks']} KV blocks wanted, {free} free here")
            request.num_computed_tokens = computed
            request.status = RequestStatus.RUNNING
            blocks = list(self.blocks.get_block_ids(request_id)[0])
        self.reserved[key] = Reservation(request, manifest, away)
        return blocks

    def _flush_finished(self, request_id: str) -> None:
        """Does now what the next schedule() would make the runner do for a finished request of this id."""
        if request_id in self.scheduler.finished_req_ids:
            self.scheduler.finished_req_ids.discard(request_id)
            self._drop_from_runner(request_id)

    # --- Before: a copy in the background ---

    def watch(self, where: str, index: int, ticket: int) -> list[int]:
        """Full KV blocks of a request that goes on running."""
        return self._copies.watch(self._source(where, index), ticket)

    def watched(self, ticket: int) -> tuple[int, list[int]] | str:
        """(index of the request in the running list, its full KV blocks), or why it does not run as it did."""
        return self._copies.watched(self._running, ticket)

    def prepare(self, ticket: int, count: int) -> list[int]:
        """Holds KV blocks for a request to come.

        Raises:
            ValueError: there are too few.
        """
        return self._copies.prepare(ticket, count, self._free())

    def dismiss(self, ticket: int) -> None:
        """Forgets a ticket; what is still held is free."""
        self._copies.dismiss(ticket)

    def dismiss_all(self) -> None:
        """The same for every ticket."""
        self._copies.dismiss_all()

    # --- Step 6: commit ---

    def install(self, origin: int, serial: int) -> None:
        """Makes everything that the request needs here, without letting the engine see it."""
        reservation = self.reserved[origin, serial]
        request, manifest = reservation.request, reservation.manifest
        params = request.sampling_params
        if manifest["output"]:
            generator = None
            if (state := manifest["generator_state"]) is not None:
                generator = torch.Generator(device=self.runner.device)
                generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
            own_params = params
            if params.prompt_logprobs is not None:
                # They were computed at the origin; the runner would return uninitialised tensors.
                own_params = params.clone()
                own_params.prompt_logprobs = None
            reservation.cached = CachedRequestState(
                req_id=request.request_id,
                prompt_token_ids=request.prompt_token_ids,
                mm_inputs=[],
                mm_positions=[],
                sampling_params=own_params,
                generator=generator,
                # None of a request without KV: it gets them all when it is resumed.
                block_ids=tuple(list(ids) for ids in self.blocks.get_block_ids(request.request_id)),
                num_computed_tokens=request.num_computed_tokens,
                # The next step appends the last one.
                output_token_ids=list(manifest["output"][:-1]),
            )
        if reservation.away is None and params.stop:
            reservation.detokenizer = self._detokenizer(request, manifest["output"])

    def activate(self, origin: int, serial: int) -> None:
        """Lets the engine see an installed request: it runs from the next step on."""
        reservation = self.reserved[origin, serial]
        request, manifest = reservation.request, reservation.manifest
        self.scheduler.requests[request.request_id] = request
        if reservation.cached is not None:
            self.runner.requests[request.request_id] = reservation.cached
        if request.status == RequestStatus.RUNNING and self.blocks.enable_caching:
            self.blocks.cache_blocks(request, request.num_computed_tokens)
        if reservation.away is not None:
            self.away.pop(serial, None)
        else:
            self.foreign[request.request_id] = Foreign(
                key=(origin, serial),
                request_id=manifest["request_id"],
                hops=manifest["hops"],
                params=manifest["sampling_params"],
                detokenizer=reservation.detokenizer,
            )
        if request.status == RequestStatus.RUNNING:
            self.scheduler.running.append(request)
        elif request.status == RequestStatus.PREEMPTED:
            # Where vLLM puts one.
            self.scheduler.waiting.appendleft(request)
        else:
            self.scheduler.waiting.append(request)
        # Last: until then this may be repeated.
        del self.reserved[origin, serial]

    def release(self, origin: int, serial: int) -> None:
        """Gives a reservation back."""
        request = self.reserved[origin, serial].request
        self.blocks.free(request)
        self.blocks.free_block_hashes(request)
        del self.reserved[origin, serial]

    def forget(self, where: str, index: int, to: int) -> None:
        """Takes a request that runs on rank `to` now out of this engine."""
        request = self._source(where, index)
        _, serial = self._captured[where, index]
        if request.request_id not in self.foreign and serial not in self.away:
            state = self.processor.request_states[request.request_id]
            self.remember_samples(state)
            self.away[serial] = Away(request.request_id, state, request.take_events())
        self._drop(request)
        self.foreign.pop(request.request_id, None)

    def thaw(self, where: str, index: int) -> None:
        """A move failed: capturing has changed nothing, so there is nothing to undo."""

    def _drop(self, request: Request) -> None:
        # Not finish_requests: it leaves the id in finished_req_ids, and a drained rank never hands those on.
        scheduler, request_id = self.scheduler, request.request_id
        queue = scheduler.running if request.status == RequestStatus.RUNNING else scheduler.waiting
        if request in queue:
            queue.remove(request)
        scheduler.requests.pop(request_id, None)
        scheduler._cached_reqs_data.pop(request_id, None)
        scheduler.encoder_cache_manager.free(request)
        getattr(scheduler, "scheduled_req_ids", set()).discard(request_id)
        self.blocks.free(request)
        self.blocks.free_block_hashes(request)
        self._drop_from_runner(request_id)

    def _drop_from_runner(self, request_id: str) -> None:
        runner = self.runner
        runner.requests.pop(request_id, None)
        runner.encoder_cache.pop(request_id, None)
        batch = runner.input_batch
        # The mask of allowed tokens is an inference tensor; few have one, and that mode costs more than the rest.
        masked = batch.allowed_token_ids_mask_cpu_tensor is not None
        with torch.inference_mode() if masked else contextlib.nullcontext():
            row = batch.remove_request(request_id)
            if row is not None:
                batch.condense([row])
                self._batch_changed = True

    # --- Step 7: return ---

    def accept_sync(self, results: list[tuple], aborts: list[tuple[int, int]]) -> None:
        """Queues returned tokens for the output processor, and ends what its origin has aborted."""
        arrived = self.arrived(results)
        for request_id in self.aborted(aborts):
            self._end_foreign(request_id)
        # Last, since nothing may be queued twice.
        self.queue(results, arrived)

    def _end_foreign(self, request_id: str) -> None:
        if (request := self.scheduler.requests.get(request_id)) is not None:
            self._drop(request)
        del self.foreign[request_id]

    def abandon(self) -> None:
        """The group is gone, and with it the way home: nothing of other ranks' requests stays here."""
        for key in list(self.reserved):
            self.release(*key)
        for request_id in list(self.foreign):
            self._end_foreign(request_id)
        self.away.clear()
        self.delivery.clear()
        self.settle()
