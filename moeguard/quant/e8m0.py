"""e8m0: block scales that are powers of two, stored as a biased exponent.

Source: OCP Microscaling Formats (MX) specification v1.0, section 5.4.1: byte b stands for 2**(b - 127), 255 for NaN; there is
neither a sign nor a zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

BIAS, NAN = 127, 255
#: Bytes of the smallest and the largest scale.
LEAST, MOST = 0, 254


def decode_e8m0(byte: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """2**(byte - 127) of uint8 ``byte`` (any shape) in ``dtype``; exact, 2**-127 being a subnormal float32."""
    word = byte.to(torch.int32) << 23
    word = torch.where(byte == LEAST, torch.full_like(word, 1 << 22), word)
    word = torch.where(byte == NAN, torch.full_like(word, 0x7FC00000), word)
    return word.view(torch.float32).to(dtype)


def encode_e8m0(value: Tensor) -> Tensor:
    """The byte of the power of two nearest to float32 ``value`` (any shape), ties up; uint8.

    Saturates at 2**-127 (zero too) and 2**127. What is negative, infinite or NaN becomes NaN (255).
    """
    mantissa, exponent = torch.frexp(value.double())
    power = exponent + (mantissa >= 0.75).to(torch.int32) - 1
    byte = exponent_byte(torch.where(value == 0, torch.full_like(power, -BIAS), power))
    return torch.where((value >= 0) & torch.isfinite(value), byte, torch.full_like(byte, NAN))


def exponent_byte(power: Tensor) -> Tensor:
    """The byte of 2**power for integer ``power`` (any shape), clipped to what e8m0 holds; uint8."""
    return (power + BIAS).clamp(LEAST, MOST).to(torch.uint8)
