"""Routing alignment: slots sorted by expert and cut into blocks of one expert each, without a host synchronisation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Alignment:
    """Slots in expert order and the blocks that cover them.

    order: int64 [S], slots t * K + k sorted by local expert, stable; dropped slots come last. blocks: int32 [3, B] with
    local expert, first position in ``order``, and number of slots (0: the block is not used). B is a bound that depends
    on shapes alone. block_m: slots of a full block.
    """

    order: Tensor
    blocks: Tensor
    block_m: int


def block_bound(slots: int, experts: int, block_m: int) -> int:
    """Most blocks that ``slots`` slots over ``experts`` experts can take: every expert may leave one block unfilled."""
    return slots // block_m + min(slots, experts)


def align(topk_ids: Tensor, first_expert: int, experts: int, block_m: int) -> Alignment:
    """Sort the slots of ``topk_ids`` [T, K] (global ids, T * K >= 1) by expert; ids outside [first, first + experts) drop.

    Runs on the device of ``topk_ids`` and never waits for it.
    """
    ids = topk_ids.reshape(-1)
    mine = (ids >= first_expert) & (ids < first_expert + experts)
    key, order = torch.sort(torch.where(mine, ids - first_expert, experts), stable=True)
    edges = torch.searchsorted(key, torch.arange(experts + 1, dtype=key.dtype, device=ids.device))
    used = (edges.diff() + (block_m - 1)) // block_m
    ends = used.cumsum(0)
    number = torch.arange(block_bound(ids.numel(), experts, block_m), device=ids.device)
    owner = torch.searchsorted(ends, number, right=True)
    expert = owner.clamp(max=experts - 1)
    start = edges[expert] + (number - ends[expert] + used[expert]) * block_m
    count = (edges[expert + 1] - start).clamp(0, block_m).where(owner < experts, 0)
    return Alignment(order, torch.stack([expert, start, count]).to(torch.int32), block_m)
