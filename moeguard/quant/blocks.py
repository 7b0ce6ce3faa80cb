"""Scaled FP8: one scale a tensor, one a token, 1x128 row blocks, 128x128 weight blocks; scales of groups along a row.

The 1x128 and 128x128 granularities are those of the DeepSeek-V3 technical report (section 3.3.2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from moeguard.quant.formats import FORMATS, encode, round_to

BLOCK = 128
E4M3_MAX = FORMATS["e4m3"].maximum
#: Smallest scale that is used: below it float32 scales are subnormal and a block counts as zero (scale 1).
SMALLEST_SCALE = 2.0**-126


def row_scales(value: Tensor, block: int = BLOCK) -> Tensor:
    """amax/448 of each 1x``block`` block along the last axis of ``value`` [..., N]; 1 for a zero block. [..., ceil(N/block)]."""
    width = value.shape[-1]
    blocks = -(-width // block)
    padded = torch.nn.functional.pad(value.abs(), (0, blocks * block - width))
    scale = padded.unflatten(-1, (blocks, block)).amax(-1) / E4M3_MAX
    return torch.where(scale >= SMALLEST_SCALE, scale, torch.ones_like(scale))


def dynamic_scales(value: Tensor, rounding: str) -> Tensor:
    """Scales of ``e4m3_1x128`` ([..., N]) or ``e4m3_per_token`` ([..., 1]) for ``value`` [..., N]."""
    if rounding == "e4m3_per_token":
        return row_scales(value, max(value.shape[-1], 1))
    return expand_rows(row_scales(value), value.shape[-1])


def expand_rows(scale: Tensor, width: int) -> Tensor:
    """Repeat row-block scales [..., B] to [..., width]."""
    return scale.repeat_interleave(BLOCK, dim=-1)[..., :width]


def expand_blocks(scale: Tensor, rows: int, columns: int) -> Tensor:
    """Repeat weight-block scales [..., R, C] to [..., rows, columns]."""
    return scale.repeat_interleave(BLOCK, dim=-2)[..., :rows, :].repeat_interleave(BLOCK, dim=-1)[..., :columns]


def expand_groups(scale: Tensor, columns: int) -> Tensor:
    """Repeat the scales of equal groups along a row, [..., G], to [..., columns]; G divides ``columns``."""
    return scale.repeat_interleave(columns // scale.shape[-1], dim=-1)


def power_of_two(scale: Tensor) -> bool:
    """Whether every element of ``scale`` is a power of two: quotients by it are exact, in whichever way they are computed."""
    return bool((torch.frexp(scale)[0] == 0.5).all())


def fake_quantize(value: Tensor, rounding: str, static_scale: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Round ``value`` [..., N] as a recipe's rounding point does and return it dequantised, with its scales.

    rounding: ``none``, ``bf16``, ``fp16``, ``e4m3_per_tensor`` (needs ``static_scale``, one float32), ``e4m3_per_token`` (one
    dynamic scale a row), ``e4m3_1x128``, or a chain joined by ``+``. float64 values round exactly once per point; float32 values
    use torch's casts.
    Returns (values in the dtype of ``value``, scales broadcastable to it or None when the format has none).
    """
    scale: Tensor | None = None
    for part in rounding.split("+"):
        if part == "none":
            continue
        if part in ("bf16", "fp16"):
            value = _through(value, part)
            continue
        if part == "e4m3_per_tensor":
            if static_scale is None:
                raise ValueError("rounding 'e4m3_per_tensor' needs a static scale")
            scale = static_scale.to(value.dtype)
        else:
            scale = dynamic_scales(value, part)
        value = _through(value / scale, "e4m3") * scale
    return value, scale


def _through(value: Tensor, name: str) -> Tensor:
    if value.dtype == torch.float64:
        return round_to(value, name)
    return encode(value, name).to(value.dtype)
