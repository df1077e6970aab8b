"""What goes home: the requests of other ranks that run here, this rank's own that are away, and the tokens between.

The origin keeps the request's `RequestState` in its output processor: ids, duplicate checks, aborts, the n>1 parent and
the counts stay as they are without us, and returned tokens go through it like any others. At the rank that runs a
foreign request nothing of it enters the output processor.
"""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass, field
from typing import Any

from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.metrics.stats import IterationStats
from vllm.v1.request import Request

from seqshift.adapters.vllm_0_9_1.values import items_of, output_of


@dataclass
class Away:
    """A request of this rank that runs elsewhere."""

    request_id: str
    state: Any
    """Its RequestState; another one under the same id means that this one was aborted."""
    events: list | None = None
    """What has not reached the metrics yet, of a request that moved before its prefill."""


@dataclass
class Foreign:
    """A request of another rank that runs here."""

    key: tuple[int, int]
    request_id: str
    """Its id at the origin."""
    hops: int
    params: bytes
    """The sampling parameters as the origin encoded them."""
    detokenizer: Any
    """Set when it has stop strings."""
    outputs: list[tuple] = field(default_factory=list)
    done: bool = False


class Returns:
    """The outputs of one engine that belong to another rank, and those of another rank that belong here."""

    def __init__(self, engine: LLMEngine, dp_rank: int) -> None:
        self._engine = weakref.ref(engine)
        self.rank = dp_rank
        self.scheduler = engine.engine_core.engine_core.scheduler
        self.processor = engine.output_processor
        self.away: dict[int, Away] = {}
        self.foreign: dict[str, Foreign] = {}
        # Outputs for the output processor, and the RequestState that each is for.
        self.delivery: list[tuple[Any, EngineCoreOutput]] = []
        # Of a parent of which a sample has left: its samples by index.
        self._samples: dict[str, dict[int, Request]] = {}

    def listen(self, on: bool | None = None) -> None:
        """Puts `_process_outputs` before this engine's output processor while it has something to do (None), or not.

        On the instance, since a step that moves nothing should not pay for it, and foreign requests and results come
        and go in checks only.
        """
        if self._samples:
            # Without those that were aborted.
            parents, states = self.processor.parent_requests, self.processor.request_states
            living = [
                i for i in self._samples if i in parents and not states.keys().isdisjoint(parents[i].child_requests)
            ]
            self._samples = {i: self._samples[i] for i in living}
        if on if on is not None else (self.foreign or self.delivery or self._samples):
            self.processor.process_outputs = self._process_outputs
        else:
            self.processor.__dict__.pop("process_outputs", None)

    def _process_outputs(self, outputs: list[EngineCoreOutput], *args: Any, **kwargs: Any) -> Any:
        stopped = self.divert(outputs)
        outputs = [*self._delivered(), *outputs]
        result = type(self.processor).process_outputs(self.processor, outputs, *args, **kwargs)
        result.reqs_to_abort.extend(stopped)
        if self._samples:
            for output in result.request_outputs:
                if output.finished and (samples := self._samples.pop(output.request_id, None)):
                    last = max(output.outputs, key=lambda one: (len(one.token_ids), one.index)).index
                    if last in samples:
                        output.num_cached_tokens = max(0, samples[last].num_cached_tokens)
        return result

    def remember_samples(self, state: Any) -> None:
        """A sample of a parent is about to leave.

        vLLM says of a parent's output how much of the prompt was cached for that sample which ends last: the longest,
        of equals the one that was added last. Samples that run elsewhere come back in another order.
        """
        parent = state.parent_req
        if parent is None or parent.sampling_params.output_kind != RequestOutputKind.FINAL_ONLY:
            return
        if parent.request_id not in self._samples:
            requests = {i: self.scheduler.requests.get(i) for i in parent.child_requests}
            states = self.processor.request_states
            self._samples[parent.request_id] = {states[i].request_index: r for i, r in requests.items() if r}

    def queued(self) -> int:
        """How many requests have results that are not delivered."""
        return len({output.request_id for _, output in self.delivery})

    def _delivered(self) -> list[EngineCoreOutput]:
        """Takes what is queued, without what was for requests that have been aborted since."""
        queued, self.delivery = self.delivery, []
        states = self.processor.request_states
        return [output for state, output in queued if states.get(output.request_id) is state]

    def _aborted(self, away: Away) -> bool:
        return self.processor.request_states.get(away.request_id) is not away.state

    def has_returns(self) -> bool:
        """Whether there is anything for `take_sync`."""
        return any(f.outputs or f.done for f in self.foreign.values()) or any(map(self._aborted, self.away.values()))

    def take_sync(self) -> tuple[list[tuple], list[tuple[int, int]]]:
        """(results of foreign requests, aborts of own requests that are away)"""
        results = [(f.key, f.outputs, f.done) for f in self.foreign.values() if f.outputs or f.done]
        aborted = [serial for serial, away in self.away.items() if self._aborted(away)]
        for request_id, foreign in list(self.foreign.items()):
            foreign.outputs = []
            if foreign.done:
                del self.foreign[request_id]
        for serial in aborted:
            del self.away[serial]
        return results, [(self.rank, serial) for serial in aborted]

    def arrived(self, results: list[tuple]) -> list[tuple[Away, list[EngineCoreOutput]]]:
        """Returned tokens as the engine's own outputs; of requests that still want them."""
        arrived = []
        for (_, serial), items, _ in results:
            away = self.away.get(serial)
            if away is not None and items and not self._aborted(away):
                arrived.append((away, [output_of(away.request_id, one) for one in items]))
        return arrived

    def queue(self, results: list[tuple], arrived: list[tuple[Away, list[EngineCoreOutput]]]) -> None:
        """Queues returned tokens for the output processor, and forgets what is done."""
        for away, outputs in arrived:
            if away.events:
                # The metrics count its waiting time until now; the other rank's clock is another one.
                scheduled = EngineCoreEvent.new_event(EngineCoreEventType.SCHEDULED)
                outputs[0].events, away.events = [*away.events, scheduled], None
            self.delivery += [(away.state, output) for output in outputs]
        for (_, serial), _, done in results:
            if done:
                self.away.pop(serial, None)

    def aborted(self, keys: list[tuple[int, int]]) -> list[str]:
        """The foreign requests that their origin has aborted, by their ids here."""
        gone = set(map(tuple, keys))
        return [request_id for request_id, foreign in self.foreign.items() if foreign.key in gone]

    def divert(self, outputs: list[EngineCoreOutput]) -> list[str]:
        """Keeps the outputs of foreign requests for their origin; returns those that a stop string has ended."""
        stopped = []
        for output in outputs:
            foreign = self.foreign.get(output.request_id)
            if foreign is None:
                continue
            reason = output.finish_reason
            foreign.outputs.append(items_of(output))
            foreign.done = reason is not None
            if foreign.detokenizer is not None:
                found = foreign.detokenizer.update(output.new_token_ids, reason == FinishReason.STOP)
                if found and not foreign.done:
                    # The origin finds the stop string itself and names it.
                    foreign.done = True
                    stopped.append(output.request_id)
        return stopped

    def deliver(self) -> list[Any]:
        """Feeds queued results to the output processor outside of a normal step; returns its RequestOutputs."""
        engine = self._engine()
        stats = IterationStats() if engine.log_stats else None
        # Taken last: whoever finds them still queued may call again.
        processed = self.processor.process_outputs(self._delivered(), time.monotonic(), stats)
        if engine.stat_logger is not None:
            engine.stat_logger.record(scheduler_stats=self.scheduler.make_stats(), iteration_stats=stats)
        return processed.request_outputs

    def _detokenizer(self, request: Request, output: list[int]) -> Any:
        """A detokenizer that has seen `output`, to notice a stop string here."""
        like = EngineCoreRequest(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            mm_inputs=None,
            mm_hashes=None,
            mm_placeholders=None,
            sampling_params=request.sampling_params,
            eos_token_id=request.eos_token_id,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        tokenizer = self.processor.tokenizer.get_lora_tokenizer(None)
        detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, like)
        stop, detokenizer.stop = detokenizer.stop, []
        detokenizer.update(output, False)
        detokenizer.stop = stop
        return detokenizer
