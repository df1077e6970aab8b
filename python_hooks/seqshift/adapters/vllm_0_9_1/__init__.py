"""vLLM 0.9.1 (V1 engine, in process) and vllm-ascend 0.9.1.

`group` finds an engine's place among the ranks, `state` is its requests as the protocol sees them, `returns` what goes
home to their origins, `values` turns vLLM's objects into plain values and back, `rows` repairs the input batch.
"""

from __future__ import annotations

from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.llm import LLM
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.worker.gpu_input_batch import InputBatch

from seqshift.adapters.vllm_0_9_1.group import GroupFacts, group_facts, set_gears
from seqshift.adapters.vllm_0_9_1.rows import clear_stale_row, swap_masks
from seqshift.adapters.vllm_0_9_1.state import EngineState

__all__ = [
    "LLM",
    "EngineArgs",
    "EngineState",
    "GroupFacts",
    "InputBatch",
    "LLMEngine",
    "clear_stale_row",
    "group_facts",
    "set_gears",
    "swap_masks",
]
