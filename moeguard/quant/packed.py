"""Four-bit codes, two to a byte: e2m1 and signed int4.

Sources: e2m1 is the FP4 element format of the OCP Microscaling Formats (MX) specification v1.0, section 5.3.3 (no infinity, no
NaN; conversion saturates); int4 is two's complement, -8 to 7. The low nibble of a byte holds the even column, the high nibble
the odd one after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Nibble:
    """A four-bit format. values: what the codes 0 to 15 stand for."""

    name: str
    values: tuple[float, ...]

    @property
    def maximum(self) -> float:
        """Largest magnitude of a code."""
        return max(abs(value) for value in self.values)


_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
NIBBLES: dict[str, Nibble] = {
    form.name: form
    for form in (Nibble("e2m1", (*_E2M1, *(-value for value in _E2M1))),
                 Nibble("int4", (*map(float, range(8)), *map(float, range(-8, 0)))))
}
#: Upper end of what rounds to each e2m1 magnitude: the middle of two codes, which goes to the even one of them.
_E2M1_EDGES = tuple((low + high) / 2 * (1.0 if code % 2 == 0 else 1.0 - 2.0**-24)
                    for code, (low, high) in enumerate(pairwise(_E2M1)))


def encode_e2m1(value: Tensor) -> Tensor:
    """Codes uint8 0 to 15 of finite float32 ``value`` (any shape), to nearest even; saturates at 6, zeros keep their sign."""
    edges = torch.tensor(_E2M1_EDGES, dtype=torch.float32, device=value.device)
    magnitude = torch.bucketize(value.abs(), edges, out_int32=True)
    return (magnitude + 8 * torch.signbit(value)).to(torch.uint8)


def encode_int4(value: Tensor) -> Tensor:
    """Codes uint8 0 to 15 of finite float32 ``value`` (any shape), to nearest even; saturates at -8 and 7."""
    return torch.round(value).clamp(-8, 7).to(torch.int8).bitwise_and(15).to(torch.uint8)


def encode_nibbles(value: Tensor, name: str) -> Tensor:
    """Codes uint8 of ``value`` in format ``name``, one a byte. Raises KeyError for an unknown format."""
    return {"e2m1": encode_e2m1, "int4": encode_int4}[name](value)


def pack(codes: Tensor) -> Tensor:
    """Codes uint8 [..., N] with N even to bytes [..., N/2]; the even column goes into the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(data: Tensor) -> Tensor:
    """Bytes [..., N/2] to codes uint8 [..., N]; the inverse of ``pack``."""
    return torch.stack([data & 15, data >> 4], dim=-1).flatten(-2)


def decode_packed(data: Tensor, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values [..., N] of the bytes ``data`` [..., N/2] of format ``name``, exact in ``dtype``."""
    return functional.embedding(data.to(torch.int32), _pairs(name).to(data.device, dtype)).flatten(-2)


def values_of(codes: Tensor, name: str) -> Tensor:
    """Float32 values of ``codes``, one a byte, in format ``name``; the inverse of ``encode_nibbles``."""
    return torch.tensor(NIBBLES[name].values, device=codes.device)[codes.to(torch.int64)]


@lru_cache
def _pairs(name: str) -> Tensor:
    """float32 [256, 2]: the two values of every byte."""
    values = torch.tensor(NIBBLES[name].values)
    byte = torch.arange(256)
    return torch.stack([values[byte % 16], values[byte // 16]], dim=1)
