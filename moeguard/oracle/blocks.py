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

    Per rule: ``count`` [n] elements of a block, ``freedom`` [n] its effective degrees of freedom, ``limit`` [n] on mean
    z^2 (infinite for blocks that are too small).
    """

    tile: int
    tile_columns: int
    expert_token: Tensor
    expert_group: Tensor
    experts: Tensor
    count: dict[str, Tensor]
    freedom: dict[str, Tensor]
    limit: dict[str, Tensor]

    @property
    def blocks(self) -> int:
        """Number of blocks of the execution."""
        return max(1, sum(len(value) for value in self.freedom.values()))


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
    plan = BlockPlan(limits.tile, tile_columns, pairs[1], group, experts, {}, {}, {})
    plan.count.update(sums(inside, plan))

    inverse = 1.0 / reference.row_freedom
    in_tile = inverse + (1.0 / min(limits.tile, columns) - 1.0 / columns)
    rows_of_tile = torch.arange(tokens, device=device) // limits.tile
    tile_rows = -(-tokens // limits.tile)
    summed = torch.zeros(tile_rows, dtype=torch.float64, device=device).index_add_(0, rows_of_tile, in_tile)
    height = torch.bincount(rows_of_tile, minlength=tile_rows).double()
    column = _column_freedom(reference)
    repeats = float(tokens / column.mean()) if columns and tokens else 1.0
    expert_rows = torch.bincount(group, minlength=len(experts)).double()
    expert_sum = torch.zeros(len(experts), dtype=torch.float64, device=device).index_add_(0, group, inverse[pairs[1]])
    plan.freedom.update({
        "row": reference.row_freedom,
        "tile": (height.square() / summed / height.clamp(max=repeats)).repeat_interleave(tile_columns),
        "column": column,
        "expert": expert_rows.square() / expert_sum / expert_rows.clamp(max=repeats),
    })
    for rule in RULES:
        bound = torch.from_numpy(limits.blocks(np.asarray(plan.freedom[rule].cpu()), plan.blocks)).to(device).square_()
        plan.limit[rule] = torch.where(plan.count[rule] >= limits.min_block, bound, torch.inf)
    return plan


def _column_freedom(reference: Reference) -> Tensor:
    """Degrees of freedom of each column: its tokens, or with biases the inverse Simpson index of its distinct values.

    Where biases dominate, tokens of one expert have the same answer up to less than a rounding step, and their errors are
    one error. Values closer than S/4 count as equal.
    """
    y, weights = reference.y, reference.problem.weights
    tokens, columns = y.shape
    if tokens < 2 or (weights.down_bias is None and weights.gate_bias is None and weights.up_bias is None):
        return torch.full((columns,), float(tokens), dtype=torch.float64, device=y.device)
    ordered, index = torch.sort(y, dim=0)
    new = torch.zeros_like(index)
    new[1:] = ordered.diff(dim=0) > reference.deviation.gather(0, index)[1:] / 4
    key = new.cumsum(0) * columns + torch.arange(columns, device=y.device)
    members = torch.bincount(key.reshape(-1), minlength=tokens * columns).view(tokens, columns).double()
    return tokens**2 / members.square().sum(0)


def sums(value: Tensor, plan: BlockPlan) -> dict[str, Tensor]:
    """Sums of ``value`` [T, H] over the blocks of each rule."""
    rows = value.sum(1)
    tokens, columns = value.shape
    tile = plan.tile
    padded = torch.nn.functional.pad(value, (0, -columns % tile, 0, -tokens % tile))
    tiles = padded.view(padded.shape[0] // tile, tile, padded.shape[1] // tile, tile).sum((1, 3)).reshape(-1)
    expert = rows.new_zeros(len(plan.experts)).index_add_(0, plan.expert_group, rows[plan.expert_token])
    return {"row": rows, "tile": tiles, "column": value.sum(0), "expert": expert}
