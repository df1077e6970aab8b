"""An engine before it takes part: its place among the ranks, whether it is fit, its gears."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.distributed.distributed_c10d import _get_default_store
from vllm.distributed.parallel_state import get_dp_group, get_tp_group
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.utils import get_ip
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.kv_cache_interface import FullAttentionSpec

from seqshift.gears import effective_gears, place_gears

VERSION = "0.9.1"


def set_gears(args: EngineArgs, gears: Sequence[int]) -> None:
    """Puts the gears where the engine will read its graph batch sizes; the user's own objects stay as they are."""
    compilation = args.compilation_config
    placed = place_gears(
        args.additional_config,
        compilation.cudagraph_capture_sizes,
        args.max_num_seqs,
        gears,
        aclgraph=current_platform.device_type == "npu" and not args.enforce_eager,
    )
    args.additional_config = placed.additional_config
    if placed.capture_sizes is not compilation.cudagraph_capture_sizes:
        args.compilation_config = copy.copy(compilation)
        args.compilation_config.cudagraph_capture_sizes = placed.capture_sizes


@dataclass
class GroupFacts:
    """An engine's place among the ranks; members are ranks of torch's default group."""

    version: str
    store: Any
    host: str
    on_npu: bool
    device: int
    """Index of the device that this process uses."""
    member: int
    members: list[int]
    """All ranks of the engine's group: every TP shard of every DP rank."""
    dp_members: list[int]
    tp_members: list[int]
    gears: Sequence[int]
    """Effective graph batch sizes."""
    max_num_seqs: int
    max_model_len: int
    unfit: str | None
    """Why this engine's requests cannot be moved."""

    @property
    def dp_rank(self) -> int:
        return self.dp_members.index(self.member)


def group_facts(engine: LLMEngine, gears: Sequence[int]) -> GroupFacts | None:
    """The facts of an engine's group; None without one (DP = 1, or an engine in another process)."""
    if engine.dp_group is None:
        return None
    dp, tp = get_dp_group(), get_tp_group()
    member = dp.rank
    unfit, device = _unfit(engine), 0
    if unfit is None:
        runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        device = runner.device.index or 0
        gears = effective_gears(runner, gears, engine.vllm_config.scheduler_config.max_num_seqs)
    return GroupFacts(
        version=VERSION,
        store=_get_default_store(),
        host=get_ip(),
        on_npu=current_platform.device_type == "npu",
        device=device,
        member=member,
        members=sorted(one + other - member for one in dp.ranks for other in tp.ranks),
        dp_members=list(dp.ranks),
        tp_members=list(tp.ranks),
        gears=gears,
        max_num_seqs=engine.vllm_config.scheduler_config.max_num_seqs,
        max_model_len=engine.vllm_config.scheduler_config.max_model_len,
        unfit=unfit,
    )


def _unfit(engine: LLMEngine) -> str | None:
    config = engine.vllm_config
    core = getattr(engine.engine_core, "engine_core", None)
    if core is None:
        return "the engine runs in another process; set VLLM_ENABLE_V1_MULTIPROCESSING=0"
    if config.parallel_config.pipeline_parallel_size > 1 or core.batch_queue is not None:
        return "pipeline parallelism is on"
    if config.kv_transfer_config is not None:
        return "kv_transfer_config is set"
    if config.speculative_config is not None:
        return "speculative decoding is on"
    groups = core.scheduler.kv_cache_config.kv_cache_groups
    if len(groups) != 1 or not isinstance(groups[0].kv_cache_spec, FullAttentionSpec):
        return "the model's KV cache is not one group of full attention"
    if not hasattr(getattr(core.model_executor, "driver_worker", None), "worker"):
        return f"workers of {type(core.model_executor).__name__} are in other processes"
    return None
