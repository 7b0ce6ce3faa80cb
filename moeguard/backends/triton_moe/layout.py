"""Weights as the kernels want them: the canonical tensors, row-major, without a copy where they already are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from moeguard.backends.triton_moe.tactics import SCHEMES
from moeguard.core.case import Case
from moeguard.tensors.operand import Operand, Weights


@dataclass(frozen=True, slots=True)
class Prepared:
    """gate, up [E_local, I, H] and down [E_local, H, I] with float32 scales and biases; absent ones are ``nothing`` [1]."""

    case: Case
    scheme: int
    gate: Tensor
    up: Tensor
    down: Tensor
    gate_scale: Tensor
    up_scale: Tensor
    down_scale: Tensor
    gate_bias: Tensor
    up_bias: Tensor
    down_bias: Tensor
    static_scale: Tensor
    nothing: Tensor

    @property
    def experts(self) -> int:
        """E_local."""
        return self.gate.shape[0]

    @property
    def hidden(self) -> int:
        """H."""
        return self.gate.shape[2]

    @property
    def inter(self) -> int:
        """I of this rank."""
        return self.gate.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the weights live."""
        return self.gate.device


def prepare(weights: Weights, case: Case) -> Prepared:
    """The canonical weights of a case; only tensors that are not row-major are copied."""
    nothing = torch.zeros(1, dtype=torch.float32, device=weights.gate.data.device)

    def data(operand: Operand | None) -> Tensor:
        return nothing if operand is None else operand.data.contiguous()

    def scale(operand: Operand | None) -> Tensor:
        return nothing if operand is None or operand.scale is None else operand.scale.contiguous()

    up = weights.gate if weights.up is None else weights.up
    static = nothing if weights.intermediate_scale is None else weights.intermediate_scale
    return Prepared(case, SCHEMES[case.recipe], data(weights.gate), data(up), data(weights.down), scale(weights.gate),
                    scale(up), scale(weights.down), data(weights.gate_bias), data(weights.up_bias),
                    data(weights.down_bias), static, nothing)


def load_unit(size: int, *extents: int) -> int:
    """Elements of ``size`` bytes that a load may take at once where all ``extents`` are multiples of it: 16, 8 or 1."""
    common = math.gcd(*extents)
    return next(unit for unit in ((16, 8, 1) if size == 1 else (8, 1)) if common % unit == 0)
