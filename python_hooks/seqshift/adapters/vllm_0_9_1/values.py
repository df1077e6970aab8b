"""vLLM's objects as plain values, and back: tokens with their log probabilities, and the places of KV tensors."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.outputs import LogprobsLists


def items_of(output: EngineCoreOutput) -> tuple:
    """A token's output as plain values: (token ids, logprob rows, finish, num_cached_tokens)."""
    rows = None
    if output.new_logprobs is not None:
        ids, values, ranks = output.new_logprobs
        rows = list(zip(ids, values, ranks))
    finish = None
    if output.finish_reason is not None:
        finish = (output.finish_reason.name, output.stop_reason)
    return list(output.new_token_ids), rows, finish, output.num_cached_tokens


def output_of(request_id: str, items: tuple) -> EngineCoreOutput:
    """The inverse of `items_of`, under the id that the request has at its origin."""
    token_ids, rows, finish, num_cached_tokens = items
    logprobs = None
    if rows is not None:
        ids, values, ranks = zip(*rows) if rows else ((), (), ())
        logprobs = LogprobsLists(list(ids), list(values), list(ranks))
    reason, stop_reason = (FinishReason[finish[0]], finish[1]) if finish else (None, None)
    return EngineCoreOutput(
        request_id=request_id,
        new_token_ids=token_ids,
        new_logprobs=logprobs,
        finish_reason=reason,
        stop_reason=stop_reason,
        num_cached_tokens=num_cached_tokens,
    )


def split(cache: Any, blocks: int) -> list[torch.Tensor]:
    """The sub-caches of one layer: a list as it is, a stacked tensor [n, blocks, ...] by its first dimension."""
    if isinstance(cache, (list, tuple)):
        return list(cache)
    if cache.dim() > 1 and cache.shape[0] != blocks and cache.shape[1] == blocks:
        return list(cache.unbind(0))
    return [cache]


def sub_cache(tensor: torch.Tensor, blocks: int) -> tuple:
    if tensor.shape[0] != blocks:
        raise ValueError(f"KV cache of shape {tuple(tensor.shape)}: its first dimension is not the {blocks} blocks")
    block = tensor[0]
    if not block.is_contiguous():
        raise ValueError(f"KV cache of shape {tuple(tensor.shape)}, strides {tensor.stride()}: blocks not contiguous")
    size = tensor.element_size()
    start = tensor.storage_offset() * size
    extent = tensor.untyped_storage().nbytes() - start
    dtype = str(tensor.dtype).replace("torch.", "")
    return tensor.data_ptr(), blocks, tensor.stride(0) * size, block.numel() * size, extent, dtype, _format(tensor)


def _format(tensor: torch.Tensor) -> int:
    """The ACL format: on an NPU what torch_npu says of the tensor, else ND."""
    if tensor.device.type != "npu":
        return 2
    import torch_npu

    return torch_npu.get_npu_format(tensor)
