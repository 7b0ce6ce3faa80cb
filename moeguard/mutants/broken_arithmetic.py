"""Mutants that compute something else: activations, tails, biases, tiles, row ranges."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from moeguard.mutants.base import Call, Mutant, Trigger, swiglu_oai

MISMATCH = frozenset({"mismatch"})


class GateUpSwapped(Mutant):
    """Takes the first half of the fused projection for up and the second for gate (flashinfer#3334 class: layout)."""

    name = "mutant_gate_up_swapped"
    expected: ClassVar[frozenset[str]] = MISMATCH

    def activate(self, call: Call, gate: Tensor, up: Tensor | None) -> Tensor:
        return super().activate(call, gate, None) if up is None else super().activate(call, up, gate)


class LimitIgnored(Mutant):
    """Ignores the clamp of the clamped SwiGLU (vllm#41935)."""

    name = "mutant_limit_ignored"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = {"activation": {"kind": "swiglu_oai", "limit": 1.0}}

    def activate(self, call: Call, gate: Tensor, up: Tensor | None) -> Tensor:
        spec = call.case.activation
        if spec.kind != "swiglu_oai" or up is None:
            return super().activate(call, gate, up)
        return swiglu_oai(gate, up, spec.alpha, spec.beta, None)


class LimitSymmetric(Mutant):
    """Clamps the gate from below as well, where only the upper limit is due (vllm#42855)."""

    name = "mutant_limit_symmetric"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = {"activation": {"kind": "swiglu_oai", "limit": 0.5}}

    def activate(self, call: Call, gate: Tensor, up: Tensor | None) -> Tensor:
        limit = call.case.activation.limit
        return super().activate(call, gate if limit is None else gate.clamp(min=-limit), up)


class AlphaBetaSwapped(Mutant):
    """Passes alpha and beta of the clamped SwiGLU in the wrong order."""

    name = "mutant_alpha_beta_swapped"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = {"activation": {"kind": "swiglu_oai"}}

    def activate(self, call: Call, gate: Tensor, up: Tensor | None) -> Tensor:
        spec = call.case.activation
        if spec.kind != "swiglu_oai" or up is None:
            return super().activate(call, gate, up)
        alpha, beta = 1.702 if spec.alpha is None else spec.alpha, 1.0 if spec.beta is None else spec.beta
        return swiglu_oai(gate, up, beta, alpha, spec.limit)


class TanhForErf(Mutant):
    """Uses the tanh approximation where the exact GELU is due."""

    name = "mutant_tanh_for_erf"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = {"recipe": "fp16", "activation": {"kind": "geglu"}}

    def activate(self, call: Call, gate: Tensor, up: Tensor | None) -> Tensor:
        if call.case.activation.kind not in ("geglu", "gelu"):
            return super().activate(call, gate, up)
        value = functional.gelu(gate, approximate="tanh")
        return value if up is None else value * up


class InnerTailDropped(Mutant):
    """The second product skips the last, partial block of 16 along I (flashinfer#2907)."""

    name = "mutant_inner_tail_dropped"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = {"shape": {"intermediate_size": 72}}

    def product(self, call: Call, which: str, rows: Tensor, matrix: Tensor) -> Tensor:
        if which == "down":
            width = rows.shape[1] // 16 * 16
            rows, matrix = rows[:, :width], matrix[:, :width]
        return super().product(call, which, rows, matrix)


class HiddenTailDropped(Mutant):
    """The first product skips the ragged last tile of 64 along H (vllm#42436)."""

    name = "mutant_hidden_tail_dropped"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = {"shape": {"hidden_size": 72}}

    def product(self, call: Call, which: str, rows: Tensor, matrix: Tensor) -> Tensor:
        if which != "down":
            width = max(64, rows.shape[1] // 64 * 64)
            rows, matrix = rows[:, :width], matrix[:, :width]
        return super().product(call, which, rows, matrix)


class BiasForgotten(Mutant):
    """Leaves out the bias of the up projection."""

    name = "mutant_bias_forgotten"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = {"weights": {"bias": True}}

    def bias(self, call: Call, which: str, expert: int) -> Tensor | None:
        return None if which == "up" else super().bias(call, which, expert)


class BiasOfFirstExpert(Mutant):
    """Adds the first expert's down bias for every expert: a missing stride."""

    name = "mutant_bias_of_first_expert"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = {"weights": {"bias": True}}

    def bias(self, call: Call, which: str, expert: int) -> Tensor | None:
        return super().bias(call, which, 0 if which == "down" else expert)


class AllZero(Mutant):
    """Returns success and zeros (flashinfer#5053, flashinfer#2952)."""

    name = "mutant_all_zero"
    expected: ClassVar[frozenset[str]] = MISMATCH

    def write(self, call: Call, value: Tensor) -> None:
        call.out.zero_()


class WrongTile(Mutant):
    """One 64-column tile of one row block loses a quarter of its sum (NVIDIA/cutlass#2162)."""

    name = "mutant_wrong_tile"
    expected: ClassVar[frozenset[str]] = MISMATCH

    def write(self, call: Call, value: Tensor) -> None:
        value[:16, -64:] *= 0.75
        call.out.copy_(value)


class WrongElement(Mutant):
    """One single output element of the whole batch is off by an eighth."""

    name = "mutant_wrong_element"
    expected: ClassVar[frozenset[str]] = MISMATCH

    def write(self, call: Call, value: Tensor) -> None:
        largest = int(value.abs().argmax())
        value.view(-1)[largest] *= 1.125
        call.out.copy_(value)


class LargeBatch(Mutant):
    """Beyond 256 tokens the rows of the second pass come from the first (flashinfer#4588: wrong for large T only)."""

    name = "mutant_large_batch"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = {"shape": {"num_tokens": 300}}

    def write(self, call: Call, value: Tensor) -> None:
        extra = value.shape[0] - 256
        if extra > 0:
            value[256:] = value[torch.arange(extra) % 256]
        call.out.copy_(value)


class RaggedRows(Mutant):
    """An expert's rows after its last whole block of 16 are skipped (vllm#28220)."""

    name = "mutant_ragged_rows"
    expected: ClassVar[frozenset[str]] = MISMATCH
    trigger: ClassVar[Trigger] = {"shape": {"num_tokens": 33}, "routing": {"kind": "one_expert"}}

    def expert(self, call: Call, expert: int, rows: Tensor) -> Tensor:
        value = super().expert(call, expert, rows)
        if rows.shape[0] > 16:
            value[rows.shape[0] // 16 * 16:] = 0.0
        return value


BROKEN_ARITHMETIC: tuple[type[Mutant], ...] = (
    GateUpSwapped, LimitIgnored, LimitSymmetric, AlphaBetaSwapped, TanhForErf, InnerTailDropped, HiddenTailDropped,
    BiasForgotten, BiasOfFirstExpert, AllZero, WrongTile, WrongElement, LargeBatch, RaggedRows)
