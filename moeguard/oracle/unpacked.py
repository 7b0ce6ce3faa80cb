"""Dequantised weights that are kept: scenarios share weights, and unpacking them costs more than the products do."""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict
from functools import cached_property

import torch
from torch import Tensor

from moeguard.tensors.operand import Operand

#: Bytes of float64 that one operand, and all kept operands together, may take.
LARGEST, CAPACITY = 128 << 20, 128 << 20


class Unpacked:
    """One operand [E, N, D] in float64 with the sums that the error model needs.

    Valid while the stored tensor lives and was not written to.
    """

    def __init__(self, weight: Operand) -> None:
        self._data, self._scales = weakref.ref(weight.data), (weight.scale, weight.global_scale)
        self._version = weight.data._version
        self.value = weight.dequantize(torch.float64)

    def of(self, weight: Operand) -> bool:
        """Whether this is ``weight``, unchanged."""
        scale, whole = self._scales
        return (self._data() is weight.data and scale is weight.scale and whole is weight.global_scale
                and self._version == weight.data._version)

    @cached_property
    def row_norm(self) -> Tensor:
        """Root of the summed squares of each row, [E, N]."""
        return self.value.square().sum(2).sqrt_()

    @cached_property
    def column_energy(self) -> Tensor:
        """Sum of squares of each column, [E, D]."""
        return self.value.square().sum(1)


class _Kept:
    """Unpacked operands by the identity of their data, least recently used first out. They end with their operand."""

    def __init__(self) -> None:
        self._held: OrderedDict[int, Unpacked] = OrderedDict()
        self._bytes = 0

    def get(self, weight: Operand) -> Unpacked:
        """``weight`` unpacked, kept for the next call."""
        key = id(weight.data)
        held = self._held.get(key)
        if held is None or not held.of(weight):
            self._remove(key)
            held = self._held[key] = Unpacked(weight)
            self._bytes += held.value.nbytes
            weakref.finalize(weight.data, self._ended, key, weakref.ref(held)).atexit = False
        self._held.move_to_end(key)
        while len(self._held) > 1 and self._bytes > CAPACITY:
            self._remove(next(iter(self._held)))
        return held

    def _ended(self, key: int, held: weakref.ref[Unpacked]) -> None:
        if key in self._held and self._held[key] is held():
            self._remove(key)

    def _remove(self, key: int) -> None:
        held = self._held.pop(key, None)
        self._bytes -= 0 if held is None else held.value.nbytes


_KEPT = _Kept()


def unpacked(weight: Operand) -> Unpacked | None:
    """``weight`` in float64, kept for the next call; None when it is larger than LARGEST."""
    return _KEPT.get(weight) if math.prod(weight.shape) * 8 <= LARGEST else None
