"""A layout: the place of each element, as a formula over its indices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

#: From the indices of every element (one int64 tensor an axis, all of one shape) and the shape to their places.
Formula = Callable[[tuple[Tensor, ...], tuple[int, ...]], Tensor]


@dataclass(frozen=True, slots=True)
class Layout:
    """One rule. name: what a user calls it. source: where the rule is written down. formula: place of each element in the result.

    Elements are bytes of a tensor of ``shape``; a ``bitwise`` layout has one more axis of 8 bits, the lowest first, and places
    count bits. length: places of the result for a shape, more than elements where it is padded; None when there is no padding.
    """

    name: str
    source: str
    formula: Formula
    bitwise: bool = False
    length: Callable[[tuple[int, ...]], int] | None = None

    def axes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes of the indices of an element of a tensor of ``shape`` bytes."""
        return (*shape, 8) if self.bitwise else shape

    def places(self, shape: tuple[int, ...]) -> Tensor:
        """int64 [N]: the place of each of the N elements of a tensor of ``shape`` bytes, in memory order."""
        axes = self.axes(shape)
        grid = torch.meshgrid(*(torch.arange(size) for size in axes), indexing="ij")
        return self.formula(grid, axes).reshape(-1)

    def size(self, shape: tuple[int, ...]) -> int:
        """Places of the result."""
        return prod(self.axes(shape)) if self.length is None else self.length(shape)

    def place(self, data: Tensor) -> Tensor:
        """``data`` (uint8) laid out by the rule: uint8, one axis; padding is zero."""
        shape, shifts = tuple(data.shape), torch.arange(8, device=data.device)
        elements = ((data.reshape(-1, 1) >> shifts) & 1).to(torch.uint8).reshape(-1) if self.bitwise else data.reshape(-1)
        result = torch.zeros(self.size(shape), dtype=torch.uint8, device=data.device)
        result[self.places(shape).to(data.device)] = elements
        return (result.view(-1, 8) << shifts).sum(1).to(torch.uint8) if self.bitwise else result


def flat(indices: tuple[Tensor, ...], sizes: tuple[int, ...]) -> Tensor:
    """Row-major offset of ``indices`` in a tensor of ``sizes``."""
    offset = torch.zeros_like(indices[0])
    for index, size in zip(indices, sizes, strict=True):
        offset = offset * size + index
    return offset
