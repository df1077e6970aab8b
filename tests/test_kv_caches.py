"""Every container in which vLLM's CPU backend and vllm-ascend 0.9.1 to 0.23.0 keep KV caches is described so that the
bytes of block `b` are those of the rows that belong to it; what cannot be described is an error that says why.
"""

from __future__ import annotations

import ctypes
import re

import pytest
import torch
from seqshift.adapters.kv_caches import describe, keeps_nz

BLOCKS, TOKENS = 6, 4


def filled(*shape: int, dtype: torch.dtype = torch.bfloat16, extra: int = 0) -> torch.Tensor:
    """A tensor in an allocation with `extra` elements before and behind it; every byte of it is random."""
    count = torch.Size(shape).numel()
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, ((count + 2 * extra) * size,), dtype=torch.uint8)
    return raw.view(dtype)[extra : extra + count].view(*shape)


def page_views() -> list[torch.Tensor]:
    """Views of one buffer, whose pages hold a part of each and padding."""
    page, parts = 96, ((0, 32), (32, 48))
    raw = filled(BLOCKS * page, dtype=torch.int8)
    return [raw.as_strided((BLOCKS, length), (page, 1), start) for start, length in parts]


def kernel_block_views() -> list[torch.Tensor]:
    """Three kernel blocks per block, with padding behind each."""
    raw = filled(3 * BLOCKS * 40, dtype=torch.int8)
    return [raw.as_strided((3 * BLOCKS, 32), (40, 1), 0)]


def scale_in_one_storage() -> tuple[torch.Tensor, ...]:
    raw = filled(BLOCKS * (TOKENS * 128 + 2 * TOKENS), dtype=torch.int8)
    cut = BLOCKS * TOKENS * 128
    return raw[:cut].view(BLOCKS, TOKENS, 1, 128), raw[cut:].view(torch.float16).view(BLOCKS, TOKENS, 1, 1)


def keys_and_values(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return filled(BLOCKS, TOKENS, 2, 16, dtype=dtype), filled(BLOCKS, TOKENS, 2, 24, dtype=dtype)


NOPE, ROPE, INDEXER = (BLOCKS, TOKENS, 1, 512), (BLOCKS, TOKENS, 1, 64), (BLOCKS, TOKENS, 1, 128)
# Name: (cache of a layer, tensors in it as (blocks first) rows, rows per block).
CACHES = {
    "stacked, CPU backend": lambda: filled(2, BLOCKS, TOKENS * 32),
    "stacked, of smaller blocks": lambda: filled(2, 2 * BLOCKS, TOKENS * 16),
    "one tensor, CPU backend's MLA": lambda: filled(BLOCKS, TOKENS, 576),
    "list of keys and values, aligned (0.9.1)": lambda: [filled(*NOPE, extra=1 << 10), filled(*NOPE, extra=1 << 10)],
    "MLA: nope and rope": lambda: (filled(*NOPE), filled(*ROPE)),
    "sparse attention: with an indexer": lambda: (filled(*NOPE), filled(*ROPE), filled(*INDEXER)),
    "C8 indexer and scale in one storage": lambda: (filled(*NOPE), filled(*ROPE), *scale_in_one_storage()),
    "one sub-cache": lambda: (filled(*NOPE, dtype=torch.int8),),
    "fa_quant's view": lambda: (filled(BLOCKS, 1, 16, TOKENS, 32, dtype=torch.int8), filled(BLOCKS, 1, 4, TOKENS, 16)),
    "mamba states": lambda: [filled(BLOCKS, 3, 40), filled(BLOCKS, 2, 8, 8, dtype=torch.float32)],
    "views of one buffer": page_views,
    "kernel blocks smaller than blocks": lambda: keys_and_values(torch.float16)[0].view(2 * BLOCKS, TOKENS // 2, 2, 16),
    "kernel blocks with padding": kernel_block_views,
    "replicated indexer": lambda: (filled(*NOPE), filled(8 * BLOCKS, TOKENS, 1, 128, dtype=torch.int8)),
    **{f"keys and values of {str(d)[6:]}": lambda d=d: keys_and_values(d) for d in (
        torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)},
}  # fmt: skip


def rows_of(cache: torch.Tensor | list | tuple, block: int) -> bytes:
    """The bytes of a block, by torch's own indexing."""
    tensors = cache
    if isinstance(cache, torch.Tensor):
        tensors = cache.unbind(0) if cache.shape[0] == 2 else [cache]
    parts = []
    for tensor in tensors:
        multiple = tensor.shape[0] // BLOCKS
        rows = tensor[block * multiple : (block + 1) * multiple].contiguous()
        parts.append(bytes(rows.view(torch.uint8).flatten().tolist()))
    return b"".join(parts)


@pytest.mark.parametrize("name", CACHES)
def test_a_block_is_its_rows(name):
    print(f"seed {torch.initial_seed()}")
    cache = CACHES[name]()
    (layer,) = describe([cache], BLOCKS)
    for block in range(BLOCKS):
        found = b"".join(ctypes.string_at(base + block * stride, length) for base, _, stride, length, *_ in layer)
        assert found == rows_of(cache, block)
    for _, blocks, stride, length, extent, dtype, form in layer:
        assert (blocks, form) == (BLOCKS, 2)
        assert (BLOCKS - 1) * stride + length <= extent
        assert hasattr(torch, dtype)


def test_extent_ends_with_the_storage():
    tensor = filled(*ROPE, extra=256)
    ((sub_cache,),) = describe([[tensor]], BLOCKS)
    storage = tensor.untyped_storage()
    assert sub_cache[0] + sub_cache[4] == storage.data_ptr() + storage.nbytes()


def test_nz_is_what_the_configuration_says():
    ((sub_cache,),) = describe([(filled(*NOPE),)], BLOCKS, nz=True)
    assert sub_cache[-1] == 29
    assert keeps_nz({"torchair_graph_config": {"enabled": True, "enable_kv_nz": True}})
    assert keeps_nz({"enable_kv_nz": True})
    assert not any(map(keeps_nz, (None, {}, {"torchair_graph_config": {"enabled": True}}, {"enable_kv_nz": False})))


@pytest.mark.parametrize(
    ("cache", "blocks", "text"),
    [
        (lambda: [torch.zeros(7, 8)], 6, "layer 1: shape (7, 8): the first dimension is no multiple of the 6 blocks"),
        (lambda: [torch.zeros(3, 8)], 6, "layer 1: shape (3, 8): the first dimension is no multiple of the 6 blocks"),
        (lambda: [torch.zeros(())], 6, "layer 1: shape (): the first dimension is no multiple"),
        (lambda: [torch.zeros(4, 6, 8).transpose(0, 1)], 6, "the elements of a block are not adjacent"),
        (lambda: torch.zeros(2, 2, 8), 2, "shape (2, 2, 8): either dimension may count the 2 blocks; give the engine"),
        (lambda: torch.zeros(12, 6, 8), 6, "layer 1: shape (12, 6, 8): either dimension may count the 6 blocks"),
        (lambda: [torch.zeros(6, 8), None], 6, "layer 1: a NoneType where a tensor should be"),
        (lambda: [[torch.zeros(6, 8)]], 6, "layer 1: a list where a tensor should be"),
        (lambda: [torch.zeros(6, 8)], 0, "0 KV blocks: the engine must have at least one"),
    ],
)
def test_what_cannot_be_described(cache, blocks, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        describe([[torch.zeros(max(blocks, 1), 8)], cache()], blocks)
