"""Canonical weights as the runners take them, by the library's own preparation: no code and no block scale changes.

FlashInfer's canonical GEMM1 has the rows [up; gate]; each preparation turns them as its kernel wants.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from moeguard.backends.flashinfer_unified.config import activation
from moeguard.backends.flashinfer_unified.library import Library
from moeguard.core.case import Case
from moeguard.tensors.operand import Weights


def rows(weights: Weights, part: str) -> Tensor:
    """Data or scales of GEMM1: the up rows, then the gate rows; gate alone when it is not gated."""
    gate: Tensor = getattr(weights.gate, part)
    return gate.contiguous() if weights.up is None else torch.cat((getattr(weights.up, part), gate), 1)


def per_tensor_scales(weights: Weights) -> tuple[Tensor, Tensor]:
    """Scales [E] of GEMM1 and of GEMM2 in fp8_per_tensor, without that of x.

    The kernels have one GEMM1 scale an expert, that of gate here. Up enters the gated activation as a factor, and the
    intermediate is not quantised with a fixed scale, so what the scale of up differs by belongs to GEMM2.
    """
    gate, down = weights.gate.scale, weights.down.scale
    assert gate is not None and down is not None
    if weights.up is None:
        return gate, down
    assert weights.up.scale is not None
    return gate, down * torch.where(gate == 0, torch.ones_like(gate), weights.up.scale / gate)


def cutile_view(library: Library, weights: Weights, case: Case, candidate: Any) -> dict[str, Tensor]:
    """What ``candidate.prepare_weights`` makes of the weights; the scale of x is still missing in fp8_per_tensor."""
    sizes = {"num_local_experts": case.shape.num_experts, "hidden_size": case.shape.hidden_size,
             "intermediate_size": case.intermediate_local, "activation": activation(library, case.activation),
             "device": weights.gate.data.device}
    first, second = rows(weights, "data"), weights.down.data
    if case.recipe == "bf16":
        view: dict[str, Tensor] = candidate.prepare_weights(first, second, **sizes)
    elif case.recipe == "fp8_per_tensor":
        one, two = per_tensor_scales(weights)
        view = candidate.prepare_weights(first, one, second, two, **sizes)
    else:
        view = candidate.prepare_weights(first, rows(weights, "scale"), second, weights.down.scale, **sizes)
    return view


def frost_view(library: Library, weights: Weights, case: Case, candidate: Any) -> dict[str, Tensor]:
    """What Frost's preparation for the recipe makes of the weights, I padded to 128.

    fp8_per_tensor: the library's preparation for 16-bit activations, which keeps the codes (that for e4m3 activations
    quantises weights anew); without a gated activation the static scale of the intermediate is set into it. The scale of x
    is still missing.
    """
    kind = activation(library, case.activation)
    first, second = rows(weights, "data"), weights.down.data
    if case.recipe in ("bf16", "fp16"):
        prepare = candidate.prepare_bf16_weights if case.recipe == "bf16" else candidate.prepare_fp16_weights
        view: dict[str, Tensor] = prepare(first, second, activation=kind)
        return view
    if case.recipe == "fp8_per_tensor":
        one, two = per_tensor_scales(weights)
        view = candidate.prepare_fp8_weight_only_weights(first, one, second, two, activation=kind)
        if weights.up is None:
            static = weights.intermediate_scale
            assert static is not None
            view |= {"fc2_act_quant_scale": (1 / static).reshape(()), "fc2_dequant_scale": two * static}
        return view
    assert weights.down.scale is not None
    scales = rows(weights, "scale"), weights.down.scale
    if case.recipe == "fp8_block":
        view = candidate.prepare_deepseek_fp8_weights(first, scales[0].float(), second, scales[1].float(), activation=kind)
        return view
    e8m0 = [scale.view(torch.float8_e8m0fnu) for scale in scales]
    view = candidate.prepare_mxfp4_weight_only_weights(first, e8m0[0], second, e8m0[1], activation=kind)
    return view
