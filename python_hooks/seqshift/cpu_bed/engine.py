"""What runs inside a rank: vLLM on the CPU with the few changes that make its results comparable, and its engines.

The changes, each for a fault of the CPU test bed, not of the product:

* vLLM 0.9.1 refuses fp32 for its V1 engine, though the CPU backend computes it well; fp32 makes results
  independent of the composition of the batch.
* Matrices of one to three rows take another GEMM kernel, whose rounding differs: `F.linear` pads to four rows.
* IPEX's attention cuts the queries of each prompt into pieces of 32, 64 or 128, by the longest prompt of the batch, and
  the last piece may have one to three rows: it is told that all batches hold a long one. Pieces then begin where KV
  blocks do, so a prefix hit changes nothing either.
* While a grammar is compiled in a thread, its request is not scheduled. A rank that has no other then runs no forward,
  hooked or not, and its peers wait for it in their own: the engine waits for the grammar first.
* The CPU platform replaces `external_launcher` by `mp` when TP > 1.
* The KV cache takes whole GiB of which every page is touched at start: it gets the size that is asked for.
* The attention backend takes any request with its whole prompt computed for one that decodes a single token. A
  preempted request whose cached blocks reach beyond its prompt has several to compute: the decode kernel then reads
  beyond the block table (SIGSEGV, without any hook).
* The destructor of a gloo group can wait for its worker thread while holding the GIL that this thread needs (seen
  when an engine is deleted): the DP groups of engines are kept until the rank exits.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from concurrent.futures import wait
from datetime import timedelta
from pathlib import Path
from typing import Any

from seqshift.cpu_bed.model import DEFAULT, ModelSpec, model_path
from seqshift.cpu_bed.ranks import RankContext

ASCEND_PATH = Path(sys.prefix) / "ascend"
ASCEND_SCHEDULER = "vllm_ascend.core.scheduler.AscendScheduler"
MINIMUM_ROWS = 4
# The least `max_seqlen_q` for which IPEX's attention cuts queries into the largest pieces (flash_attn_varlen in its
# PagedAttentionKrnl.cpp), and where that stands among the arguments.
LONG_QUERY = 768
MAX_SEQLEN_Q = 6
# What the CPU engine ignores and the hooks read.
TORCHAIR = {"torchair_graph_config": {"enabled": True, "graph_batch_sizes": [16]}}

_engines_started = 0
_kv_bytes = 0
_kept_groups: list[Any] = []


def warm() -> None:
    """Imports vLLM with all that an engine imports late, in the process that ranks are forked from."""
    import torch

    torch.set_num_threads(1)
    import intel_extension_for_pytorch  # noqa: F401
    from vllm.model_executor.models import registry

    # A lazily registered model is inspected in a subprocess that imports vLLM once more, to keep CUDA out of the
    # parent; without CUDA it can be inspected here.
    registry._LazyRegisteredModel.inspect_model_cls = lambda self: registry._ModelInfo.from_model_cls(
        self.load_model_cls()
    )
    registry.ModelRegistry.inspect_model_cls(["Qwen2ForCausalLM"])
    patch()


def patch() -> None:
    """Makes the changes named above."""
    import torch
    from intel_extension_for_pytorch.llm.modules import PagedAttention
    from vllm.config import ParallelConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.backends.cpu_attn import TorchSDPAMetadataBuilderV1
    from vllm.v1.structured_output import StructuredOutputManager
    from vllm.v1.worker.cpu_worker import CPUWorker

    oracle = EngineArgs._is_v1_supported_oracle

    @functools.wraps(oracle)
    def accepts_fp32(self: Any, model_config: Any) -> bool:
        dtype = model_config.dtype
        if dtype == torch.float32:
            model_config.dtype = torch.bfloat16
        try:
            return oracle(self, model_config)
        finally:
            model_config.dtype = dtype

    EngineArgs._is_v1_supported_oracle = accepts_fp32

    linear = torch.nn.functional.linear

    @functools.wraps(linear)
    def padded(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if x.dim() != 2 or not 0 < x.shape[0] < MINIMUM_ROWS:
            return linear(x, weight, bias)
        rows = x.new_zeros((MINIMUM_ROWS, x.shape[1]))
        rows[: x.shape[0]] = x
        return linear(rows, weight, bias)[: x.shape[0]]

    torch.nn.functional.linear = padded

    check = CpuPlatform.check_and_update_config.__func__

    @classmethod
    def keeps_launcher(cls: type, vllm_config: Any) -> None:
        backend = vllm_config.parallel_config.distributed_executor_backend
        check(cls, vllm_config)
        if backend == "external_launcher":
            vllm_config.parallel_config.distributed_executor_backend = backend

    CpuPlatform.check_and_update_config = keeps_launcher
    memory = CPUWorker.determine_available_memory
    CPUWorker.determine_available_memory = lambda self: _kv_bytes or memory(self)

    reorder = TorchSDPAMetadataBuilderV1.reorder_batch

    @functools.wraps(reorder)
    def reorders_by_work(self: Any, batch: Any, scheduled: Any) -> bool:
        # A request in its prompt is recognised by its length alone; rows change places meanwhile.
        lengths, computed = batch.num_prompt_tokens, batch.num_computed_tokens_cpu
        kept = {}
        for request_id, row in batch.req_id_to_index.items():
            if scheduled.num_scheduled_tokens[request_id] > 1 and computed[row] >= lengths[row]:
                kept[request_id] = int(lengths[row])
                lengths[row] = computed[row] + 1
        changed = reorder(self, batch, scheduled)
        for request_id, length in kept.items():
            lengths[batch.req_id_to_index[request_id]] = length
        return changed

    TorchSDPAMetadataBuilderV1.reorder_batch = reorders_by_work

    attention = PagedAttention.flash_attn_varlen_func.__func__

    @classmethod
    @functools.wraps(attention)
    def cuts_alike(cls: type, *args: Any) -> None:
        longest = max(args[MAX_SEQLEN_Q], LONG_QUERY)
        attention(cls, *args[:MAX_SEQLEN_Q], longest, *args[MAX_SEQLEN_Q + 1 :])

    PagedAttention.flash_attn_varlen_func = cuts_alike

    grammar_init = StructuredOutputManager.grammar_init

    @functools.wraps(grammar_init)
    def compiled_first(manager: Any, request: Any) -> None:
        grammar_init(manager, request)
        if request.structured_output_request is not None:
            wait([request.structured_output_request._grammar])

    StructuredOutputManager.grammar_init = compiled_first

    init_dp_group = ParallelConfig.stateless_init_dp_group

    @functools.wraps(init_dp_group)
    def keeps_group(self: Any) -> Any:
        _kept_groups.append(init_dp_group(self))
        return _kept_groups[-1]

    ParallelConfig.stateless_init_dp_group = keeps_group


def init_distributed(ctx: RankContext) -> None:
    """Joins the world group, as verl's workers do before they make their engines."""
    import torch

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=ctx.deadline_seconds))


def make_llm(
    ctx: RankContext,
    *,
    model: ModelSpec = DEFAULT,
    max_num_seqs: int = 16,
    max_model_len: int = 1024,
    prefix_caching: bool = True,
    log_stats: bool = False,
    seed: int = 7,
    ascend_scheduler: bool = False,
    additional_config: dict | None = TORCHAIR,
    kv_mib: int = 256,
    **options: Any,
) -> Any:
    """An in-process `LLM` of this rank's DP group, launched externally as verl does; every rank must call it alike.

    `ascend_scheduler` takes vllm_ascend's scheduler; the KV cache gets `kv_mib` per TP shard (a block of the default
    model takes 512 KiB at TP=1, block 0 is never used); `options` go to `LLM` as they are.
    """
    from vllm import LLM

    init_distributed(ctx)
    next_engine(ctx, kv_mib)
    if ascend_scheduler:
        if str(ASCEND_PATH) not in sys.path:
            sys.path.append(str(ASCEND_PATH))
        options = {"scheduler_cls": ASCEND_SCHEDULER, "enable_chunked_prefill": False, **options}
    if additional_config is not None:
        options["additional_config"] = additional_config
    return LLM(
        model_path(model),
        dtype=model.dtype,
        distributed_executor_backend="external_launcher",
        tensor_parallel_size=ctx.tp_size,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        enable_prefix_caching=prefix_caching,
        disable_log_stats=not log_stats,
        seed=seed,
        **options,
    )


def make_plain_llm(ctx: RankContext, model: ModelSpec = DEFAULT, kv_mib: int = 256) -> Any:
    """`LLM` with nothing but a model and its dtype; the DP group comes from the environment."""
    from vllm import LLM

    init_distributed(ctx)
    next_engine(ctx, kv_mib)
    return LLM(model_path(model), dtype=model.dtype)


def next_engine(ctx: RankContext, kv_mib: int) -> None:
    """Gives the next engine its KV size, and a port of its own: the DP group of the one before still holds its port."""
    global _engines_started, _kv_bytes
    if _engines_started >= len(ctx.dp_ports):
        raise RuntimeError(f"a rank may start at most {len(ctx.dp_ports)} engines")
    os.environ["VLLM_DP_MASTER_PORT"] = str(ctx.dp_ports[_engines_started])
    _engines_started += 1
    _kv_bytes = kv_mib << 20


@contextlib.contextmanager
def repaired_rows() -> Iterator[None]:
    """Takes two faults of vLLM 0.9.1's input batch out of unhooked runs.

    `InputBatch.condense` leaves `logit_bias` and the allowed-token mask of a moved row behind, and `add_request`
    writes them only if the new request has its own: without this, two identical runs can differ. `swap_states` gives
    both rows the mask of one. The product repairs the same while its hooks are in, so hooked runs go without it.
    """
    from vllm.v1.worker.gpu_input_batch import InputBatch

    original, swap = InputBatch.add_request, InputBatch.swap_states

    @functools.wraps(original)
    def add_request(self: Any, request: Any, req_index: int | None = None) -> None:
        row = self.num_reqs if req_index is None else req_index
        self.logit_bias[row] = None
        if self.allowed_token_ids_mask_cpu_tensor is not None:
            self.allowed_token_ids_mask_cpu_tensor[row].fill_(False)
        original(self, request, req_index)

    @functools.wraps(swap)
    def swap_states(self: Any, one: int, two: int) -> None:
        masks = self.allowed_token_ids_mask_cpu_tensor
        rows = None if masks is None else masks[[two, one]]
        swap(self, one, two)
        if rows is not None:
            masks[[one, two]] = rows

    InputBatch.add_request, InputBatch.swap_states = add_request, swap_states
    try:
        yield
    finally:
        InputBatch.add_request, InputBatch.swap_states = original, swap
