"""Where the blocks of an engine's KV caches lie, whatever container a vLLM or vllm-ascend line keeps them in.

A layer's cache is a list or tuple of tensors (vllm-ascend: keys and values, MLA's nope and rope, an indexer and its
scale, a mamba layer's states) or one tensor (vLLM's CPU backend). A tensor's first dimension counts blocks; it is the
engine's number of blocks, or a multiple of it where a kernel's blocks are smaller than the scheduler's (hybrid models)
or where each block is a page of several copies (an indexer that is replicated under decode context parallelism). Block
`b` is then the rows from `b * multiple` on. Blocks need not be adjacent: several caches may be views of one buffer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ACL_FORMAT_ND = 2
ACL_FORMAT_FRACTAL_NZ = 29

SubCache = tuple[int, int, int, int, int, str, int]
"""(pointer, blocks, stride, length, extent, dtype, ACL format); in bytes. `extent` is from the pointer to the end of
the tensor's memory."""


def describe(caches: Iterable[Any], blocks: int, nz: bool = False) -> list[list[SubCache]]:
    """Per layer its sub-caches. With `nz`, kernels keep elements within a block in NZ order, whatever the tensors say.

    Raises:
        ValueError: names the layer, the tensor and what is wrong with it.
    """
    if blocks < 1:
        raise ValueError(f"{blocks} KV blocks: the engine must have at least one")
    layers = []
    for layer, cache in enumerate(caches):
        try:
            layers.append([part for tensor in _tensors(cache, blocks) for part in _sub_caches(tensor, blocks, nz)])
        except ValueError as error:
            raise ValueError(f"KV cache of layer {layer}: {error}") from None
    return layers


def keeps_nz(additional_config: dict[str, Any] | None) -> bool:
    """Whether vllm-ascend's `enable_kv_nz` is on: until 0.11 a key of torchair's section, later one of its own."""
    given = additional_config or {}
    return bool(given.get("enable_kv_nz") or (given.get("torchair_graph_config") or {}).get("enable_kv_nz"))


def _tensors(cache: Any, blocks: int) -> list[torch.Tensor]:
    alone = not isinstance(cache, (list, tuple))
    tensors = [cache] if alone else list(cache)
    for tensor in tensors:
        if not hasattr(tensor, "untyped_storage"):
            raise ValueError(f"a {type(tensor).__name__} where a tensor should be")
    if not alone:
        return tensors
    shape = tuple(cache.shape)
    first, second = (len(shape) > i and shape[i] % blocks == 0 for i in (0, 1))
    if first and second and (shape[1] == blocks or shape[0] != blocks):
        raise ValueError(
            f"shape {shape}: either dimension may count the {blocks} blocks; give the engine another number of them"
        )
    # Keys and values stacked.
    return list(cache.unbind(0)) if second and not first else [cache]


def _sub_caches(tensor: torch.Tensor, blocks: int, nz: bool) -> list[SubCache]:
    shape, strides = tuple(tensor.shape), tensor.stride()
    multiple, rest = divmod(shape[0], blocks) if shape else (0, 1)
    if rest or not multiple:
        raise ValueError(f"shape {shape}: the first dimension is no multiple of the {blocks} blocks")
    if not tensor[0].is_contiguous():
        raise ValueError(f"shape {shape}, strides {strides}: the elements of a block are not adjacent")
    size = tensor.element_size()
    length, stride = tensor[0].numel() * size, strides[0] * size
    dtype = str(tensor.dtype).replace("torch.", "")
    form = ACL_FORMAT_FRACTAL_NZ if nz else _format(tensor)
    extent = tensor.untyped_storage().nbytes() - tensor.storage_offset() * size
    start = tensor.data_ptr()
    if stride == length:
        return [(start, blocks, multiple * stride, multiple * length, extent, dtype, form)]
    return [
        (start + row * stride, blocks, multiple * stride, length, extent - row * stride, dtype, form)
        for row in range(multiple)
    ]


def _format(tensor: torch.Tensor) -> int:
    """What torch_npu says of a tensor on an NPU, else ND."""
    if tensor.device.type != "npu":
        return ACL_FORMAT_ND
    import torch_npu

    return torch_npu.get_npu_format(tensor)
