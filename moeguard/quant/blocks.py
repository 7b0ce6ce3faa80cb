"""Rounding points with scales: one a tensor, one a token, 1x128 row blocks, 128x128 weight blocks, groups along a row.

The 1x128 and 128x128 granularities are those of the DeepSeek-V3 technical report (section 3.3.2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from moeguard.core.numerics import UNSCALED
from moeguard.quant.formats import FORMATS, encode, round_to
from moeguard.quant.microscaling import MX_GROUP, NVFP4_GROUP, group_maxima, mx_scales, nvfp4_scales
from moeguard.quant.packed import encode_e2m1, values_of

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


def code_format(part: str) -> str:
    """The format of the codes of one rounding point: that of the elements where there is a scale."""
    return part if part in UNSCALED else "e2m1" if part == "nvfp4" else "e4m3"


def dynamic_scales(value: Tensor, rounding: str, static_scale: Tensor | None = None) -> Tensor:
    """Scales of a dynamic ``rounding`` for ``value`` [..., N]: [..., 1] for ``e4m3_per_token``, else [..., N].

    static_scale: the global scale of ``nvfp4``, which is a factor of the result.
    """
    if rounding == "mxfp8":
        return mx_scales(group_maxima(value, MX_GROUP)).repeat_interleave(MX_GROUP, dim=-1)
    if rounding == "nvfp4":
        if static_scale is None:
            raise ValueError("rounding 'nvfp4' needs a static global scale")
        scale = nvfp4_scales(group_maxima(value, NVFP4_GROUP), static_scale) * static_scale.to(value.dtype)
        return scale.repeat_interleave(NVFP4_GROUP, dim=-1)
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

    rounding: one of ``core.numerics.ROUNDINGS``, or a chain of them joined by ``+``. static_scale: float32 [1], needed by
    ``e4m3_per_tensor`` and ``nvfp4``. float64 values round exactly once per point; float32 values use torch's casts.
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
            scale = dynamic_scales(value, part, static_scale)
        value = through_codes(value, scale, part)
    return value, scale


def through_codes(value: Tensor, scale: Tensor, part: str) -> Tensor:
    """``value`` rounded to codes of the scaled rounding ``part`` and dequantised; where ``scale`` is zero, so is the result."""
    code = value / scale
    if part == "nvfp4":
        code = torch.where(scale > 0, code, 0.0)
    return _through(code, code_format(part)) * scale


def _through(value: Tensor, name: str) -> Tensor:
    if value.dtype == torch.float64:
        return round_to(value, name)
    if name == "e2m1":
        return values_of(encode_e2m1(value), name).to(value.dtype)
    return encode(value, name).to(value.dtype)
