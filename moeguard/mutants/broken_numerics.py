"""Mutants that lose bits, take a wrong scale, or leave the range of a format."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from moeguard.core.case import Case
from moeguard.mutants.base import BLOCK, E4M3_MAX, Call, Mutant, Prepared, Slots, Trigger, e4m3
from moeguard.mutants.broken_memory import padding
from moeguard.tensors.operand import Weights

MISMATCH = frozenset({"mismatch"})
NON_FINITE = frozenset({"non_finite"})


class NarrowAccumulation(Mutant):
    """Keeps partial sums of 32 products in bf16 without declaring it."""

    name = "mutant_narrow_accumulation"
    expected: ClassVar[frozenset[str]] = MISMATCH

    def product(self, call: Call, which: str, rows: Tensor, matrix: Tensor) -> Tensor:
        total = rows.new_zeros(rows.shape[0], matrix.shape[0])
        for left, right in zip(torch.split(rows, 32, 1), torch.split(matrix, 32, 1), strict=True):
            total = (total + left @ right.T).bfloat16().float()
        return total


class NarrowOutputs(Mutant):
    """Rounds each expert's output to e4m3 before the combine without declaring it."""

    name = "mutant_narrow_outputs"
    expected: ClassVar[frozenset[str]] = MISMATCH

    def expert(self, call: Call, expert: int, rows: Tensor) -> Tensor:
        value = super().expert(call, expert, rows)
        scale = value.abs().amax().clamp(min=2.0**-100) / E4M3_MAX
        return e4m3(value / scale) * scale


class GlobalScale(Mutant):
    """Every answer is 2 % too large: one scale taken twice through a rounded reciprocal."""

    name = "mutant_global_scale"
    expected: ClassVar[frozenset[str]] = MISMATCH

    def write(self, call: Call, value: Tensor) -> None:
        call.out.copy_(value * 1.02)


class ExpertScale(Mutant):
    """One expert is 5 % too large; averages over the whole output hide it."""

    name = "mutant_expert_scale"
    expected: ClassVar[frozenset[str]] = MISMATCH

    def expert(self, call: Call, expert: int, rows: Tensor) -> Tensor:
        value = super().expert(call, expert, rows)
        return value * 1.05 if expert == call.case.experts_local // 2 else value


class ScaleOfNextSlot(Mutant):
    """One expert reads the weight scale of its neighbour."""

    name = "mutant_scale_of_next_slot"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = {"recipe": "fp8_per_tensor"}

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        scale = weights.down.scale
        if scale is not None:
            scale = scale.clone()
            one = case.experts_local // 2
            scale[one] = scale[(one + 1) % case.experts_local]
        return super().prepare(replace(weights, down=replace(weights.down, scale=scale)), case)


class SharedScale(Mutant):
    """Uses the scale of gate for up as well, as a fused weight with one scale would (sglang#10296, vllm#54974)."""

    name = "mutant_shared_scale"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = {"recipe": "fp8_block"}

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        if weights.up is not None:
            weights = replace(weights, up=replace(weights.up, scale=weights.gate.scale))
        return super().prepare(weights, case)


class InputScalePerTensor(Mutant):
    """Quantises the input with one scale for all rows where 1x128 blocks are due."""

    name = "mutant_input_scale_per_tensor"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = {"recipe": "fp8_block", "inputs": {"kind": "spread"}}

    def inputs(self, call: Call) -> Tensor:
        if call.numerics.input != "e4m3_1x128":
            return super().inputs(call)
        x = call.batch.x.dequantize()
        scale = x.abs().amax().clamp(min=2.0**-100) / E4M3_MAX
        return e4m3(x / scale) * scale


class ScaleOverflow(Mutant):
    """Quantises with 448/amax, which overflows float32 for a near-dead expert (flashinfer#2595)."""

    name = "mutant_scale_overflow"
    expected: ClassVar[frozenset[str]] = NON_FINITE
    trigger: ClassVar[Trigger] = {"recipe": "fp8_block", "scales": {"kind": "tiny", "exponent": -66}}

    def quantise(self, call: Call, hidden: Tensor) -> Tensor:
        if call.numerics.intermediate != "e4m3_1x128":
            return super().quantise(call, hidden)
        parts = []
        for block in torch.split(hidden, BLOCK, 1):
            amax = block.abs().amax(1, keepdim=True)
            inverse = torch.where(amax > 0, E4M3_MAX / amax, 1.0)
            parts.append(unsaturated(block * inverse) / inverse)
        return torch.cat(parts, 1)


class ZeroBlock(Mutant):
    """Divides an all-zero block by its scale of zero (flashinfer#2238)."""

    name = "mutant_zero_block"
    expected: ClassVar[frozenset[str]] = NON_FINITE
    trigger: ClassVar[Trigger] = {"recipe": "fp8_block", "inputs": {"kind": "zeros"}}

    def quantise(self, call: Call, hidden: Tensor) -> Tensor:
        if call.numerics.intermediate != "e4m3_1x128":
            return super().quantise(call, hidden)
        scales = [block.abs().amax(1, keepdim=True) / E4M3_MAX for block in torch.split(hidden, BLOCK, 1)]
        blocks = zip(torch.split(hidden, BLOCK, 1), scales, strict=True)
        return torch.cat([e4m3(block / scale) * scale for block, scale in blocks], 1)


class Unsaturated(Mutant):
    """Converts to e4m3 without saturation: values beyond 448 become NaN."""

    name = "mutant_unsaturated"
    expected: ClassVar[frozenset[str]] = NON_FINITE
    trigger: ClassVar[Trigger] = {"recipe": "fp8_per_tensor", "scales": {"kind": "saturating"}}

    def quantise(self, call: Call, hidden: Tensor) -> Tensor:
        scale = call.prepared.source.intermediate_scale
        if scale is None:
            return super().quantise(call, hidden)
        return unsaturated(hidden / scale) * scale


class SiluOverflow(Mutant):
    """Computes the sigmoid as exp(x) / (1 + exp(x)), which is inf / inf from 89 on."""

    name = "mutant_silu_overflow"
    expected: ClassVar[frozenset[str]] = NON_FINITE
    trigger: ClassVar[Trigger] = {"inputs": {"kind": "outlier"}}

    def activate(self, call: Call, gate: Tensor, up: Tensor | None) -> Tensor:
        if call.case.activation.kind not in ("swiglu", "silu"):
            return super().activate(call, gate, up)
        power = gate.exp()
        value = gate * (power / (1.0 + power))
        return value if up is None else value * up


class HalfIntermediate(Mutant):
    """Keeps the intermediate in float16 whatever the recipe, so large values become infinite (sglang#8493)."""

    name = "mutant_half_intermediate"
    expected: ClassVar[frozenset[str]] = NON_FINITE
    trigger: ClassVar[Trigger] = {"recipe": "bf16", "inputs": {"kind": "outlier"},
                                  "scales": {"kind": "bimodal", "exponent": 9}}

    def quantise(self, call: Call, hidden: Tensor) -> Tensor:
        return super().quantise(call, hidden.half().float())


class PaddingLeak(Mutant):
    """Loads whole vectors past the row's end and multiplies by zero; NaN padding reaches the sum (vllm#38148)."""

    name = "mutant_padding_leak"
    expected: ClassVar[frozenset[str]] = NON_FINITE
    trigger: ClassVar[Trigger] = {"layout": {"kind": "nan_padding"}}

    def inputs(self, call: Call) -> Tensor:
        return super().inputs(call) + (padding(call.batch.x.data).float() * 0.0).sum(1, keepdim=True)


class TokenLeak(Mutant):
    """Combines with a one-hot product, so a token that overflows makes every other token NaN."""

    name = "mutant_token_leak"
    expected: ClassVar[frozenset[str]] = NON_FINITE
    trigger: ClassVar[Trigger] = {"recipe": "fp16", "inputs": {"kind": "outlier"},
                                  "scales": {"kind": "bimodal", "exponent": 4}}

    def combine(self, call: Call, slots: Slots, outputs: Tensor) -> Tensor:
        one_hot = outputs.new_zeros(call.ids.shape[0], outputs.shape[0])
        one_hot[slots.token, torch.arange(outputs.shape[0])] = call.router_weights.reshape(-1)[slots.slot]
        return one_hot @ outputs


def unsaturated(value: Tensor) -> Tensor:
    """Round trip through e4m3 in which what lies beyond its range becomes NaN (OCP OFP8, NaN mode)."""
    return torch.where(value.abs() > E4M3_MAX, torch.nan, e4m3(value))


BROKEN_NUMERICS: tuple[type[Mutant], ...] = (
    NarrowAccumulation, NarrowOutputs, GlobalScale, ExpertScale, ScaleOfNextSlot, SharedScale, InputScalePerTensor,
    ScaleOverflow, ZeroBlock, Unsaturated, SiluOverflow, HalfIntermediate, PaddingLeak, TokenLeak)
