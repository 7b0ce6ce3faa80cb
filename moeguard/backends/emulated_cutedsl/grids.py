"""Rounding points of the batched emulation: numbers put on a format's grid by arithmetic, scales applied by their reciprocal."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Grid:
    """mantissa: stored bits. least: exponent of the smallest normal number. largest: beyond it, values saturate or overflow."""

    mantissa: int
    least: int
    largest: float
    saturates: bool = True

    def nearest(self, value: Tensor) -> Tensor:
        """Float32 ``value`` on the grid, ties to even; NaN stays NaN."""
        exponent = torch.frexp(value)[1] - 1
        step = exponent.clamp_min(self.least) - self.mantissa
        on_grid = torch.ldexp(torch.round(torch.ldexp(value, -step)), step)
        if self.saturates:
            return on_grid.clamp(-self.largest, self.largest)
        return torch.where(on_grid.abs() > self.largest, torch.copysign(torch.full_like(value, torch.inf), value), on_grid)


#: "FP8 Formats for Deep Learning" (arXiv:2209.05433); OCP Microscaling Formats v1.0; IEEE 754-2019 binary16; bf16 has the
#: exponents of float32.
E4M3, E2M1 = Grid(3, -6, 448.0), Grid(1, 0, 6.0)
NARROW = {"bf16": Grid(7, -126, 3.3895313892515355e38, saturates=False), "fp16": Grid(10, -14, 65504.0, saturates=False)}


def on_grid(value: Tensor, rounding: str, static: Tensor | None) -> Tensor:
    """Float32 ``value`` [n, N] after a chain of rounding points, as real numbers.

    static: float32 [1], the scale of ``e4m3_per_tensor``, or the global scale of ``nvfp4``. Raises ValueError for a rounding
    point that is not known.
    """
    for point in rounding.split("+"):
        if point in NARROW:
            value = NARROW[point].nearest(value)
        elif point == "e4m3_per_tensor":
            assert static is not None
            value = E4M3.nearest(value * static.reciprocal()) * static
        elif point in ("e4m3_per_token", "e4m3_1x128"):
            value = _by_blocks(value, 128 if point == "e4m3_1x128" else value.shape[1])
        elif point == "mxfp8":
            value = torch.cat([_power_of_two(part) for part in value.split(32, 1)], 1)
        elif point == "nvfp4":
            assert static is not None
            value = torch.cat([_two_levels(part, static) for part in value.split(16, 1)], 1)
        elif point != "none":
            raise ValueError(f"unknown rounding point {point!r}")
    return value


def _by_blocks(value: Tensor, width: int) -> Tensor:
    """e4m3 with one dynamic scale for each ``width`` columns of a row."""
    parts = []
    for part in value.split(width, 1):
        largest = part.abs().amax(1, keepdim=True)
        empty = largest < E4M3.largest * 2.0**-126
        scale = torch.where(empty, 1.0, largest / E4M3.largest)
        parts.append(E4M3.nearest(part * torch.where(empty, 1.0, E4M3.largest / largest)) * scale)
    return torch.cat(parts, 1)


def _power_of_two(part: Tensor) -> Tensor:
    """e4m3 with one e8m0 scale a row: amax / 448 rounded up to a power of two, in the bits of float32."""
    word = (part.abs().amax(1, keepdim=True) / E4M3.largest).view(torch.int32)
    scale = (((word + 0x7FFFFF) >> 23).clamp(1, 254) << 23).view(torch.float32)
    return E4M3.nearest(part * scale.reciprocal()) * scale


def _two_levels(part: Tensor, static: Tensor) -> Tensor:
    """e2m1 with one e4m3 scale a row, in units of ``static``; a scale of zero makes zeros."""
    scale = E4M3.nearest(part.abs().amax(1, keepdim=True) * (1 / E2M1.largest) * static.reciprocal()) * static
    return E2M1.nearest(part * torch.where(scale > 0, scale.reciprocal(), 0.0)) * scale
