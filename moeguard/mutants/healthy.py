"""Healthy variants that compute in another way: orders of summation, layouts, caches, workspaces, passes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from moeguard.backends.protocol import Backend, Support
from moeguard.core.case import Case
from moeguard.mutants.base import Call, Pipeline, Prepared, Slots
from moeguard.mutants.split import Split
from moeguard.tensors.operand import Batch, Operand, Weights


@cache
def buckets(cap: int) -> tuple[int, ...]:
    """Token counts up to ``cap`` that are tuned for; without a side effect, so remembering them is harmless."""
    return (*(1 << exponent for exponent in range(cap.bit_length() - 1)), cap)


class HealthyPlain(Pipeline):
    """The pipeline as it is."""

    name = "healthy_plain"


class HealthyReversed(Pipeline):
    """Visits experts, and adds a token's experts, from last to first."""

    name = "healthy_reversed"

    def route(self, call: Call) -> Slots:
        slots = super().route(call)
        return replace(slots, groups=slots.groups[::-1])

    def combine(self, call: Call, slots: Slots, outputs: Tensor) -> Tensor:
        tokens, top_k = call.ids.shape
        table = outputs.new_zeros(tokens * top_k, outputs.shape[1])
        table[slots.slot] = outputs
        weighted = table.view(tokens, top_k, -1) * call.router_weights[:, :, None]
        total = torch.zeros_like(weighted[:, 0])
        for rank in reversed(range(top_k)):  # in a fixed order: index_add_ uses atomics on a GPU
            total += weighted[:, rank]
        return total


class HealthyPermuted(Pipeline):
    """Sums along H and I in a fixed random order."""

    name = "healthy_permuted"

    def product(self, call: Call, which: str, rows: Tensor, matrix: Tensor) -> Tensor:
        order = torch.randperm(rows.shape[1], generator=torch.Generator().manual_seed(rows.shape[1])).to(rows.device)
        return rows[:, order] @ matrix[:, order].T


class HealthyTactics(Split):
    """Three equal tactics with a witness; tuning picks one of them by shape."""

    name = "healthy_tactics"

    def tune(self, prepared: Prepared, batch: Batch) -> Hashable | None:
        return self.choices[batch.x.shape[0] % len(self.choices)]


class HealthyTuning(Split):
    """Its tuner passes over a tactic that cannot be timed, and works with the cap that was asked for last."""

    name = "healthy_tuning"

    def tune(self, prepared: Prepared, batch: Batch) -> Hashable | None:
        return next(choice for choice in reversed(self.choices) if choice != "thirds")

    def tuning_caps(self, prepared: Prepared, batch: Batch, caps: Sequence[int]) -> Sequence[int]:
        class Runner:
            cap = 0

            @classmethod
            def refine(cls, cap: int) -> None:
                cls.cap = buckets(cap)[-1]

        found = []
        for cap in caps:
            Runner.refine(cap)
            found.append(Runner.cap)
        return found


class HealthyCaching(Pipeline):
    """Keeps prepared weights by identity and scratch by shape, and clears what it reuses."""

    name = "healthy_caching"
    kept: ClassVar[int] = 4

    def __init__(self) -> None:
        super().__init__()
        self._held: OrderedDict[tuple[int, Case], Prepared] = OrderedDict()
        self._tables: dict[tuple[int, int], Tensor] = {}

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        key = (id(weights), case)  # a held entry keeps its weights alive, so the identity stays unique
        if key not in self._held:
            self._held[key] = super().prepare(weights, case)
            if len(self._held) > self.kept:
                self._held.popitem(last=False)
        return self._held[key]

    def combine(self, call: Call, slots: Slots, outputs: Tensor) -> Tensor:
        shape = (call.ids.numel(), outputs.shape[1])
        table = self._tables.setdefault(shape, outputs.new_empty(shape)).zero_()
        table[slots.slot] = outputs
        return (table.view(*call.ids.shape, -1) * call.router_weights[:, :, None]).sum(1)


class HealthyWorkspace(Pipeline):
    """Gathers into a caller-owned workspace and fills all of it before it reads; allocates when there is none."""

    name = "healthy_workspace"

    def workspace_bytes(self, prepared: Prepared, batch: Batch) -> int:
        assert batch.topk_ids is not None
        return 4 * batch.topk_ids.numel() * batch.x.shape[1]

    def combine(self, call: Call, slots: Slots, outputs: Tensor) -> Tensor:
        if call.workspace is None:
            return super().combine(call, slots, outputs)
        table = call.workspace.view(torch.float32).view(call.ids.numel(), outputs.shape[1]).zero_()
        table[slots.slot] = outputs
        return (table.view(*call.ids.shape, -1) * call.router_weights[:, :, None]).sum(1)


@dataclass(frozen=True, slots=True)
class Fused(Prepared):
    """fused [E_local, H, 2 I]: up and gate side by side, transposed."""

    fused: Tensor


class HealthyFused(Pipeline):
    """Concatenates up and gate into one transposed weight and runs one product for both."""

    name = "healthy_fused"

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        plain = super().prepare(weights, case)
        parts = [plain.gate] if plain.up is None else [plain.up, plain.gate]
        fused = torch.cat(parts, 1).transpose(1, 2).contiguous()
        return Fused(plain.case, plain.gate, plain.up, plain.down, plain.source, fused)

    def expert(self, call: Call, expert: int, rows: Tensor) -> Tensor:
        assert isinstance(call.prepared, Fused)
        both = rows @ call.prepared.fused[expert]
        width = call.prepared.gate.shape[1]
        gate, up = both[:, -width:], None if call.prepared.up is None else both[:, :width]
        for which, value in (("gate", gate), ("up", up)):
            bias = self.bias(call, which, expert)
            if bias is not None and value is not None:
                value += bias
        return self.project(call, "down", expert, self.quantise(call, self.activate(call, gate, up)))


class HealthyLateScales(Pipeline):
    """Multiplies FP8 codes and scales the sums afterwards."""

    name = "healthy_late_scales"

    def supports(self, case: Case) -> Support:
        return super().supports(case) if case.recipe == "fp8_per_tensor" else Support.no("fp8_per_tensor only")

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        up = None if weights.up is None else weights.up.data.float()
        return Prepared(case, weights.gate.data.float(), up, weights.down.data.float(), weights)

    def inputs(self, call: Call) -> Tensor:
        return call.batch.x.data.float()

    def project(self, call: Call, which: str, expert: int, rows: Tensor) -> Tensor:
        operand: Operand = getattr(call.prepared.source, which)
        assert operand.scale is not None
        scale = operand.scale[expert]
        if which != "down":
            assert call.batch.x.scale is not None
            scale = scale * call.batch.x.scale
        value = self.product(call, which, rows, self.matrix(call, which, expert)) * scale
        bias = self.bias(call, which, expert)
        return value if bias is None else value + bias


class HealthyPadded(Pipeline):
    """Pads every expert's rows to one height, as a batched product wants it."""

    name = "healthy_padded"

    def expert(self, call: Call, expert: int, rows: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[0] % 16))
        return super().expert(call, expert, padded)[: rows.shape[0]]


class HealthyTwoPasses(Pipeline):
    """Runs more than eight tokens in two passes over the batch."""

    name = "healthy_two_passes"

    def run(self, prepared: Prepared, batch: Batch, out: Tensor, *, tactic: Hashable | None = None,
            workspace: Tensor | None = None) -> None:
        assert batch.topk_ids is not None and batch.topk_weights is not None
        half = out.shape[0] // 2 if out.shape[0] > 8 else 0
        for part in (slice(0, half), slice(half, None)):
            piece = replace(batch, x=batch.x.rows(part), topk_ids=batch.topk_ids[part], topk_weights=batch.topk_weights[part])
            super().run(prepared, piece, out[part], tactic=tactic, workspace=workspace)


HEALTHY_COMPUTATIONS: tuple[type[Backend], ...] = (
    HealthyPlain, HealthyReversed, HealthyPermuted, HealthyTactics, HealthyTuning, HealthyCaching, HealthyWorkspace, HealthyFused,
    HealthyLateScales, HealthyPadded, HealthyTwoPasses)
