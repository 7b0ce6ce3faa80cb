"""Binary floating-point formats and exact rounding to them.

Sources: IEEE 754-2019 (binary16), the bfloat16 numerics definition, and "FP8 Formats for Deep Learning"
(arXiv:2209.05433) for e4m3fn and e5m2; OCP Microscaling Formats v1.0, section 5.3.3, for e2m1. Conversions saturate, as CUDA's
``cvt.satfinite`` does for FP8. Codes of e2m1 are stored by ``moeguard.quant.packed``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Format:
    """A binary format: ``precision`` significand bits (implicit one included), ``emin`` exponent of the smallest normal.

    maximum: largest finite value. saturates: whether values beyond it clamp (FP8, FP4) or become infinite.
    """

    name: str
    dtype: torch.dtype
    precision: int
    emin: int
    maximum: float
    saturates: bool

    @property
    def roundoff(self) -> float:
        """Unit roundoff u = 2**-precision."""
        return 2.0**-self.precision

    @property
    def quantum(self) -> float:
        """Spacing of the subnormal grid."""
        return 2.0 ** (self.emin - self.precision + 1)


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("float32", torch.float32, 24, -126, 3.4028234663852886e38, False),
        Format("bf16", torch.bfloat16, 8, -126, 3.3895313892515355e38, False),
        Format("fp16", torch.float16, 11, -14, 65504.0, False),
        Format("e4m3", torch.float8_e4m3fn, 4, -6, 448.0, True),
        Format("e5m2", torch.float8_e5m2, 3, -14, 57344.0, True),
        Format("e2m1", torch.uint8, 2, 0, 6.0, True),
    )
}


def round_to(value: Tensor, name: str) -> Tensor:
    """Round float64 ``value`` (any shape) to the grid of format ``name``, nearest even, in one rounding.

    torch's own float64 casts to 16-bit formats go through float32 and round twice; this does not. NaN stays NaN.
    Returns float64. Raises KeyError for an unknown format and TypeError when ``value`` is not float64.
    """
    if value.dtype != torch.float64:
        raise TypeError(f"round_to works on float64, not {value.dtype}")
    form = FORMATS[name]
    shift = 53 - form.precision
    word = value.view(torch.int64)
    word = word + ((word >> shift) & 1) + ((1 << (shift - 1)) - 1)
    rounded = (word & -(1 << shift)).view(torch.float64)
    small = value.abs() < 2.0**form.emin
    if bool(small.any()):
        rounded = torch.where(small, torch.round(value / form.quantum) * form.quantum, rounded)
    if form.saturates:
        rounded = rounded.clamp_(-form.maximum, form.maximum)
    else:
        limit = torch.full_like(rounded, torch.inf).copysign_(rounded)
        rounded = torch.where(rounded.abs() > form.maximum, limit, rounded)
    return torch.where(torch.isnan(value), value, rounded)


def encode(value: Tensor, name: str) -> Tensor:
    """Round float32 ``value`` to format ``name`` (but e2m1) and store it in its dtype; FP8 saturates. NaN stays NaN."""
    form = FORMATS[name]
    if form.saturates:
        value = value.clamp(-form.maximum, form.maximum)
    return value.to(form.dtype)
