"""Groups of a row that share a narrow scale: MX (e8m0, 32 elements) and NVFP4 (e4m3, 16 elements, below a float32 global scale).

Sources: OCP Microscaling Formats (MX) specification v1.0, section 6.3, for mode ``floor``; FlashInfer 0.7.4
(csrc/nv_internal/tensorrt_llm/kernels/quantization_utils.cuh, cvt_warp_fp16_to_mxfp8 and cvt_warp_fp16_to_fp4) for mode
``round_up``, which the recipes use (torchao calls it RCEIL), and for NVFP4; the references of FlashInfer's traces
(flashinfer/trace/templates/quantize.py, _quantize_mxfp8) for mode ``round_down``.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from moeguard.quant.e8m0 import BIAS, LEAST, MOST, exponent_byte
from moeguard.quant.formats import FORMATS, encode, round_to
from moeguard.quant.packed import encode_e2m1, pack

#: Elements of a group.
MX_GROUP, NVFP4_GROUP = 32, 16
#: floor: the exponent of amax less that of the largest element, so that the largest values of a group may saturate.
#: round_down, round_up: amax / maximum rounded to a power of two below or above, so that nothing saturates in the latter.
ScaleMode = Literal["floor", "round_down", "round_up"]


def group_maxima(value: Tensor, group: int) -> Tensor:
    """Largest magnitude of each group along the last axis of ``value`` [..., N], [..., N / group]; ``group`` divides N."""
    return value.abs().reshape(*value.shape[:-1], value.shape[-1] // group, group).amax(-1)


def mx_exponents(amax: Tensor, element: str = "e4m3", mode: ScaleMode = "round_up") -> Tensor:
    """Exponents int32 of the e8m0 scales of groups with the given largest magnitudes (float32 or float64), before clipping."""
    top, power = torch.frexp(torch.tensor(FORMATS[element].maximum, dtype=torch.float64))
    mantissa, exponent = torch.frexp(amax)
    if mode == "floor":
        return exponent - int(power)
    raised = (mantissa > top).to(torch.int32) if mode == "round_up" else (mantissa >= top).to(torch.int32) - 1
    return exponent - int(power) + raised


def mx_scales(amax: Tensor, element: str = "e4m3", mode: ScaleMode = "round_up") -> Tensor:
    """The scales themselves, in the dtype of ``amax``: 2**-127 for a group of zeros."""
    exponent = mx_exponents(amax, element, mode).clamp(LEAST - BIAS, MOST - BIAS)
    exponent = torch.where(amax > 0, exponent, LEAST - BIAS)
    return torch.ldexp(torch.ones_like(amax), exponent)


def quantize_mx(value: Tensor, element: str = "e4m3", mode: ScaleMode = "round_up") -> tuple[Tensor, Tensor]:
    """Finite float32 ``value`` [..., N] in MX: codes [..., N] in ``element``'s dtype (e2m1: bytes [..., N/2]), scales uint8
    [..., N/32].
    """
    amax = group_maxima(value, MX_GROUP)
    byte = exponent_byte(torch.where(amax > 0, mx_exponents(amax, element, mode), LEAST - BIAS))
    scale = mx_scales(amax, element, mode).repeat_interleave(MX_GROUP, dim=-1)
    code = (value.double() / scale.double()).float()
    return (pack(encode_e2m1(code)) if element == "e2m1" else encode(code, element)), byte


def nvfp4_scales(amax: Tensor, global_scale: Tensor) -> Tensor:
    """e4m3 scales of groups of e2m1 codes, in the dtype of ``amax``: amax / 6 / ``global_scale`` to nearest even.

    They saturate at 448, and a group that is small enough has the scale zero.
    """
    quotient = amax / FORMATS["e2m1"].maximum / global_scale.to(amax.dtype)
    if amax.dtype == torch.float64:
        return round_to(quotient, "e4m3")
    return encode(quotient, "e4m3").to(amax.dtype)


def quantize_nvfp4(value: Tensor, global_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Finite float32 ``value`` [..., N] in NVFP4: bytes [..., N/2] and scales float8_e4m3fn [..., N/16].

    An element stands for code * scale * ``global_scale``; FlashInfer's functions take the reciprocal of the latter.
    """
    scale = nvfp4_scales(group_maxima(value, NVFP4_GROUP), global_scale)
    each = (scale * global_scale).repeat_interleave(NVFP4_GROUP, dim=-1)
    code = torch.where(each > 0, value / each, 0.0)
    return pack(encode_e2m1(code)), encode(scale, "e4m3")
