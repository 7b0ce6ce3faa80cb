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
LARGEST, CAPACITY = 128 << 20, 512 << 20


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

    @property
    def dead(self) -> bool:
        """Whether the stored tensor is gone."""
        return self._data() is None

    @cached_property
    def row_norm(self) -> Tensor:
        """Root of the summed squares of each row, [E, N]."""
        return self.value.square().sum(2).sqrt_()

    @cached_property
    def column_energy(self) -> Tensor:
        """Sum of squares of each column, [E, D]."""
        return self.value.square().sum(1)


_KEPT: OrderedDict[int, Unpacked] = OrderedDict()


def unpacked(weight: Operand) -> Unpacked | None:
    """``weight`` in float64, kept for the next call; None when it is larger than LARGEST."""
    size = math.prod(weight.shape) * 8
    if size > LARGEST:
        return None
    key = id(weight.data)
    held = _KEPT.get(key)
    if held is None or not held.of(weight):
        held = _KEPT[key] = Unpacked(weight)
    _KEPT.move_to_end(key)
    for other in [other for other, kept in _KEPT.items() if kept.dead]:
        del _KEPT[other]
    while len(_KEPT) > 1 and sum(kept.value.numel() * 8 for kept in _KEPT.values()) > CAPACITY:
        _KEPT.popitem(last=False)
    return held
