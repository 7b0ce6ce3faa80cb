"""Mutants whose answer depends on earlier calls, and mutants that do not keep what their traits declare."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from moeguard.backends.protocol import Traits
from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.mutants.base import Call, Mutant, Prepared, Slots, Trigger
from moeguard.tensors.operand import Batch, Weights

STALE = frozenset({"stale_state"})
#: One call in this many is hit by the race.
RACE_ONE_IN = 50


class PreviousOutput(Mutant):
    """Copies its buffer to ``out`` before the kernel has filled it: the previous call's answer on this shape."""

    name = "mutant_previous_output"
    expected: ClassVar[frozenset[str]] = STALE

    def __init__(self) -> None:
        super().__init__()
        self._previous: dict[torch.Size, Tensor] = {}

    def write(self, call: Call, value: Tensor) -> None:
        call.out.copy_(self._previous.get(value.shape, value))
        self._previous[value.shape] = value


class CachedAnswer(Mutant):
    """Replays a captured answer by shape, with the inputs of the capture (vllm#52383)."""

    name = "mutant_cached_answer"
    expected: ClassVar[frozenset[str]] = STALE

    def __init__(self) -> None:
        super().__init__()
        self._captured: dict[torch.Size, Tensor] = {}

    def write(self, call: Call, value: Tensor) -> None:
        call.out.copy_(self._captured.setdefault(value.shape, value))


class CachedRouting(Mutant):
    """Keeps the row map of the first call on a shape."""

    name = "mutant_cached_routing"
    expected: ClassVar[frozenset[str]] = frozenset({"stale_state", "metamorphic"})

    def __init__(self) -> None:
        super().__init__()
        self._maps: dict[tuple[object, ...], Slots] = {}

    def route(self, call: Call) -> Slots:
        key = (*call.ids.shape, *call.prepared.down.shape)
        if key not in self._maps:
            self._maps[key] = super().route(call)
        return self._maps[key]


class CachedWeights(Mutant):
    """Caches prepared weights by shape alone, so another layer's weights are served."""

    name = "mutant_cached_weights"
    expected: ClassVar[frozenset[str]] = frozenset({"mismatch", "metamorphic"})

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[tuple[object, ...], Prepared] = {}

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        key = (case.recipe, case.activation, case.parallel, case.weights.bias, weights.down.data.shape)
        if key not in self._held:
            self._held[key] = super().prepare(weights, case)
        return self._held[key]


class CounterNotReset(Mutant):
    """A persistent accumulator that is zeroed when it is allocated, and never again (vllm#13140, sglang#3339)."""

    name = "mutant_counter_not_reset"
    expected: ClassVar[frozenset[str]] = frozenset({"mismatch", "stale_state", "nondeterministic"})

    def __init__(self) -> None:
        super().__init__()
        self._sums: dict[torch.Size, Tensor] = {}

    def write(self, call: Call, value: Tensor) -> None:
        total = self._sums.setdefault(value.shape, torch.zeros_like(value)).add_(value)
        call.out.copy_(total)


class FirstCallWrong(Mutant):
    """The first call on a shape runs before its tables are filled; every later one is right."""

    name = "mutant_first_call_wrong"
    expected: ClassVar[frozenset[str]] = frozenset({"mismatch", "nondeterministic"})

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[torch.Size] = set()

    def write(self, call: Call, value: Tensor) -> None:
        call.out.copy_(value if value.shape in self._seen else value * 0.5)
        self._seen.add(value.shape)


class StaleRows(Mutant):
    """Slots of other ranks add the row that an earlier call left in the table (flashinfer#3011, fixed half-way)."""

    name = "mutant_stale_rows"
    expected: ClassVar[frozenset[str]] = frozenset({"stale_state", "metamorphic"})
    trigger: ClassVar[Trigger] = {"parallel": {"ep_size": 2, "ep_rank": 0}}

    def __init__(self) -> None:
        super().__init__()
        self._tables: dict[tuple[int, int], Tensor] = {}

    def combine(self, call: Call, slots: Slots, outputs: Tensor) -> Tensor:
        width = outputs.shape[1]
        table = self._tables.setdefault((call.ids.numel(), width), outputs.new_zeros(call.ids.numel(), width))
        table[slots.slot] = outputs
        return (table.view(*call.ids.shape, width) * call.router_weights[:, :, None]).sum(1)


class RacyTile(Mutant):
    """About one call in fifty reads a tile before it is complete (sglang#9392, NVIDIA/cutlass#2162)."""

    name = "mutant_racy_tile"
    expected: ClassVar[frozenset[str]] = frozenset({"mismatch", "nondeterministic", "stale_state", "metamorphic"})

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(2)

    def write(self, call: Call, value: Tensor) -> None:
        if int(torch.randint(RACE_ONE_IN, (), generator=self._generator)) == 0:
            value[-32:, :64] *= 0.5
        call.out.copy_(value)


class FalseDeterminism(Mutant):
    """Adds experts in the order in which they finish, in 16 bits as declared, yet claims determinism (vllm#56887)."""

    name = "mutant_false_determinism"
    expected: ClassVar[frozenset[str]] = frozenset({"nondeterministic"})
    trigger: ClassVar[Trigger] = {"shape": {"top_k": 3}}

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(1)

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        recipe = Numerics.of(case.recipe)
        return Numerics(recipe.input, recipe.intermediate, "none", "fp32", "output")

    def ranks(self, call: Call, top_k: int) -> list[int]:
        order: list[int] = torch.randperm(top_k, generator=self._generator).tolist()
        return order


class FalseBatchInvariance(Mutant):
    """Chooses its rounding of expert outputs by batch size, yet claims batch invariance (vllm#36488)."""

    name = "mutant_false_batch_invariance"
    expected: ClassVar[frozenset[str]] = frozenset({"batch_variance"})

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(invalid_ids="drop", batch_invariant=True)

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        recipe = Numerics.of(case.recipe)
        return Numerics(recipe.input, recipe.intermediate, "bf16")

    def expert(self, call: Call, expert: int, rows: Tensor) -> Tensor:
        if call.ids.shape[0] > 1:
            return super().expert(call, expert, rows)
        gate = self.project(call, "gate", expert, rows)
        up = None if call.prepared.up is None else self.project(call, "up", expert, rows)
        return self.project(call, "down", expert, self.quantise(call, self.activate(call, gate, up)))


class StickyCap(Mutant):
    """A cached class method sets the token cap of the tuner, so a cap that was asked for before does nothing (flashinfer)."""

    name = "mutant_sticky_cap"
    expected: ClassVar[frozenset[str]] = STALE

    def tuning_caps(self, prepared: Prepared, batch: Batch, caps: Sequence[int]) -> Sequence[int]:
        class Runner:
            cap = 0

            @classmethod
            @cache
            def refine(cls, cap: int) -> None:
                cls.cap = cap

        found = []
        for cap in caps:
            Runner.refine(cap)
            found.append(Runner.cap)
        return found


BROKEN_STATE: tuple[type[Mutant], ...] = (
    PreviousOutput, CachedAnswer, CachedRouting, CachedWeights, CounterNotReset, FirstCallWrong, StaleRows, RacyTile,
    FalseDeterminism, FalseBatchInvariance, StickyCap)
