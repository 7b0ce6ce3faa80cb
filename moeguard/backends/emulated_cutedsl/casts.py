"""Rounding points of the standard emulation, by torch's own casts and with divisions by the scale."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

#: Largest e4m3 value; elements of a dynamic FP8 block; below this scale a block counts as zero, and its scale is one.
E4M3_MAX, BLOCK, SMALLEST = 448.0, 128, 2.0**-126
#: Elements of an MX and of an NVFP4 group; values of e2m1.
MX, NVFP4 = 32, 16
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}


def requantise(value: Tensor, rounding: str, static: Tensor | None) -> Tensor:
    """Float32 ``value`` [n, N] after a chain of rounding points, dequantised.

    static: float32 [1], the scale of ``e4m3_per_tensor``, or the global scale of ``nvfp4``. Raises ValueError for a rounding
    point that is not known.
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
        elif point == "mxfp8":
            blocks = value.unflatten(1, (-1, MX))
            fraction, exponent = torch.frexp(blocks.abs().amax(2, keepdim=True))
            power = exponent - 9 + (fraction > 0.875).int()  # 448 is 0.875 * 2**9
            scale = torch.ldexp(torch.ones_like(fraction), power).clamp_min(SMALLEST)
            value = (_e4m3(blocks / scale) * scale).flatten(1)
        elif point == "nvfp4":
            assert static is not None
            blocks = value.unflatten(1, (-1, NVFP4))
            scale = _e4m3(blocks.abs().amax(2, keepdim=True) / E2M1[-1] / static) * static
            value = torch.where(scale > 0, _e2m1(blocks / scale) * scale, 0.0).flatten(1)
        else:
            raise ValueError(f"unknown rounding point {point!r}")
    return value


def _dynamic(largest: Tensor) -> Tensor:
    scale = largest / E4M3_MAX
    return torch.where(scale >= SMALLEST, scale, 1.0)


def _e4m3(value: Tensor) -> Tensor:
    return value.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float()


def _e2m1(value: Tensor) -> Tensor:
    """Nearest of E2M1, with the sign of ``value``; a tie goes to the even place in that list, and 6 is the largest."""
    size = value.abs()
    place = torch.zeros_like(size, dtype=torch.int64)
    for number, (low, high) in enumerate(pairwise(E2M1)):
        edge = (low + high) / 2
        place += size > edge if number % 2 == 0 else size >= edge
    return torch.tensor(E2M1, device=value.device)[place] * value.sign()
