"""Healthy backends for weights with scales of groups: scales after the sums of a group, folded into e4m3 weights, or moved from
one global scale to another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from moeguard.backends.protocol import Backend, Support
from moeguard.core.case import Case
from moeguard.mutants.base import Call, Pipeline, Prepared, e4m3
from moeguard.tensors.operand import Operand, Weights

#: Values of e2m1 magnitudes; e8m0 bias.
E2M1, BIAS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0), 127


def nibbles(operand: Operand) -> Tensor:
    """Codes int64 [E, R, C], by arithmetic on bytes: the low nibble is the even column."""
    byte = operand.data.long()
    codes = byte.new_empty(*byte.shape[:-1], byte.shape[-1] * 2)
    codes[..., 0::2] = byte % 16
    codes[..., 1::2] = byte // 16
    return codes


def values(operand: Operand) -> Tensor:
    """Unscaled values float32 [E, R, C]."""
    if not operand.packed:
        return operand.data.float()
    codes = nibbles(operand)
    if operand.format == "int4":
        return (codes - 16 * (codes >= 8)).float()
    magnitude = torch.tensor(E2M1, device=codes.device)[codes % 8]
    return torch.where(codes >= 8, -magnitude, magnitude)


class HealthyGroupSums(Pipeline):
    """Sums unscaled products of each group and scales the sums."""

    name = "healthy_group_sums"

    def supports(self, case: Case) -> Support:
        fits = case.recipe in ("mxfp4_bf16", "mxfp4_fp8", "int4_fp8", "mxfp8", "nvfp4", "nvfp4_bf16")
        return super().supports(case) if fits else Support.no("weights with scales of groups only")

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        up = None if weights.up is None else values(weights.up)
        return Prepared(case, values(weights.gate), up, values(weights.down), weights)

    def project(self, call: Call, which: str, expert: int, rows: Tensor) -> Tensor:
        operand: Operand = getattr(call.prepared.source, which)
        assert operand.scale is not None
        stored = operand.scale[expert]
        scale = torch.exp2(stored.float() - BIAS) if stored.dtype == torch.uint8 else stored.float()
        matrix = self.matrix(call, which, expert)
        groups = scale.shape[1]
        total = rows.new_zeros(rows.shape[0], matrix.shape[0])
        for group, (left, right) in enumerate(zip(rows.chunk(groups, 1), matrix.chunk(groups, 1), strict=True)):
            total += self.product(call, which, left, right) * scale[:, group]
        if operand.global_scale is not None:
            total *= operand.global_scale[expert]
        bias = self.bias(call, which, expert)
        return total if bias is None else total + bias


@dataclass(frozen=True, slots=True)
class Folded(Prepared):
    """residual [E_local] of gate with up, and of down: what folded weights are multiplied by."""

    residual: dict[str, Tensor]


class HealthyFoldedScales(Pipeline):
    """Folds e8m0 scales into e4m3 weights and multiplies sums by one residual an expert, gate and up sharing theirs.

    e4m3 holds them exactly as long as the scales of an expert are at most 11 binades apart; raises RuntimeError beyond.
    """

    name = "healthy_folded_scales"

    def supports(self, case: Case) -> Support:
        return super().supports(case) if case.recipe == "mxfp4_fp8" else Support.no("mxfp4_fp8 only")

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        plain = super().prepare(weights, case)
        first = [weights.gate] if weights.up is None else [weights.gate, weights.up]
        shared, own = self._residual(first), self._residual([weights.down])
        up = None if plain.up is None else self._fold(plain.up, shared)
        return Folded(case, self._fold(plain.gate, shared), up, self._fold(plain.down, own), weights,
                      {"gate": shared, "up": shared, "down": own})

    def project(self, call: Call, which: str, expert: int, rows: Tensor) -> Tensor:
        assert isinstance(call.prepared, Folded)
        value = self.product(call, which, rows, self.matrix(call, which, expert)) * call.prepared.residual[which][expert]
        bias = self.bias(call, which, expert)
        return value if bias is None else value + bias

    @staticmethod
    def _residual(operands: list[Operand]) -> Tensor:
        least = torch.stack([operand.scale.flatten(1).amin(1) for operand in operands if operand.scale is not None]).amin(0)
        return torch.exp2(least.float() - BIAS + 6)

    @staticmethod
    def _fold(value: Tensor, residual: Tensor) -> Tensor:
        folded = value / residual.view(-1, 1, 1)
        if not torch.equal(e4m3(folded), folded):
            raise RuntimeError("the scales of an expert are too far apart for e4m3")
        return folded


class HealthyOneGlobalScale(Pipeline):
    """Gives gate and up the larger of their two global scales and shifts the e4m3 scales of the other, as kernels with one global
    scale an expert need it. Raises RuntimeError where e4m3 does not hold the result.
    """

    name = "healthy_one_global_scale"

    def supports(self, case: Case) -> Support:
        return super().supports(case) if case.recipe in ("nvfp4", "nvfp4_bf16") else Support.no("nvfp4 only")

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        if weights.up is not None:
            assert weights.gate.global_scale is not None and weights.up.global_scale is not None
            shared = torch.maximum(weights.gate.global_scale, weights.up.global_scale)
            weights = replace(weights, gate=self._moved(weights.gate, shared), up=self._moved(weights.up, shared))
        return super().prepare(weights, case)

    @staticmethod
    def _moved(operand: Operand, shared: Tensor) -> Operand:
        assert operand.scale is not None and operand.global_scale is not None
        scale = operand.scale.float() * (operand.global_scale / shared)[:, None, None]
        stored = scale.to(torch.float8_e4m3fn)
        if not torch.equal(stored.float(), scale):
            raise RuntimeError("the global scales of gate and up are too far apart for e4m3")
        return replace(operand, scale=stored, global_scale=shared)


HEALTHY_PACKED: tuple[type[Backend], ...] = (HealthyGroupSums, HealthyFoldedScales, HealthyOneGlobalScale)
