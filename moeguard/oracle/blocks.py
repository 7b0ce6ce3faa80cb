"""Block statistics of the normalised error: rows, columns, tiles and experts, each with its limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from moeguard.oracle.limits import Limits
from moeguard.oracle.reference import Reference

RULES = ("row", "tile", "column", "expert")


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Sizes and limits of all blocks of one reference, computed once a scenario.

    Per rule: ``count`` [n] elements of a block, ``limit`` [n] on mean z^2 (infinite for blocks that are too small).
    """

    tile: int
    tile_columns: int
    expert_token: Tensor
    expert_group: Tensor
    experts: Tensor
    count: dict[str, Tensor]
    limit: dict[str, Tensor]


def plan_blocks(reference: Reference, limits: Limits) -> BlockPlan:
    """Blocks of ``reference`` [T, H]; ragged edge tiles count with their real size."""
    tokens, columns = reference.y.shape
    device = reference.y.device
    inside = torch.ones(tokens, columns, dtype=torch.float64, device=device)
    if reference.defined is not None:
        inside = reference.defined.double()
    if reference.valid is not None:
        inside = inside * reference.valid[:, None]
    pairs = torch.unique(torch.stack([reference.slots.expert, reference.slots.token]), dim=1)
    experts, group = torch.unique(pairs[0], return_inverse=True)
    tile_columns = -(-columns // limits.tile)
    plan = BlockPlan(limits.tile, tile_columns, pairs[1], group, experts, {}, {})
    plan.count.update(sums(inside, plan))

    inverse = 1.0 / reference.row_freedom
    in_tile = inverse + (1.0 / min(limits.tile, columns) - 1.0 / columns)
    rows_of_tile = torch.arange(tokens, device=device) // limits.tile
    tile_rows = -(-tokens // limits.tile)
    summed = torch.zeros(tile_rows, dtype=torch.float64, device=device).index_add_(0, rows_of_tile, in_tile)
    height = torch.bincount(rows_of_tile, minlength=tile_rows).double()
    expert_rows = torch.bincount(group, minlength=len(experts)).double()
    expert_sum = torch.zeros(len(experts), dtype=torch.float64, device=device).index_add_(0, group, inverse[pairs[1]])
    freedom = {
        "row": reference.row_freedom,
        "tile": (height.square() / summed).repeat_interleave(tile_columns),
        "column": torch.full((columns,), float(tokens), dtype=torch.float64, device=device),
        "expert": expert_rows.square() / expert_sum,
    }
    total = sum(len(value) for value in freedom.values())
    for rule in RULES:
        bound = torch.from_numpy(limits.blocks(np.asarray(freedom[rule].cpu()), total)).to(device).square_()
        plan.limit[rule] = torch.where(plan.count[rule] >= limits.min_block, bound, torch.inf)
    return plan


def sums(value: Tensor, plan: BlockPlan) -> dict[str, Tensor]:
    """Sums of ``value`` [T, H] over the blocks of each rule."""
    rows = value.sum(1)
    tokens, columns = value.shape
    tile = plan.tile
    padded = torch.nn.functional.pad(value, (0, -columns % tile, 0, -tokens % tile))
    tiles = padded.view(padded.shape[0] // tile, tile, padded.shape[1] // tile, tile).sum((1, 3)).reshape(-1)
    expert = rows.new_zeros(len(plan.experts)).index_add_(0, plan.expert_group, rows[plan.expert_token])
    return {"row": rows, "tile": tiles, "column": value.sum(0), "expert": expert}
