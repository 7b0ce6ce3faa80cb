"""Scaled FP8: one scale a tensor, 1x128 row blocks, 128x128 weight blocks.

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


def row_scales(value: Tensor) -> Tensor:
    """amax/448 of each 1x128 block along the last axis of ``value`` [..., N]; 1 for a zero block. [..., ceil(N/128)]."""
    width = value.shape[-1]
    blocks = -(-width // BLOCK)
    padded = torch.nn.functional.pad(value.abs(), (0, blocks * BLOCK - width))
    scale = padded.unflatten(-1, (blocks, BLOCK)).amax(-1) / E4M3_MAX
    return torch.where(scale >= SMALLEST_SCALE, scale, torch.ones_like(scale))


def expand_rows(scale: Tensor, width: int) -> Tensor:
    """Repeat row-block scales [..., B] to [..., width]."""
    return scale.repeat_interleave(BLOCK, dim=-1)[..., :width]


def expand_blocks(scale: Tensor, rows: int, columns: int) -> Tensor:
    """Repeat weight-block scales [..., R, C] to [..., rows, columns]."""
    return scale.repeat_interleave(BLOCK, dim=-2)[..., :rows, :].repeat_interleave(BLOCK, dim=-1)[..., :columns]


def fake_quantize(value: Tensor, rounding: str, static_scale: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Round ``value`` [..., N] as a recipe's rounding point does and return it dequantised, with its scales.

    rounding: ``none``, ``bf16``, ``fp16``, ``e4m3_per_tensor`` (needs ``static_scale``, one float32), ``e4m3_1x128``,
    or a chain joined by ``+``. float64 values round exactly once per point; float32 values use torch's casts.
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
            scale = expand_rows(row_scales(value), value.shape[-1])
        value = _through(value / scale, "e4m3") * scale
    return value, scale


def _through(value: Tensor, name: str) -> Tensor:
    if value.dtype == torch.float64:
        return round_to(value, name)
    return encode(value, name).to(value.dtype)
