"""Weights as the TRTLLM-gen kernels read them.

Rows [up; gate] of GEMM1 alternate where the activation is gated, then rows of both are shuffled for an epilogue tile of 128;
bf16 is cut into blocks of K, and scales of 16 or 32 are swizzled. Source: the ``prepare_trtllm_*`` functions of
flashinfer/fused_moe/prepare.py (0.7.4), which quantise besides, so that they cannot be used on weights that are quantised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moeguard.backends.flashinfer_blackwell import layouts, scales
from moeguard.backends.flashinfer_blackwell.backend import Served
from moeguard.backends.flashinfer_blackwell.library import Library
from moeguard.core.case import Case
from moeguard.tensors.operand import Operand, Weights


@dataclass(frozen=True, slots=True)
class Prepared(Served):
    """gemm1, gemm2: weights [E, ..] by the layout of the recipe. scales: their block scales, None where there are none.

    biases: float32 [E, 2I or I] and [E, H] in the rows of the weights, or None. gate, up, down: float32 [E], factors of the three
    weights. static: float32 [1], the static scale of the intermediate, or None.
    """

    gemm1: Tensor
    gemm2: Tensor
    scales: tuple[Tensor, Tensor] | None
    biases: tuple[Tensor, Tensor] | None
    gate: Tensor
    up: Tensor
    down: Tensor
    static: Tensor | None


def prepare(library: Library, weights: Weights, case: Case) -> Prepared:
    """The layout for ``case``."""
    gated, experts = weights.up is not None, case.experts_local
    cache: dict[Any, Any] = {}
    w1, w2 = scales.up_gate(weights), weights.down.data
    moved: tuple[Tensor, Tensor] | None = None
    if case.recipe == "fp8_block":
        assert weights.down.scale is not None
        gemm1, gemm2 = w1.contiguous(), w2.contiguous()
        moved = scales.up_gate(weights, "scale").float().contiguous(), weights.down.scale.float().contiguous()
    else:
        gemm1 = layouts.first_rows(library, w1, gated=gated, cache=cache)
        gemm2 = layouts.second_rows(library, w2, gated=gated, cache=cache)
        if case.recipe == "bf16":
            gemm1, gemm2 = layouts.block_major(library, gemm1), layouts.block_major(library, gemm2)
        elif case.recipe != "fp8_per_tensor":
            moved = _block_scales(library, weights, gated=gated, cache=cache, narrow=case.recipe == "mxfp8")
    gate = scales.factor(weights.gate, experts)
    up = gate if weights.up is None else scales.factor(weights.up, experts)
    return Prepared(case, weights, {}, gemm1, gemm2, moved, _biases(library, weights, gated=gated, cache=cache), gate, up,
                    scales.factor(weights.down, experts), weights.intermediate_scale)


def _block_scales(library: Library, weights: Weights, *, gated: bool, cache: dict[Any, Any],
                  narrow: bool) -> tuple[Tensor, Tensor]:
    """Scales in the rows of the weights, swizzled: uint8 where ``narrow``, else float8 in name, which the launcher asks for.

    Raises ValueError where the swizzled scales would be padded.
    """
    down = scales.block_scales(weights.down)
    group = 32 if weights.down.scale is not None and weights.down.scale.dtype == torch.uint8 else 16
    first = scales.up_gate(weights, "scale").view(torch.uint8)
    linear = (layouts.first_rows(library, first, gated=gated, cache=cache, scale_group=group),
              layouts.second_rows(library, down, gated=gated, cache=cache, scale_group=group))
    if any(value.shape[2] % 4 for value in linear):
        raise ValueError("groups of H and of I are no multiple of 4: the swizzled scales would be padded")
    one, two = (layouts.swizzled(library, value).view(value.shape) for value in linear)
    return (one, two) if narrow else (one.view(torch.float8_e4m3fn), two.view(torch.float8_e4m3fn))


def _biases(library: Library, weights: Weights, *, gated: bool, cache: dict[Any, Any]) -> tuple[Tensor, Tensor] | None:
    """float32 biases, moved as the rows of the weights are."""
    gate, up, down = weights.gate_bias, weights.up_bias, weights.down_bias
    if gate is None or down is None:
        return None

    def stored(*parts: Operand) -> Tensor:
        return torch.cat([part.data.float() for part in parts], 1).unsqueeze(-1)

    first = stored(gate) if up is None else stored(up, gate)
    return (layouts.first_rows(library, first, gated=gated, cache=cache).squeeze(-1),
            layouts.second_rows(library, stored(down), gated=gated, cache=cache).squeeze(-1))
