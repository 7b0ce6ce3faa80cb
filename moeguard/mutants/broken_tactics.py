"""Mutants with a bad tactic, a witness that disagrees, or a tuner that picks what it must not."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from moeguard.backends.protocol import VacuousTuning
from moeguard.core.case import Case
from moeguard.mutants.base import Call, Mutant, Prepared, Trigger
from moeguard.mutants.split import Split
from moeguard.tensors.operand import Batch, Weights

BAD_TACTIC = frozenset({"bad_tactic"})


class TacticWrongTile(Split, Mutant):
    """The split-K tactic loses a partial sum in one tile; the default is right (flashinfer#3197)."""

    name = "mutant_tactic_wrong_tile"
    expected: ClassVar[frozenset[str]] = BAD_TACTIC

    def write(self, call: Call, value: Tensor) -> None:
        if call.tactic == "halves":
            value[:32, :32] *= 0.5
        call.out.copy_(value)


class TacticNotFinite(Split, Mutant):
    """One tactic yields NaN in its last column (flashinfer#4486)."""

    name = "mutant_tactic_not_finite"
    expected: ClassVar[frozenset[str]] = frozenset({"bad_tactic", "non_finite"})

    def write(self, call: Call, value: Tensor) -> None:
        if call.tactic == "thirds":
            value[:, -1] = torch.nan
        call.out.copy_(value)


class TacticUnwritten(Split, Mutant):
    """One tactic leaves the last row of an odd batch unwritten."""

    name = "mutant_tactic_unwritten"
    expected: ClassVar[frozenset[str]] = frozenset({"unwritten_output"})
    trigger: ClassVar[Trigger] = {"shape": {"num_tokens": 9}}

    def write(self, call: Call, value: Tensor) -> None:
        rows = value.shape[0] // 2 * 2 if call.tactic == "thirds" else value.shape[0]
        call.out[:rows] = value[:rows]


class TacticRaises(Split, Mutant):
    """One offered tactic cannot run this problem (flashinfer#4157, flashinfer#3614)."""

    name = "mutant_tactic_raises"
    expected: ClassVar[frozenset[str]] = frozenset({"crash"})

    def compute(self, call: Call) -> Tensor:
        if call.tactic == "halves":
            raise RuntimeError("no kernel image for tactic halves")
        return super().compute(call)


class DefaultWrong(Split, Mutant):
    """The untuned default is wrong, every tuned tactic right (flashinfer#4588)."""

    name = "mutant_default_wrong"
    expected: ClassVar[frozenset[str]] = frozenset({"mismatch"})

    def write(self, call: Call, value: Tensor) -> None:
        if call.tactic == "whole":
            value[0] *= 0.5
        call.out.copy_(value)


class TacticIgnored(Split, Mutant):
    """Runs the default whatever is forced, and says so."""

    name = "mutant_tactic_ignored"
    expected: ClassVar[frozenset[str]] = frozenset({"tactic_not_executed"})

    def begin(self, prepared: Prepared, batch: Batch, out: Tensor, tactic: Hashable | None,
              workspace: Tensor | None) -> Call:
        return super().begin(prepared, batch, out, None, workspace)


class PairShifted(Mutant):
    """Of a (gemm1, gemm2) pair, the second index is shifted by the count of the first (flashinfer#3661)."""

    name = "mutant_pair_shifted"
    expected: ClassVar[frozenset[str]] = frozenset({"tactic_not_executed"})

    def tactics(self, prepared: Prepared, batch: Batch) -> tuple[Hashable, ...]:
        return tuple((first, second) for first in range(2) for second in range(3))

    def begin(self, prepared: Prepared, batch: Batch, out: Tensor, tactic: Hashable | None,
              workspace: Tensor | None) -> Call:
        shifted = tactic
        if isinstance(tactic, tuple):
            shifted = (tactic[0], (tactic[1] + 2) % 3)
        return super().begin(prepared, batch, out, (0, 0) if shifted is None else shifted, workspace)


class TunedUnlisted(Split, Mutant):
    """The tuner picks a fast configuration that is not listed and skips half of K (vllm#41524 class)."""

    name = "mutant_tuned_unlisted"
    expected: ClassVar[frozenset[str]] = frozenset({"autotune_mismatch"})

    def tune(self, prepared: Prepared, batch: Batch) -> Hashable | None:
        return "fast"

    def begin(self, prepared: Prepared, batch: Batch, out: Tensor, tactic: Hashable | None,
              workspace: Tensor | None) -> Call:
        if tactic != "fast":
            return super().begin(prepared, batch, out, tactic, workspace)
        return Call(prepared, batch, out, tactic, workspace, self.numerics(prepared.case, tactic))

    def product(self, call: Call, which: str, rows: Tensor, matrix: Tensor) -> Tensor:
        if call.tactic != "fast":
            return super().product(call, which, rows, matrix)
        half = rows.shape[1] // 2
        return rows[:, :half] @ matrix[:, :half].T


class TuneLeaks(Split, Mutant):
    """Tuning leaves its last profiled configuration active, so later untuned calls run it."""

    name = "mutant_tune_leaks"
    expected: ClassVar[frozenset[str]] = frozenset({"autotune_mismatch", "stale_state", "metamorphic"})

    def __init__(self) -> None:
        super().__init__()
        self._profiled = False

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        self._profiled = False
        return super().prepare(weights, case)

    def tune(self, prepared: Prepared, batch: Batch) -> Hashable | None:
        self._profiled = True
        return "halves"

    def write(self, call: Call, value: Tensor) -> None:
        if self._profiled and call.tactic == "whole":
            value *= 0.5
        call.out.copy_(value)


class TuningProvesNothing(Split, Mutant):
    """The clock of the tuner is missing, so that every tactic is skipped and the default stays."""

    name = "mutant_tuning_proves_nothing"
    expected: ClassVar[frozenset[str]] = frozenset({"vacuous_autotune"})

    def tune(self, prepared: Prepared, batch: Batch) -> Hashable | None:
        seconds: dict[str, float] = {}
        for choice in self.choices:
            try:
                seconds[choice] = self._time(choice)
            except RuntimeError:
                continue
        if not seconds:
            raise VacuousTuning(f"each of the {len(self.choices)} tactics failed while it was timed")
        return min(seconds, key=seconds.__getitem__)

    def _time(self, tactic: str) -> float:
        raise RuntimeError("the timing kernel cannot be built")


BROKEN_TACTICS: tuple[type[Mutant], ...] = (
    TacticWrongTile, TacticNotFinite, TacticUnwritten, TacticRaises, DefaultWrong, TacticIgnored, PairShifted,
    TunedUnlisted, TuneLeaks, TuningProvesNothing)
