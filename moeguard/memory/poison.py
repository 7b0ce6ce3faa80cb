"""Poison patterns: a fresh bit pattern for every execution, alternating between a NaN payload and a finite value.

One pattern alone could be a legitimate value, or hide a backend that adds to what it finds; two different ones cannot.
"""

from __future__ import annotations

import torch

#: First word of each family by output dtype: (NaN with payload, finite). The low byte carries the execution's number.
_FAMILIES: dict[torch.dtype, tuple[int, int]] = {
    torch.bfloat16: (0x7FC0, 0x4700),
    torch.float16: (0x7E00, 0x7A00),
}


def word(dtype: torch.dtype, number: int) -> int:
    """The 16-bit pattern of execution ``number``: NaN payloads for even numbers, finite values for odd ones.

    Raises KeyError for a dtype that is not an output dtype.
    """
    family = _FAMILIES[dtype][number % 2]
    return family | (1 + (number // 2) % 63)


def byte(number: int) -> int:
    """The byte that fills a workspace: 0xFF (NaN in every float format) for even numbers, else a small finite value."""
    return 0xFF if number % 2 == 0 else 0x41
