"""Canonical weights in the layout of ``cutlass_fused_moe``: [up; gate] rows, block scales and 4-bit layouts as it takes them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from moeguard.backends.flashinfer_cutlass import interleaving
from moeguard.core.case import Case
from moeguard.core.recipe import RECIPES
from moeguard.layouts import hopper
from moeguard.layouts import scales as folded
from moeguard.layouts.contract import Probe
from moeguard.quant.formats import FORMATS
from moeguard.tensors.operand import Operand, Weights

#: What FlashInfer calls the packed 4-bit types, and the weight elements of one scale.
FOUR_BIT = {"mxfp4_bf16": ("fp4", 32), "int4_fp8": ("int4", 128)}
#: Names of the layouts that 4-bit weights had before they were interleaved and have since (flashinfer#3084).
EARLIER, LATER = "packed as for FlashInfer up to 0.6.9", "interleaved as for FlashInfer from 0.6.10 on"
#: Fixed factor of the MXFP4 x FP8 epilogue, from FlashInfer's ``prepare_cutlass_humming_weights``.
_HUMMING_FACTOR = 64.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """Arguments of the call that do not change with the batch.

    fc1 [E_local, 2I or I, H] and fc2 [E_local, H, I] (4-bit: packed, last axis halved). scales: ``quant_scales``, or in
    fp8_per_tensor what they are made of. flags: further keyword arguments. weights: kept alive, because tensors are shared.
    offers, witnessed: what was asked of the library before, by top-k, and by number of tokens and tactic.
    """

    case: Case
    fc1: Tensor
    fc2: Tensor
    scales: tuple[Tensor, ...]
    biases: tuple[Tensor, Tensor] | None
    flags: dict[str, Any]
    weights: Weights
    offers: dict[int, Any] = field(default_factory=dict)
    witnessed: dict[tuple[int, Hashable], Hashable | None] = field(default_factory=dict)

    @property
    def output_dtype(self) -> torch.dtype:
        """Dtype of ``out``."""
        return _output_dtype(self.case)

    @property
    def x_dtype(self) -> torch.dtype:
        """Dtype of the input."""
        return {"fp16": torch.float16, "fp8_per_tensor": torch.float8_e4m3fn}.get(self.case.recipe, torch.bfloat16)


def _output_dtype(case: Case) -> torch.dtype:
    return FORMATS[RECIPES[case.recipe].output].dtype


def prepare(weights: Weights, case: Case, library: Any, *, interleave: bool | None = None) -> Prepared:
    """The layout for ``case``. interleave: of 4-bit weights, as the release wants it unless stated otherwise."""
    fc1, fc2 = _rows(weights, "data"), weights.down.data
    recipe = case.recipe
    scales: tuple[Tensor, ...] = ()
    flags: dict[str, Any] = {}
    if recipe == "fp8_per_tensor":
        scales = _per_tensor(weights)
    elif recipe == "fp8_block":
        assert weights.down.scale is not None
        scales = (_rows(weights, "scale").float(), weights.down.scale.float().contiguous())
        flags = {"use_deepseek_fp8_block_scale": True}
    elif recipe == "mxfp4_fp8":
        fc1, fc2, scales = _humming(library, fc1, fc2, weights)
        flags = {"use_w4_group_scaling": True, "use_wfp4afp8_humming": True}
    elif recipe in FOUR_BIT:
        wanted = library.release.interleaved if interleave is None else interleave
        fc1, fc2, scales = _four_bit(library, fc1, fc2, weights, case, wanted)
        flags = {"use_w4_group_scaling": True} | ({"use_packed_weights": True} if recipe == "int4_fp8" else {})
    return Prepared(case, fc1.contiguous(), fc2.contiguous(), scales, _biases(weights, case), flags, weights)


def foreign(weights: Weights, case: Case, library: Any) -> dict[str, Prepared]:
    """``weights {name}`` as other releases take them, by name: 4-bit weights, which are interleaved from 0.6.10 on alone.

    The earlier layout has its scales row by row here, not in the blocks of ``interleaving.early_scales``.

    Empty in other recipes.
    """
    if case.recipe not in FOUR_BIT:
        return {}
    if library.release.interleaved:
        return {EARLIER: prepare(weights, case, library, interleave=False)}
    return {LATER: prepare(weights, case, library, interleave=True)}


def probes(case: Case, library: Any) -> dict[str, Probe]:
    """What the release interleaves by, with the layout that its kernels read; empty where it interleaves nothing."""
    if case.recipe not in FOUR_BIT or not library.release.interleaved:
        return {}
    name, group = FOUR_BIT[case.recipe]
    weights = hopper.INT4 if name == "int4" else hopper.MXFP4_BITS if library.release.interleaved_bits else hopper.MXFP4_NIBBLES
    early = name == "fp4" and not library.release.interleaved_bits
    placed = folded.SM90_MXFP4_EARLY if early else folded.SM90_MXFP4 if name == "fp4" else folded.SM90_INT4
    kind = torch.uint8 if name == "fp4" else torch.bfloat16
    return {
        "weights": Probe(weights, lambda data: library.core.interleave_moe_weights_for_sm90_mixed_gemm(data, name), (2, 32, 64)),
        "scales": Probe(placed, lambda data: library.core.interleave_moe_scales_for_sm90_mixed_gemm(data.view(kind), group),
                        (2, 128, 8))}


def _rows(weights: Weights, part: str) -> Tensor:
    """Data or scales of GEMM1: the up rows, then the gate rows; gate alone when it is not gated."""
    gate: Tensor = getattr(weights.gate, part)
    return gate if weights.up is None else torch.cat((getattr(weights.up, part), gate), 1)


def _per_tensor(weights: Weights) -> tuple[Tensor, Tensor, Tensor]:
    """gate scale [E], fc2_act_quant [E], fc2_dequant [E].

    The kernel has one GEMM1 scale an expert, that of gate here. Up enters the gated activation as a factor, so what its scale
    differs by is folded into the quantisation of the intermediate, which may differ per expert.
    """
    gate, down, static = weights.gate.scale, weights.down.scale, weights.intermediate_scale
    assert gate is not None and down is not None and static is not None
    ratio = torch.ones_like(gate)
    if weights.up is not None:
        assert weights.up.scale is not None
        ratio = torch.where(gate == 0, ratio, weights.up.scale / gate)
    return gate, ratio / static, down * static


def _four_bit(library: Any, fc1: Tensor, fc2: Tensor, weights: Weights, case: Case,
              interleave: bool) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    name, group = FOUR_BIT[case.recipe]
    fc1_scale, fc2_scale = _rows(weights, "scale"), weights.down.scale
    assert fc2_scale is not None
    if interleave and library.release.interleaved:
        core = library.core
        fc1, fc2 = (core.interleave_moe_weights_for_sm90_mixed_gemm(value.contiguous(), name) for value in (fc1, fc2))
        fc1_scale, fc2_scale = (core.interleave_moe_scales_for_sm90_mixed_gemm(value.contiguous(), group)
                                for value in (fc1_scale, fc2_scale))
    elif interleave:
        moved = {"fp4": interleaving.mxfp4_weights, "int4": interleaving.int4_weights}[name]
        fc1, fc2 = (moved(value.contiguous()) for value in (fc1, fc2))
        fc1_scale, fc2_scale = (interleaving.scales(value, group) for value in (fc1_scale, fc2_scale))
    elif name == "fp4" and not library.release.interleaved:
        fc1_scale, fc2_scale = (interleaving.early_scales(value) for value in (fc1_scale, fc2_scale))
    if case.recipe == "mxfp4_bf16":
        return fc1, fc2, (fc1_scale.contiguous().view(torch.int32), fc2_scale.contiguous().view(torch.int32))
    return fc1, fc2, (fc1_scale.contiguous(), fc2_scale.contiguous(), *_int4_activation(weights, case))


def _int4_activation(weights: Weights, case: Case) -> tuple[Tensor, ...]:
    """Static activation scales of INT4 x FP8: factors on x [H] and on the intermediate [I], no zeros, alpha [E] twice."""
    device, experts = weights.gate.data.device, case.experts_local
    x_scale, h_scale = weights.input_scale, weights.intermediate_scale
    assert x_scale is not None and h_scale is not None

    def factors(scale: Tensor, size: int) -> Tensor:
        return (1 / scale).to(torch.bfloat16).expand(size).contiguous()

    empty = torch.empty(0, dtype=torch.bfloat16, device=device)
    return (factors(x_scale, case.shape.hidden_size), factors(h_scale, case.intermediate_local), empty, empty.clone(),
            x_scale.float().expand(experts).contiguous(), h_scale.float().expand(experts).contiguous())


def _humming(library: Any, fc1: Tensor, fc2: Tensor, weights: Weights) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    from flashinfer.fused_moe.prepare import preprocess_moe_weights_for_sm90_mixed_gemm_humming as preprocess

    assert weights.down.scale is not None
    one, one_scale, one_rest = preprocess(fc1.contiguous(), _rows(weights, "scale").contiguous())
    two, two_scale, two_rest = preprocess(fc2.contiguous(), weights.down.scale.contiguous())
    reserved = torch.ones((), device=fc1.device)
    return one, two, (one_scale.view(torch.int32), (one_rest * _HUMMING_FACTOR).contiguous(), reserved,
                      two_scale.view(torch.int32), (two_rest * _HUMMING_FACTOR).contiguous())


def _biases(weights: Weights, case: Case) -> tuple[Tensor, Tensor] | None:
    gate, up, down = weights.gate_bias, weights.up_bias, weights.down_bias
    if gate is None or down is None:
        return None

    def stored(*parts: Operand) -> Tensor:
        return torch.cat([part.data for part in parts], 1).to(_output_dtype(case)).contiguous()

    return stored(gate) if up is None else stored(up, gate), stored(down)
