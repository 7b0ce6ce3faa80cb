"""Slots: the (token, expert) pairs of a batch, grouped by expert, and batched GEMMs over the groups.

No loop over experts: rows are packed into blocks of equal height, each block belongs to one expert, and one batched
product serves many blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from moeguard.oracle.unpacked import unpacked
from moeguard.tensors.operand import Operand

#: Bytes of dequantised weights that one batched product may hold.
CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 2 << 30}
#: What fetching one weight row costs, in rows of a product of the same width (chosen on a 2-core CPU).
_FETCH_ROWS = 12


@dataclass(frozen=True, slots=True)
class Slots:
    """S local slots sorted by expert.

    token, rank int64 [S]: the token and its position j in the top-k. expert int64 [S]: local expert. weight float64 [S].
    block_expert int64 [B]; place int64 [S]: position of a slot among the B * height packed rows.
    """

    tokens: int
    token: Tensor
    rank: Tensor
    expert: Tensor
    weight: Tensor
    block_expert: Tensor
    height: int
    place: Tensor

    @property
    def count(self) -> int:
        """Number of slots S."""
        return int(self.token.shape[0])

    def together(self) -> Tensor:
        """Sum of the weights of all slots with the same token and expert, float64 [S]: their errors are the same error."""
        if not self.count:
            return self.weight
        key = self.token * (int(self.expert.max()) + 1) + self.expert
        return self.weight.new_zeros(int(key.max()) + 1).index_add_(0, key, self.weight)[key]

    def copies(self, together: Tensor) -> Tensor:
        """How often a token has each slot's expert, float64 [S], from what ``together`` returned."""
        return (together / self.weight).abs_().nan_to_num_(1.0, posinf=1.0)

    def leaders(self) -> Tensor | None:
        """For each slot the first slot with the same token and expert, int64 [S]; None when there are no duplicates."""
        key = self.token * (int(self.expert.max()) + 1) + self.expert if self.count else self.token
        _, inverse, counts = torch.unique(key, return_inverse=True, return_counts=True)
        if counts.shape[0] == self.count:
            return None
        slot = torch.arange(self.count, device=key.device)
        first = torch.full_like(counts, self.count).scatter_reduce_(0, inverse, slot, "amin")
        return first[inverse]

    def combine(self, value: Tensor) -> Tensor:
        """Sum slot rows [S, ...] into token rows [T, ...]."""
        return value.new_zeros((self.tokens, *value.shape[1:])).index_add_(0, self.token, value)


def make_slots(ids: Tensor, weights: Tensor, first_expert: int, experts_local: int) -> Slots:
    """Slots of this rank from ids [T, K] and weights [T, K]; ids outside the rank (or invalid) contribute nothing."""
    tokens, top_k = ids.shape
    local = ids.to(torch.int64).reshape(-1) - first_expert
    mine = ((local >= 0) & (local < experts_local)).nonzero()[:, 0]
    expert, order = torch.sort(local[mine], stable=True)
    slot = mine[order]
    counts = torch.bincount(expert, minlength=experts_local)
    height = _height(counts)
    blocks = (counts + height - 1) // height
    block_expert = torch.repeat_interleave(torch.arange(experts_local, device=ids.device), blocks)
    first_row = (blocks.cumsum(0) - blocks) * height
    first_slot = counts.cumsum(0) - counts
    place = first_row[expert] + torch.arange(expert.shape[0], device=ids.device) - first_slot[expert]
    return Slots(tokens, torch.div(slot, max(top_k, 1), rounding_mode="floor"), slot % max(top_k, 1), expert,
                 weights.reshape(-1)[slot].double(), block_expert, height, place)


def _height(counts: Tensor) -> int:
    """Block height with the least estimated cost: padded rows plus weight fetches."""
    used = counts.cpu()
    used = used[used > 0]
    if not used.numel():
        return 1
    heights = [h for h in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if h < int(used.max())] + [int(used.max())]
    return min(heights, key=lambda h: int((((used + h - 1) // h) * (h + _FETCH_ROWS)).sum()))


def grouped_product(rows: Tensor, weight: Operand, slots: Slots, *, transform: str = "value",
                    bias: Operand | None = None) -> Tensor:
    """rows [S, D] or [n, S, D] times each slot's expert matrix [N, D] transposed: float64 [S, N] or [n, S, N].

    transform: ``value``, ``square`` or ``abs`` of the dequantised weights; ``backward`` multiplies rows [S, N] by the matrix
    itself: [S, D]. bias: operand [E_local, N] or None.
    """
    width, depth = weight.shape[2 if transform == "backward" else 1], rows.shape[-1]
    copies, blocks = (rows.shape[0] if rows.dim() == 3 else 1), slots.block_expert.shape[0]
    packed = rows.new_zeros(copies, blocks * slots.height, depth)
    packed[:, slots.place] = rows
    packed = packed.view(copies, blocks, slots.height, depth).transpose(0, 1).reshape(blocks, copies * slots.height, depth)
    result = rows.new_empty(blocks, copies * slots.height, width)
    for chunk, matrix in _matrices(weight, slots, rows.dtype):
        if transform == "square":
            matrix = matrix.square()
        elif transform == "abs":
            matrix = matrix.abs()
        torch.bmm(packed[chunk], matrix if transform == "backward" else matrix.transpose(1, 2), out=result[chunk])
    unpacked_rows = result.view(blocks, copies, slots.height, width).transpose(0, 1).reshape(copies, -1, width)
    out = unpacked_rows[:, slots.place].view(*rows.shape[:-1], width)
    return out if bias is None else out + bias.dequantize(out.dtype)[slots.expert]


def column_energy(weight: Operand, slots: Slots) -> Tensor:
    """Sum over rows of the squared down weights, float64 [E_local, I]; undefined for experts without slots."""
    kept = unpacked(weight)
    if kept is not None:
        return kept.column_energy
    energy = torch.zeros(weight.shape[0], weight.shape[2], dtype=torch.float64, device=weight.data.device)
    for chunk, matrix in _matrices(weight, slots, torch.float64):
        energy[slots.block_expert[chunk]] = matrix.square().sum(1)
    return energy


def row_norms(weight: Operand, slots: Slots) -> Tensor:
    """Norm of each weight row, float64 [E_local, N]; undefined for experts without slots."""
    kept = unpacked(weight)
    if kept is not None:
        return kept.row_norm
    norm = torch.zeros(weight.shape[:2], dtype=torch.float64, device=weight.data.device)
    for chunk, matrix in _matrices(weight, slots, torch.float64):
        norm[slots.block_expert[chunk]] = torch.linalg.vector_norm(matrix, dim=2)
    return norm


def operand_columns(weight: Operand, expert: Tensor, unit: Tensor) -> Tensor:
    """Columns ``unit`` [n] of the dequantised matrices of ``expert`` [n], float64 [n, N]."""
    kept = unpacked(weight)
    if kept is not None:
        return kept.value[expert, :, unit]
    return weight.columns(expert, unit)


def _matrices(weight: Operand, slots: Slots, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """Dequantised expert matrices of successive blocks, at most CHUNK_BYTES at a time."""
    kept = unpacked(weight) if dtype == torch.float64 else None
    each = weight.shape[1] * weight.shape[2] * dtype.itemsize
    step = max(1, CHUNK_BYTES[weight.data.device.type] // max(each, 1))
    for start in range(0, int(slots.block_expert.shape[0]), step):
        chunk = slice(start, start + step)
        experts = slots.block_expert[chunk]
        if kept is not None:
            everyone = torch.arange(kept.value.shape[0], device=experts.device)
            yield chunk, kept.value if torch.equal(experts, everyone) else kept.value[experts]
            continue
        yield chunk, weight.experts(experts).dequantize(dtype)
