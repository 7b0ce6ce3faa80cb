"""A counter-based generator in integer tensor operations: the same bits on CPU and GPU, in any order of evaluation.

The 32-bit mixer is the public-domain "lowbias32" of the hash-prospector project (multipliers 0x7feb352d, 0x846ca68b).
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

#: Standard deviation of the sum of four independent uniform bytes.
_FOUR_BYTE_SIGMA = (4 * (256**2 - 1) / 12) ** 0.5
#: Largest magnitude that ``normal`` returns, in standard deviations.
NORMAL_BOUND = 510 / _FOUR_BYTE_SIGMA


def _signed(value: int) -> int:
    return (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)


_M1, _M2 = _signed(0x7FEB352D), _signed(0x846CA68B)


class Stream:
    """A named, seeded stream of random tensors. ``Stream("x", 3)`` always yields the same bits.

    name, keys: identify the stream; any change of either gives an independent stream.
    """

    def __init__(self, *keys: object, device: torch.device | str = "cpu") -> None:
        self._keys = "|".join(str(key) for key in keys)
        self._device = torch.device(device)

    @property
    def device(self) -> torch.device:
        """Where tensors are made."""
        return self._device

    def _words(self, label: str) -> tuple[int, int]:
        digest = hashlib.blake2b(f"{self._keys}|{label}".encode(), digest_size=8).digest()
        return _signed(int.from_bytes(digest[:4], "little")), _signed(int.from_bytes(digest[4:], "little"))

    def bits(self, label: str, count: int, rows: range | None = None) -> Tensor:
        """Random int32 words: [count], or [len(rows), count] where row r depends on r alone (for example an expert)."""
        if rows is None:
            first, second = self._words(label)
            return _mix(torch.arange(count, dtype=torch.int32, device=self._device), first, second)
        keys = torch.tensor([self._words(f"{label}|{row}") for row in rows] or [[0, 0]], dtype=torch.int32,
                            device=self._device)[: len(rows)]
        index = torch.arange(count, dtype=torch.int32, device=self._device)
        return _mix(index[None, :], keys[:, :1], keys[:, 1:])

    def normal(self, label: str, count: int, rows: range | None = None) -> Tensor:
        """Float32, mean 0, variance 1, |value| <= NORMAL_BOUND: the sum of four bytes (Irwin-Hall), scaled."""
        return self.integers_normal(label, count, rows).to(torch.float32).mul_(1.0 / _FOUR_BYTE_SIGMA)

    def integers_normal(self, label: str, count: int, rows: range | None = None) -> Tensor:
        """Int32 in [-510, 510], the unscaled form of ``normal``."""
        word = self.bits(label, count, rows)
        pairs = (word & 0x00FF00FF).add_((word >> 8) & 0x00FF00FF)
        return (pairs & 0xFFFF).add_(pairs >> 16).sub_(510)

    def integers(self, label: str, count: int, low: int, high: int, rows: range | None = None) -> Tensor:
        """Int64 uniform in [low, high); the bias of at most (high - low) / 2**31 is accepted."""
        word = self.bits(label, count, rows).to(torch.int64) & 0x7FFFFFFF
        return word.remainder_(high - low).add_(low)


def _mix(value: Tensor, first: Tensor | int, second: Tensor | int) -> Tensor:
    word = value + first
    word = word ^ ((word >> 16) & 0xFFFF)
    word.mul_(_M1).bitwise_xor_((word >> 15) & 0x1FFFF).bitwise_xor_(
        torch.as_tensor(second, dtype=torch.int32, device=word.device))
    word.mul_(_M2)
    return word.bitwise_xor_((word >> 16) & 0xFFFF)
