"""The caller-owned workspace, cut into the tensors that pass between the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

#: Bytes to which every part is aligned.
ALIGNMENT = 256
#: Elements to which the rows of the intermediate are padded.
ROW_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the parts follow from: tokens T, slots S, H, I, splits; dtype of the intermediate; blocked: scales of 128."""

    tokens: int
    slots: int
    hidden: int
    inter: int
    splits: int
    dtype: torch.dtype
    blocked: bool

    def parts(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each part. inter [S, I padded], partial [splits, S, H]; codes and scales only if blocked."""
        padded = -(-self.inter // ROW_MULTIPLE) * ROW_MULTIPLE
        parts = {"inter": ((self.slots, padded), self.dtype),
                 "partial": ((self.splits, self.slots, self.hidden), torch.float32)}
        if self.blocked:
            parts |= {"codes": ((self.tokens, self.hidden), torch.float8_e4m3fn),
                      "scales": ((self.tokens, -(-self.hidden // 128)), torch.float32),
                      "inter_scales": ((self.slots, -(-self.inter // 128)), torch.float32)}
        return parts

    def bytes(self) -> int:
        """Bytes that hold every part at any alignment of the first byte."""
        return ALIGNMENT + sum(_aligned(prod(shape) * dtype.itemsize) for shape, dtype in self.parts().values())


def carve(sizes: Sizes, workspace: Tensor | None, device: torch.device) -> dict[str, Tensor]:
    """The parts by name, uninitialised, inside ``workspace`` (uint8) or in fresh memory when it is None.

    Raises ValueError when ``workspace`` is too small.
    """
    needed = sizes.bytes()
    if workspace is None:
        workspace = torch.empty(needed, dtype=torch.uint8, device=device)
    if workspace.numel() < needed:
        raise ValueError(f"workspace: {workspace.numel()} bytes; needs {needed}")
    return dict(_parts(sizes, workspace))


def _parts(sizes: Sizes, workspace: Tensor) -> Iterator[tuple[str, Tensor]]:
    start = -workspace.data_ptr() % ALIGNMENT
    for name, (shape, dtype) in sizes.parts().items():
        length = prod(shape) * dtype.itemsize
        yield name, workspace[start: start + length].view(dtype).view(shape)
        start += _aligned(length)


def _aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT
