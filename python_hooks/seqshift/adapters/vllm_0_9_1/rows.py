"""Two faults of vLLM 0.9.1's input batch, repaired while the hooks are in: moves change rows, and so bring them out."""

from __future__ import annotations

from typing import Callable

import torch
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch


def clear_stale_row(batch: InputBatch, request: CachedRequestState, req_index: int | None = None) -> None:
    """Clears what `InputBatch.condense` leaves behind in a row that a request is about to take.

    vLLM 0.9.1 copies `logit_bias` and the allowed-token mask to the new row and leaves the old one as it was;
    `add_request` writes only what a request has, so that the next one inherits another's. Moves change rows.
    """
    row = batch.num_reqs if req_index is None else req_index
    batch.logit_bias[row] = None
    if batch.allowed_token_ids_mask_cpu_tensor is not None:
        batch.allowed_token_ids_mask_cpu_tensor[row].fill_(False)


def swap_masks(swap_states: Callable, batch: InputBatch, first: int, second: int) -> None:
    """Swaps two rows with their allowed-token masks.

    vLLM 0.9.1 swaps the masks as views of one tensor, so that both rows end with the second's: the request that
    was in the first is then sampled from the other's tokens, or, if that has no mask, from all.
    """
    masks = batch.allowed_token_ids_mask_cpu_tensor
    kept = None if masks is None else masks[first].clone()
    swap_states(batch, first, second)
    if kept is not None:
        with torch.inference_mode():
            masks[second] = kept
