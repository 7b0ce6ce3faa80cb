"""Mutants that misread the scales of MX and NVFP4: of blocks, and the global ones above them."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from moeguard.core.case import Case
from moeguard.mutants.base import MX_GROUP, Call, Mutant, Prepared, Trigger, e4m3, nvfp4_rows
from moeguard.tensors.operand import Operand, Weights

MISMATCH = frozenset({"mismatch"})
#: Sizes with several groups a row.
SIZES = {"hidden_size": 128, "intermediate_size": 96}
#: Enough experts that gate and up of some have different global scales.
NVFP4: Trigger = {"recipe": "nvfp4", "shape": {**SIZES, "num_experts": 16}}
NVFP4_BF16: Trigger = {"recipe": "nvfp4_bf16", "shape": {**SIZES, "num_experts": 16}}


class GlobalScalesSwapped(Mutant):
    """Fuses gate and up in one order and their global scales in the other."""

    name = "mutant_global_scales_swapped"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = NVFP4

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        if weights.up is not None and weights.up.global_scale is not None:
            weights = replace(weights, gate=replace(weights.gate, global_scale=weights.up.global_scale),
                              up=replace(weights.up, global_scale=weights.gate.global_scale))
        return super().prepare(weights, case)


class GlobalScaleOfGate(Mutant):
    """Keeps one global scale an expert, that of gate, and does not carry the difference into the block scales of up."""

    name = "mutant_global_scale_of_gate"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = {**NVFP4_BF16, "scales": {"kind": "heterogeneous", "exponent": 3}}

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        if weights.up is not None and weights.up.global_scale is not None:
            weights = replace(weights, up=replace(weights.up, global_scale=weights.gate.global_scale))
        return super().prepare(weights, case)


class ScaleFormatConfused(Mutant):
    """Reads the e4m3 scales of down as the exponents of e8m0."""

    name = "mutant_scale_format_confused"
    expected: ClassVar[frozenset[str]] = frozenset({"mismatch", "non_finite"})
    trigger: ClassVar[Trigger] = NVFP4_BF16

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        down = weights.down
        if down.global_scale is not None and down.scale is not None:
            weights = replace(weights, down=replace(down, scale=down.scale.view(torch.uint8)))
        return super().prepare(weights, case)


class ScaleOfNextRow(Mutant):
    """Takes the block scales of a weight row from the row after it, as a swizzle for other tiles would."""

    name = "mutant_scale_of_next_row"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = {"recipe": "mxfp8", "shape": SIZES}

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        down = weights.down
        if down.grouped and down.scale is not None:
            weights = replace(weights, down=replace(down, scale=down.scale.view(torch.uint8).roll(1, 1).view(down.scale.dtype)))
        return super().prepare(weights, case)


class _InputMisread(Mutant):
    """Reads a four-bit ``batch.x`` through ``misread``."""

    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = NVFP4

    def misread(self, x: Operand) -> Operand:
        """The input as this kernel sees it."""
        raise NotImplementedError

    def inputs(self, call: Call) -> Tensor:
        if not call.batch.x.packed:
            return super().inputs(call)
        return super().inputs(replace(call, batch=replace(call.batch, x=self.misread(call.batch.x))))


class InputNibblesSwapped(_InputMisread):
    """Takes the high nibble of the input for the even column."""

    name = "mutant_input_nibbles_swapped"

    def misread(self, x: Operand) -> Operand:
        return replace(x, data=(x.data >> 4) | (x.data << 4))


class InputScaleOfNextToken(_InputMisread):
    """Gathers the rows of the input but not the rows of its block scales."""

    name = "mutant_input_scale_of_next_token"

    def misread(self, x: Operand) -> Operand:
        assert x.scale is not None
        return replace(x, scale=x.scale.view(torch.uint8).roll(1, 0).view(x.scale.dtype))


class IntermediateGlobalScale(Mutant):
    """Quantises the intermediate with the global scale of the input and dequantises it with its own."""

    name = "mutant_intermediate_global_scale"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = NVFP4

    def quantise(self, call: Call, hidden: Tensor) -> Tensor:
        given, own = call.batch.x.global_scale, call.prepared.source.intermediate_scale
        if given is None or own is None:
            return super().quantise(call, hidden)
        return nvfp4_rows(hidden, given) / given * own


class BlockMaximumSaturates(Mutant):
    """Rounds the scale of an mxfp8 block down (OCP's conversion), so that its largest values saturate."""

    name = "mutant_block_maximum_saturates"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = {"recipe": "mxfp8", "shape": SIZES}

    def quantise(self, call: Call, hidden: Tensor) -> Tensor:
        if call.numerics.intermediate != "mxfp8":
            return super().quantise(call, hidden)
        blocks = hidden.unflatten(1, (-1, MX_GROUP))
        amax = blocks.abs().amax(2, keepdim=True).clamp(min=2.0**-100)
        scale = torch.exp2(torch.floor(torch.log2(amax)) - 8)
        return (e4m3(blocks / scale) * scale).flatten(1)


BROKEN_SCALES: tuple[type[Mutant], ...] = (
    GlobalScalesSwapped, GlobalScaleOfGate, ScaleFormatConfused, ScaleOfNextRow, InputNibblesSwapped, InputScaleOfNextToken,
    IntermediateGlobalScale, BlockMaximumSaturates)
