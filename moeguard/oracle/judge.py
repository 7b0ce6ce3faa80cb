"""The judge: one answer against its reference, by every rule, with the place and the size of the worst error."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moeguard.core.numerics import Numerics
from moeguard.oracle.blocks import RULES, BlockPlan, plan_blocks, sums
from moeguard.oracle.cap import cap
from moeguard.oracle.decode import decode
from moeguard.oracle.flips import flip_limit
from moeguard.oracle.gain import GainRule
from moeguard.oracle.limits import CONFIRMING_TWINS, Limits, few_twins
from moeguard.oracle.reference import Reference, make_reference, roundoff
from moeguard.oracle.twins import each_twin
from moeguard.quant.formats import round_to

#: Rules whose exceedance alone must be confirmed by more twins and by a second seed.
SOFT_RULES = frozenset({*RULES, "gain", "global"})
#: Rows of an execution that get the sharper limit, at most.
SHARP_ROWS = 4
#: Roundoff of e4m3. An intermediate of e2m1, whose roundoff is four times as large, makes S as much larger and the z of a defect
#: smaller; the floor of the sharper limit follows.
COARSE = 2.0**-4


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the rules say of one answer.

    failed: names of the rules that failed, out of ``finite element exact row tile column expert gain global``.
    numbers: the record: counts, max_z with its place, worst blocks with their limits, rms_z, rho, ...
    confirmed: more twins were asked already, and the exceedance stood.
    """

    failed: tuple[str, ...] = ()
    numbers: dict[str, Any] = field(default_factory=dict)
    confirmed: bool = False

    @property
    def passed(self) -> bool:
        """No rule failed."""
        return not self.failed

    @property
    def soft(self) -> bool:
        """Only block, gain or ratio rules failed: a candidate, not yet a finding."""
        return bool(self.failed) and SOFT_RULES.issuperset(self.failed)


class Judge:
    """Judges answers against one reference; what is shared by its answers (limits, twins) is computed once.

    rows: the rows of an answer that the reference holds, int64 [n] ascending; None when it holds all. rules: those that count,
    None for all.
    """

    def __init__(self, reference: Reference, limits: Limits | None = None, rows: Tensor | None = None,
                 rules: frozenset[str] | None = None) -> None:
        self.reference, self.rows, self.rules = reference, rows, rules
        self.limits = limits or Limits()
        self._twins: dict[int, np.ndarray[Any, np.dtype[np.float64]]] = {}

    def partner(self, reference: Reference, rows: Tensor | None = None) -> Judge:
        """The judge of a partner problem whose healthy errors are the same up to order and a power of two."""
        judge = Judge(reference, self.limits, rows)
        judge._twins = self._twins
        return judge

    @cached_property
    def gain(self) -> GainRule:
        """The gain rule of this reference."""
        return GainRule(self.reference, self.inverse, self.limits)

    @cached_property
    def plan(self) -> BlockPlan:
        """Blocks and their limits."""
        return plan_blocks(self.reference, self.limits)

    @cached_property
    def inverse(self) -> Tensor:
        """1/S where the answer is judged, 0 elsewhere, [T, H]."""
        weight = self.reference.deviation.reciprocal()
        if self.reference.defined is not None:
            weight = weight * self.reference.defined
        if self.reference.valid is not None:
            weight = weight * self.reference.valid[:, None]
        return weight

    @cached_property
    def judged(self) -> int:
        """Number of elements that are judged."""
        return int((self.inverse > 0).sum())

    @cached_property
    def informative(self) -> float:
        """Share of judged elements with |y*| > S; near 0 means that the case can show little."""
        return float(((self.reference.y * self.inverse).abs() > 1).sum()) / max(self.judged, 1)

    def twin_energies(self, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Mean z^2 of ``count`` twins, [count]."""
        if count not in self._twins:
            energies = [float(self.normalised(twin).square().sum()) for twin in each_twin(self.reference, count, seed=count)]
            self._twins[count] = np.asarray(energies) / max(self.judged, 1)
        return self._twins[count]

    def cut(self, answer: Tensor) -> Tensor:
        """The rows of ``answer`` [T, H] (or any shape with as many rows of H) that the reference holds."""
        answer = answer.reshape(-1, self.reference.y.shape[1])
        return answer if self.rows is None else answer[self.rows]

    def judge(self, answer: Tensor) -> Judgement:
        """Judge ``answer`` [T, H] (or any shape with as many rows of H) in the output dtype."""
        reference = self.reference
        if self.judged == 0:
            return Judgement(numbers={"elements": 0})
        y = self.cut(answer).double()
        z = (y - reference.y) * self.inverse
        if not bool(torch.isfinite(z).all()):
            broken = ~torch.isfinite(y) & (self.inverse > 0)
            z = torch.where(self.inverse > 0, z, torch.zeros_like(z))
            if bool(broken.any()):
                return self._not_finite(broken)
        if reference.exact:
            wanted = round_to(reference.y, reference.output.name)
            return self._exact(y, wanted, z)
        energy = z.square()
        index = int(z.abs().argmax())
        row, column = divmod(index, z.shape[1])
        biggest = float(z[row, column])
        mean = float(energy.sum()) / self.judged
        tau = self.limits.element(self.judged)
        numbers: dict[str, Any] = {
            "elements": self.judged, "max_z": abs(biggest), "max_z_row": self.row(row), "max_z_column": column, "tau": tau,
            "rms_z": math.sqrt(mean), "got": float(y[row, column]), "wanted": float(reference.y[row, column])}
        failed = ["element"] if abs(biggest) > tau else []
        failed += self._blocks(energy, numbers)
        scale = self.gain.measure(z)
        numbers |= scale.numbers()
        if scale.failed:
            failed.append("gain")
        if self._ratio(mean, numbers):
            failed.append("global")
        failed = [rule for rule in failed if self.rules is None or rule in self.rules]
        if failed:
            numbers |= self._proof(y)
        return Judgement(tuple(failed), numbers)

    def confirms(self, answer: Tensor, judgement: Judgement) -> bool:
        """Whether a soft exceedance stands against CONFIRMING_TWINS twins of this very problem."""
        if judgement.confirmed:
            return True
        z = self.normalised(self.cut(answer).double())
        energy, gain = z.square(), self.gain.measure(z)
        gains = torch.zeros_like(gain.value)
        rules = [rule for rule in RULES if rule in judgement.failed]
        totals, most, energies = sums(energy, self.plan), sums(torch.zeros_like(energy), self.plan), []
        for twin in each_twin(self.reference, CONFIRMING_TWINS, seed=CONFIRMING_TWINS):
            error = self.normalised(twin)
            of_twin = error.square()
            gains = torch.maximum(gains, self.gain.measure(error).value.abs())
            energies.append(float(of_twin.sum()) / self.judged)
            if rules:
                sizes = sums(of_twin, self.plan)
                most = {rule: torch.maximum(most[rule], sizes[rule]) for rule in RULES}
        if "global" in judgement.failed:
            known, mean = np.asarray(energies) + self.reference.underflow, float(energy.sum()) / self.judged
            if mean > max(self.limits.ratio_floor**2, self.limits.twin_ratio(known, self.judged) ** 2 * float(known.mean())):
                return True
        exceeded = (gain.value.abs() > gain.limit) & (gain.value.abs() > self.limits.ratio * gains)
        if "gain" in judgement.failed and bool(exceeded.any()):
            return True
        for rule in rules:
            count = self.plan.count[rule]
            exceeded = totals[rule] > self._limit(rule, totals[rule] / count.clamp_min(1.0)) * count
            if bool((exceeded & (totals[rule] > self.limits.ratio**2 * most[rule])).any()):
                return True
        return False

    def explained_by_finer(self, answer: Tensor) -> Numerics | None:
        """Rounding points finer than declared under which ``answer`` is right, or None.

        A kernel that keeps more bits than its recipe asks for is not wrong; what it declares is.
        """
        for numerics in self.reference.numerics.finer_variants():
            if Judge(make_reference(self.reference.problem, numerics), self.limits, self.rows, self.rules).judge(answer).passed:
                return numerics
        return None

    def normalised(self, answer: Tensor) -> Tensor:
        """(answer - y*) / S where judged, else 0, for an answer that is ``cut``."""
        return torch.where(self.inverse > 0, (answer - self.reference.y) * self.inverse, 0.0)

    def _blocks(self, energy: Tensor, numbers: dict[str, Any]) -> list[str]:
        failed = []
        totals = sums(energy, self.plan)
        for rule in RULES:
            if not totals[rule].numel():
                continue
            mean = totals[rule] / self.plan.count[rule].clamp_min(1.0)
            limit = self._limit(rule, mean)
            excess = mean / limit
            worst = int(excess.argmax())
            if not float(excess[worst]):
                worst = int(mean.argmax())
            numbers[f"{rule}_rms"] = math.sqrt(float(mean[worst]))
            numbers[f"{rule}_limit"] = math.sqrt(float(limit[worst]))
            numbers[f"worst_{rule}"] = self._name(rule, worst)
            if float(excess[worst]) > 1.0:
                failed.append(rule)
        return failed

    def _limit(self, rule: str, mean: Tensor) -> Tensor:
        """Limits on ``mean`` z^2 of each block; rows between the floor and their limit get the sharper one of flips."""
        limit = self.plan.limit[rule]
        if rule != "row":
            return limit
        last = self.reference.numerics.intermediate.rsplit("+", 1)[-1]
        floor = (self.limits.block * COARSE / max(roundoff(last), COARSE)) ** 2
        between = ((mean > floor) & (mean <= limit) & torch.isfinite(limit)).nonzero()[:, 0]
        if not len(between):
            return limit
        limit = limit.clone()
        level = self.limits.first_look / self.plan.blocks
        for row in between[torch.argsort(mean[between], descending=True)[:SHARP_ROWS]].tolist():
            limit[row] = min(float(limit[row]), max(floor, flip_limit(self.reference, row, level)))
        return limit

    def _name(self, rule: str, index: int) -> Any:
        if rule == "tile":
            row, column = divmod(index, self.plan.tile_columns)
            return [self.row(row * self.limits.tile) // self.limits.tile, column]
        if rule == "expert":
            return int(self.plan.experts[index]) + self.reference.problem.case.first_expert
        return self.row(index) if rule == "row" else index

    def row(self, index: int) -> int:
        """The row of the answer that is row ``index`` of the reference; of a tile of sampled rows it is the first."""
        return index if self.rows is None else int(self.rows[index])

    def _ratio(self, mean: float, numbers: dict[str, Any]) -> bool:
        count = few_twins(self.reference.y.shape[0])
        worst = float(self.twin_energies(count).max())
        numbers |= {"twins": count, "twin_rms": math.sqrt(worst)}
        worst += self.reference.underflow
        if worst == 0:
            numbers["rho"] = 0.0 if mean == 0 else None
            return mean > self.limits.ratio_floor**2
        rho = math.sqrt(mean / worst)
        numbers["rho"] = rho
        return rho > self.limits.ratio and mean > self.limits.ratio_floor**2

    def _proof(self, y: Tensor) -> dict[str, Any]:
        bound = cap(self.reference)
        if isinstance(bound, str):
            return {"label": "statistical", "cap": bound}
        beyond = ((y - self.reference.y).abs() > bound) & (self.inverse > 0)
        return {"label": "proven" if bool(beyond.any()) else "statistical", "beyond_cap": int(beyond.sum())}

    def _not_finite(self, broken: Tensor) -> Judgement:
        return Judgement(("finite",), {"elements": self.judged, "nonfinite": int(broken.sum())} | self._first_of(broken))

    def _first_of(self, wrong: Tensor) -> dict[str, Any]:
        """The place of the first element of ``wrong`` (bool [T, H]), which proves the answer wrong."""
        index, column = divmod(int(wrong.reshape(-1).double().argmax()), wrong.shape[1])
        row, tile = self.row(index), self.limits.tile
        return {"worst_row": row, "worst_column": column, "worst_tile": [row // tile, column // tile],
                "worst_expert": self._expert_of(wrong), "label": "proven"}

    def _expert_of(self, broken: Tensor) -> int | None:
        """The expert whose rows hold the largest share of broken elements."""
        if not len(self.plan.experts):
            return None
        share = sums(broken.double(), self.plan)["expert"] / self.plan.count["expert"].clamp_min(1.0)
        return int(self.plan.experts[int(share.argmax())]) + self.reference.problem.case.first_expert

    def _exact(self, y: Tensor, wanted: Tensor, z: Tensor) -> Judgement:
        wrong = (y != wanted) & (self.inverse > 0)
        numbers: dict[str, Any] = {"elements": self.judged, "exact": True, "differing": int(wrong.sum()),
                                   "max_z": float(z.abs().max())}
        if not numbers["differing"]:
            return Judgement((), numbers)
        numbers |= self._first_of(wrong)
        index, column = divmod(int(wrong.reshape(-1).double().argmax()), wrong.shape[1])
        numbers |= {"got": float(y[index, column]), "wanted": float(wanted[index, column]),
                    "decoded": decode(self.reference, y, wrong)}
        return Judgement(("exact",), numbers)
