"""Mutants of the CuteDSL dataflows: an output rebound, rows beyond the count, interleaving, mixed scales, a missing kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import torch
from torch import Tensor

from moeguard.backends.emulated_cutedsl.batched import TILE, Dispatch, EmulatedCuteDslBatched
from moeguard.backends.emulated_cutedsl.batched import Prepared as Batched
from moeguard.backends.emulated_cutedsl.standard import INTERLEAVE, EmulatedCuteDsl
from moeguard.backends.emulated_cutedsl.standard import Prepared as Standard
from moeguard.core.case import Case
from moeguard.mutants.base import Broken, Trigger
from moeguard.tensors.operand import Weights

WRONG = frozenset({"mismatch", "non_finite"})
MISMATCH = frozenset({"mismatch"})
#: Experts with unequal loads, none of which fills its tiles.
SKEWED: Trigger = {"routing": {"kind": "skewed"}}
BATCHED: Trigger = {**SKEWED, "activation_format": "batched"}
#: More than one pair of interleaved blocks.
WIDE: Trigger = {"shape": {"intermediate_size": 2 * INTERLEAVE}}


class BatchedRebound(EmulatedCuteDslBatched, Broken):
    """The masked products go to a new tensor under the name of the caller's (vllm#38050)."""

    name = "mutant_batched_out_rebound"
    expected: ClassVar[frozenset[str]] = frozenset({"unwritten_output"})
    trigger: ClassVar[Trigger] = BATCHED

    def kernel(self, prepared: Batched, x: Tensor, counts: Tensor, out: Tensor) -> None:
        out = torch.empty_like(out)
        super().kernel(prepared, x, counts, out)


class MaskedRowsCombined(EmulatedCuteDslBatched, Broken):
    """The combine adds every row of the buffer; rows that no token filled point to token 0."""

    name = "mutant_masked_rows_combined"
    expected: ClassVar[frozenset[str]] = WRONG
    trigger: ClassVar[Trigger] = SKEWED

    def combine(self, stored: Tensor, sent: Dispatch, weights: Tensor, out: Tensor) -> None:
        super().combine(stored, sent, weights, out)
        beyond = torch.arange(stored.shape[1], device=out.device) >= sent.counts[:, None]
        out[:1] += stored[beyond].sum(0)


class MaskedByZero(EmulatedCuteDslBatched, Broken):
    """Pairs of rows share a reduction whose second row is masked by a factor of zero, and zero times NaN is NaN."""

    name = "mutant_masked_by_zero"
    expected: ClassVar[frozenset[str]] = WRONG
    trigger: ClassVar[Trigger] = BATCHED

    def quantise(self, prepared: Batched, rows: Tensor, count: int) -> Tensor:
        value = super().quantise(prepared, rows, count).clone()
        if count % 2 and count < len(value):
            value[count - 1] += 0.0 * value[count]
        return value


class TilesStoredWhole(EmulatedCuteDslBatched, Broken):
    """The last tile of an expert is stored whole, over the first rows of the next expert."""

    name = "mutant_tiles_stored_whole"
    expected: ClassVar[frozenset[str]] = WRONG
    trigger: ClassVar[Trigger] = BATCHED

    def kernel(self, prepared: Batched, x: Tensor, counts: Tensor, out: Tensor) -> None:
        super().kernel(prepared, x, counts, out)
        for expert, count in enumerate(counts.tolist()[:-1]):
            spilt = -(-count // TILE) * TILE - out.shape[1]
            if count and spilt > 0:
                out[expert + 1, :spilt] = 0.0


class InterleavedBy32(EmulatedCuteDsl, Broken):
    """Gate and up are interleaved in the blocks of the SM90 kernel, 32 rows, where this one has 64."""

    name = "mutant_interleaved_by_32"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = WIDE

    def interleave(self, up: Tensor, gate: Tensor) -> Tensor:
        half = INTERLEAVE // 2
        return torch.cat([block for pair in zip(up.split(half, 1), gate.split(half, 1), strict=True) for block in pair], 1)


class GateInterleavedFirst(EmulatedCuteDsl, Broken):
    """The blocks of gate come before those of up."""

    name = "mutant_gate_interleaved_first"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = WIDE

    def interleave(self, up: Tensor, gate: Tensor) -> Tensor:
        return super().interleave(gate, up)


class ScalesNotInterleaved(EmulatedCuteDsl, Broken):
    """The rows of the weights are interleaved, and their scales are left as they were."""

    name = "mutant_scales_not_interleaved"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = {**WIDE, "recipe": "fp8_per_tensor"}

    def interleave_scales(self, up: Tensor | None, gate: Tensor | None) -> Tensor | None:
        return None if up is None or gate is None else torch.cat([up, gate], 1)


class GlobalScalesMixed(EmulatedCuteDsl, Broken):
    """Takes the larger one of the global scales of w1 and w3 for both, and does not quantise the weights again."""

    name = "mutant_global_scales_mixed"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = {"recipe": "nvfp4", "shape": {"hidden_size": 96, "intermediate_size": 64}}

    def interleave_scales(self, up: Tensor | None, gate: Tensor | None) -> Tensor | None:
        if up is None or gate is None:
            return None
        larger = torch.maximum(up, gate)
        return self.interleave(larger, larger)


#: What stands for ``flashinfer.fused_moe`` of the pinned release, which has no ``cute_dsl_fused_moe`` (0.7.4 has it).
PINNED = SimpleNamespace(__version__="0.6.6", cute_dsl_fused_moe_nvfp4=None)


class KernelMissing(EmulatedCuteDsl, Broken):
    """Says that it is available, and needs an entry point that the pinned release does not have (vllm#38050)."""

    name = "mutant_kernel_missing"
    expected: ClassVar[frozenset[str]] = frozenset({"crash"})

    def prepare(self, weights: Weights, case: Case) -> Standard:
        entry = "cute_dsl_fused_moe"
        if not hasattr(PINNED, entry):
            raise ImportError(f"flashinfer-python {PINNED.__version__} has no flashinfer.fused_moe.{entry}")
        return super().prepare(weights, case)


BROKEN_CUTEDSL: tuple[type[Broken], ...] = (
    BatchedRebound, MaskedRowsCombined, MaskedByZero, TilesStoredWhole, InterleavedBy32, GateInterleavedFirst,
    ScalesNotInterleaved, GlobalScalesMixed, KernelMissing)
