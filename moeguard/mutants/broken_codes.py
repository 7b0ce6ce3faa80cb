"""Mutants that misread four-bit weights, the scales of their groups, or the scales by which they quantise rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from moeguard.core.case import Case
from moeguard.mutants.base import E4M3_MAX, Call, Mutant, Prepared, Trigger, e4m3
from moeguard.tensors.operand import Operand, Weights

MISMATCH = frozenset({"mismatch"})
#: Sizes that every group divides, with more than one group a row.
SIZES = {"hidden_size": 256, "intermediate_size": 256}


def _trigger(recipe: str, scales: str = "normal") -> Trigger:
    return {"recipe": recipe, "shape": SIZES, "scales": {"kind": scales}}


class _Misread(Mutant):
    """Reads every packed operand through ``misread``."""

    expected: ClassVar[frozenset[str]] = MISMATCH

    def misread(self, operand: Operand) -> Operand:
        """The operand as this kernel sees it."""
        raise NotImplementedError

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        if weights.gate.packed:
            up = None if weights.up is None else self.misread(weights.up)
            weights = replace(weights, gate=self.misread(weights.gate), up=up, down=self.misread(weights.down))
        return super().prepare(weights, case)


def _scaled(operand: Operand, change: Callable[[Tensor], Tensor]) -> Operand:
    assert operand.scale is not None
    return replace(operand, scale=change(operand.scale))


class NibblesSwapped(_Misread):
    """Takes the high nibble of a byte for the even column."""

    name = "mutant_nibbles_swapped"
    trigger: ClassVar[Trigger] = _trigger("mxfp4_bf16")

    def misread(self, operand: Operand) -> Operand:
        return replace(operand, data=(operand.data >> 4) | (operand.data << 4))


class OffsetBinary(_Misread):
    """Reads signed int4 as unsigned with a zero point of eight."""

    name = "mutant_offset_binary"
    trigger: ClassVar[Trigger] = _trigger("int4_fp8")

    def misread(self, operand: Operand) -> Operand:
        return replace(operand, data=operand.data ^ 0x88) if operand.format == "int4" else operand


class LowestCodeLost(_Misread):
    """Reads the int4 code -8, which has no positive partner, as -7."""

    name = "mutant_lowest_code_lost"
    trigger: ClassVar[Trigger] = _trigger("int4_fp8", "saturating")

    def misread(self, operand: Operand) -> Operand:
        if operand.format != "int4":
            return operand
        data = torch.where((operand.data & 0x0F) == 0x08, operand.data | 0x01, operand.data)
        return replace(operand, data=torch.where((data & 0xF0) == 0x80, data | 0x10, data))


class ScaleOfNextGroup(_Misread):
    """Multiplies each group of a row by the scale of the group before."""

    name = "mutant_scale_of_next_group"
    trigger: ClassVar[Trigger] = _trigger("mxfp4_fp8")

    def misread(self, operand: Operand) -> Operand:
        return _scaled(operand, lambda scale: scale.roll(1, 2))


class GroupAxisSwapped(_Misread):
    """Reads the scales with groups and rows exchanged, as a transposed layout would hold them."""

    name = "mutant_group_axis_swapped"
    trigger: ClassVar[Trigger] = _trigger("int4_fp8")

    def misread(self, operand: Operand) -> Operand:
        return _scaled(operand, lambda scale: scale.reshape(scale.shape[0], scale.shape[2], scale.shape[1]).transpose(1, 2))


class GroupTooWide(_Misread):
    """Uses one scale for two neighbouring groups, as a kernel for groups of twice the size would."""

    name = "mutant_group_too_wide"
    trigger: ClassVar[Trigger] = _trigger("mxfp4_bf16")

    def misread(self, operand: Operand) -> Operand:
        def first_of_two(scale: Tensor) -> Tensor:
            return scale[:, :, torch.arange(scale.shape[2], device=scale.device) // 2 * 2]
        return _scaled(operand, first_of_two)


class ExponentRangeClipped(_Misread):
    """Folds e8m0 scales into the weights and keeps the two largest binades of each expert; smaller scales are raised."""

    name = "mutant_exponent_range_clipped"
    trigger: ClassVar[Trigger] = _trigger("mxfp4_fp8")

    def misread(self, operand: Operand) -> Operand:
        if operand.format != "e2m1":
            return operand
        return _scaled(operand, lambda scale: scale.maximum(scale.amax((1, 2), keepdim=True) - 1))


class ExponentBias(Mutant):
    """Decodes the e8m0 scales of the second product with a bias of 128."""

    name = "mutant_exponent_bias"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = _trigger("mxfp4_bf16")

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        if weights.down.format == "e2m1":
            weights = replace(weights, down=_scaled(weights.down, lambda scale: scale.clamp(min=1) - 1))
        return super().prepare(weights, case)


class GateUpScalesMixed(Mutant):
    """Fuses gate and up in one order and their group scales in the other."""

    name = "mutant_gate_up_scales_mixed"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = _trigger("mxfp4_fp8")

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        if weights.gate.packed and weights.up is not None:
            weights = replace(weights, gate=replace(weights.gate, scale=weights.up.scale),
                              up=replace(weights.up, scale=weights.gate.scale))
        return super().prepare(weights, case)


class PartialMaximum(Mutant):
    """Takes a token's scale from the first half of its row, so the other half may saturate."""

    name = "mutant_partial_maximum"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = _trigger("mxfp4_fp8")

    def quantise(self, call: Call, hidden: Tensor) -> Tensor:
        if call.numerics.intermediate != "e4m3_per_token":
            return super().quantise(call, hidden)
        scale = hidden[:, : hidden.shape[1] // 2].abs().amax(1, keepdim=True) / E4M3_MAX
        scale = torch.where(scale >= 2.0**-126, scale, 1.0)
        return e4m3(hidden / scale) * scale


class InputScaleOnce(Mutant):
    """Divides the input by its static scale and does not multiply the sums by it."""

    name = "mutant_input_scale_once"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = _trigger("int4_fp8")

    def inputs(self, call: Call) -> Tensor:
        scale = call.prepared.source.input_scale
        return super().inputs(call) if scale is None else super().inputs(call) / scale


BROKEN_CODES: tuple[type[Mutant], ...] = (
    NibblesSwapped, OffsetBinary, LowestCodeLost, ScaleOfNextGroup, GroupAxisSwapped, GroupTooWide, ExponentRangeClipped,
    ExponentBias, GateUpScalesMixed, PartialMaximum, InputScaleOnce)
