"""Rounding points of the standard emulation, by torch's own casts and with divisions by the scale."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

#: Largest e4m3 value; elements of a dynamic FP8 block; below this scale a block counts as zero, and its scale is one.
E4M3_MAX, BLOCK, SMALLEST = 448.0, 128, 2.0**-126
NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}


def requantise(value: Tensor, rounding: str, static: Tensor | None) -> Tensor:
    """Float32 ``value`` [n, N] after a chain of rounding points, dequantised.

    static: float32 [1], the scale of ``e4m3_per_tensor``. Raises ValueError for a rounding point that is not known.
    """
    for point in rounding.split("+"):
        if point == "none":
            continue
        if point in NARROW:
            value = value.to(NARROW[point]).float()
        elif point == "e4m3_per_tensor":
            assert static is not None
            value = _e4m3(value / static) * static
        elif point == "e4m3_per_token":
            scale = _dynamic(value.abs().amax(1, keepdim=True))
            value = _e4m3(value / scale) * scale
        elif point == "e4m3_1x128":
            blocks = functional.pad(value, (0, -value.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
            scale = _dynamic(blocks.abs().amax(2, keepdim=True))
            value = (_e4m3(blocks / scale) * scale).flatten(1)[:, :value.shape[1]]
        else:
            raise ValueError(f"unknown rounding point {point!r}")
    return value


def _dynamic(largest: Tensor) -> Tensor:
    scale = largest / E4M3_MAX
    return torch.where(scale >= SMALLEST, scale, 1.0)


def _e4m3(value: Tensor) -> Tensor:
    return value.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float()
