"""Healthy variants that are right because of what they declare: rounding points, traits, refusals."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from moeguard.backends.protocol import Backend, Refused, Support, Traits
from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.core.recipe import RECIPES
from moeguard.mutants.base import Call, Pipeline, Prepared, Slots, rounded
from moeguard.mutants.split import Split
from moeguard.tensors.operand import Batch, Weights


class HealthyTacticNumerics(Split):
    """Tactic ``thirds`` stores the experts' outputs in bf16 and declares it; without a witness."""

    name = "healthy_tactic_numerics"

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        recipe = Numerics.of(case.recipe)
        return replace(recipe, expert_output="bf16") if tactic == "thirds" else recipe

    def executed_tactic(self) -> Hashable | None:
        return None


class HealthyNarrowCombine(Pipeline):
    """Adds a token's experts in the dtype of ``out`` and declares it."""

    name = "healthy_narrow_combine"

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        return replace(Numerics.of(case.recipe), combine="output")


class HealthyNarrowOutputs(Pipeline):
    """Stores the experts' outputs in bf16, after the router weight in float32, and declares it."""

    name = "healthy_narrow_outputs"

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        return replace(Numerics.of(case.recipe), expert_output="bf16")

    def expert(self, call: Call, expert: int, rows: Tensor) -> Tensor:
        plain = replace(call, numerics=replace(call.numerics, expert_output="none"))
        return super().expert(plain, expert, rows)

    def combine(self, call: Call, slots: Slots, outputs: Tensor) -> Tensor:
        weighted = rounded(outputs * call.router_weights.reshape(-1)[slots.slot, None], "bf16", None)
        total = outputs.new_zeros(call.ids.shape[0], outputs.shape[1])
        return total.index_add_(0, slots.token, weighted)


class HealthyTwoRoundings(Pipeline):
    """Stores the intermediate in 16 bits before it is quantised, and declares the chain."""

    name = "healthy_two_roundings"

    def supports(self, case: Case) -> Support:
        return super().supports(case) if "fp8" in case.recipe else Support.no("FP8 recipes only")

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        recipe = Numerics.of(case.recipe)
        return replace(recipe, intermediate="bf16+" + recipe.intermediate.removeprefix("bf16+"), expert_output="bf16")


class HealthyPrecise(Pipeline):
    """Keeps the intermediate in float32 where its recipe would round it to 16 bits."""

    name = "healthy_precise"

    def supports(self, case: Case) -> Support:
        wide = RECIPES[case.recipe].numerics.intermediate in ("bf16", "fp16")
        return super().supports(case) if wide else Support.no("recipes with an intermediate of 16 bits only")

    def quantise(self, call: Call, hidden: Tensor) -> Tensor:
        return hidden


class HealthyRandomOrder(Pipeline):
    """Adds in another random order on every call and declares that it is not deterministic."""

    name = "healthy_random_order"

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(0)

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(deterministic=False, invalid_ids="drop")

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        return replace(Numerics.of(case.recipe), combine="bf16")

    def product(self, call: Call, which: str, rows: Tensor, matrix: Tensor) -> Tensor:
        order = torch.randperm(rows.shape[1], generator=self._generator).to(rows.device)
        return rows[:, order] @ matrix[:, order].T

    def ranks(self, call: Call, top_k: int) -> list[int]:
        order: list[int] = torch.randperm(top_k, generator=self._generator).tolist()
        return order


class HealthyRowWise(Pipeline):
    """Computes every slot on its own, so a token's bits do not depend on its batch, and declares it."""

    name = "healthy_row_wise"

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(invalid_ids="drop", batch_invariant=True)

    def product(self, call: Call, which: str, rows: Tensor, matrix: Tensor) -> Tensor:
        return torch.stack([matrix @ row for row in rows])

    def combine(self, call: Call, slots: Slots, outputs: Tensor) -> Tensor:
        table = outputs.new_zeros(call.ids.numel(), outputs.shape[1])
        table[slots.slot] = outputs
        parts = table.view(*call.ids.shape, -1)
        total = torch.zeros_like(parts[:, 0])
        for rank in range(parts.shape[1]):
            total = total + parts[:, rank] * call.router_weights[:, rank, None]
        return total


class HealthyRefusing(Pipeline):
    """Supports FP8 without biases only, and refuses unusual ids, empty batches and row gaps before it writes."""

    name = "healthy_refusing"

    def supports(self, case: Case) -> Support:
        if "fp8" not in case.recipe:
            return Support.no("FP8 recipes only")
        return Support.no("no biases") if case.weights.bias else super().supports(case)

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(invalid_ids="unsupported", duplicate_ids="unsupported", zero_tokens="unsupported",
                      noncontiguous="unsupported")

    def begin(self, prepared: Prepared, batch: Batch, out: Tensor, tactic: Hashable | None,
              workspace: Tensor | None) -> Call:
        call = super().begin(prepared, batch, out, tactic, workspace)
        if not out.shape[0]:
            raise ValueError("num_tokens must be positive")
        if not (batch.x.data.is_contiguous() and out.is_contiguous()):
            raise ValueError("rows must be contiguous")
        ids = call.ids.sort(1).values
        if bool(((ids < 0) | (ids >= call.case.shape.num_experts)).any()):
            raise Refused("expert id out of range")
        if bool((ids[:, 1:] == ids[:, :-1]).any()):
            raise NotImplementedError("a token lists an expert twice")
        return call


@dataclass(frozen=True, slots=True)
class Released(Prepared):
    """release: whose layout it is. 1 holds down transposed, 2 holds up in place of gate and gate in place of up, 3 is current."""

    release: int = 3


class HealthyLayouts(Pipeline):
    """Knows the layout of its weights: refuses those of release 1, and reads those of release 2 as they are meant."""

    name = "healthy_layouts"

    def prepare(self, weights: Weights, case: Case) -> Released:
        plain = super().prepare(weights, case)
        return Released(case, plain.gate, plain.up, plain.down, weights)

    def foreign_layouts(self, weights: Weights, case: Case) -> Mapping[str, Released]:
        own = self.prepare(weights, case)
        first = replace(own, down=own.down.transpose(1, 2).contiguous(), release=1)
        second = own if own.up is None else replace(own, gate=own.up, up=own.gate, release=2)
        return {"transposed as for release 1": first, "ordered as for release 2": second}

    def begin(self, prepared: Prepared, batch: Batch, out: Tensor, tactic: Hashable | None,
              workspace: Tensor | None) -> Call:
        assert isinstance(prepared, Released)
        if prepared.release == 1:
            raise Refused("these weights are in the layout of release 1")
        if prepared.release == 2 and prepared.up is not None:
            prepared = replace(prepared, gate=prepared.up, up=prepared.gate)
        return super().begin(prepared, batch, out, tactic, workspace)


HEALTHY_DECLARATIONS: tuple[type[Backend], ...] = (
    HealthyTacticNumerics, HealthyNarrowCombine, HealthyNarrowOutputs, HealthyTwoRoundings, HealthyPrecise,
    HealthyRandomOrder, HealthyRowWise, HealthyRefusing, HealthyLayouts)
