"""The gain rule: is the answer, or one expert's part of it, scaled?

A wrong scale moves every element a little and in the same direction, which element and block rules do not see when each
shift is below its own limit. The projection of the error on the answer sees it: with s = y*/S and z the normalised error,
gain = <z, s> / <s, s> is the relative scale error, and its healthy standard deviation follows from the variance map (the
matched filter of detection theory). For one expert, s is that expert's weighted contribution over S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moeguard.oracle.limits import Limits
from moeguard.oracle.reference import Reference, hidden_variance
from moeguard.oracle.slots import grouped_product

#: Relative scale error that is never reported: healthy kernels may truncate sums or approximate functions with a bias.
ALLOWANCE = 2.0**-10
#: Root mean square of s below which a direction says nothing: there the answer is lost in what may underflow.
INFORMATIVE = 2.0
#: Accumulator roundoffs of bias that a low-precision accumulator may add.
TRUNCATION = 4


@dataclass(frozen=True, slots=True)
class Gain:
    """Scale errors and their limits: of the whole answer (index 0) and of each expert with slots (index 1 on).

    value, limit float64 [1 + experts]; expert: global ids [experts].
    """

    value: Tensor
    limit: Tensor
    expert: Tensor

    @property
    def failed(self) -> bool:
        """Whether any scale error is beyond its limit."""
        return bool((self.value.abs() > self.limit).any())

    def numbers(self) -> dict[str, Any]:
        """The whole answer's scale error, and that of the expert that is worst against its limit."""
        found: dict[str, Any] = {"gain": float(self.value[0]), "gain_limit": float(self.limit[0])}
        if len(self.expert):
            worst = int((self.value[1:].abs() / self.limit[1:]).argmax())
            found |= {"gain_expert": int(self.expert[worst]), "expert_gain": float(self.value[1 + worst]),
                      "expert_gain_limit": float(self.limit[1 + worst])}
        return found


class GainRule:
    """Directions and healthy deviations of one reference, computed when the first error is not plainly small."""

    def __init__(self, reference: Reference, inverse: Tensor, limits: Limits) -> None:
        self._reference, self._inverse = reference, inverse
        slots = reference.slots
        self._whole = reference.y * inverse
        self._experts, self._group = torch.unique(slots.expert, return_inverse=True)
        self._parts = reference.expert_output * slots.weight[:, None] * inverse[slots.token]
        power = self._sum_by_expert(self._parts.square().sum(1))
        self._power = torch.cat([self._whole.square().sum()[None], power])
        sizes = torch.cat([(inverse > 0).sum()[None].double(), self._sum_by_expert((inverse > 0).double().sum(1)[slots.token])])
        self._power = torch.where(self._power >= INFORMATIVE**2 * sizes, self._power, 0.0)
        self._floor = ALLOWANCE + TRUNCATION * (reference.numerics.u_acc if reference.numerics.u_acc > 1e-6 else 0.0)
        self._tau = math.sqrt(2 * math.log(2 * len(self._power) / limits.alpha))
        self._limit: Tensor | None = None

    def measure(self, z: Tensor) -> Gain:
        """Scale errors of the normalised error ``z`` [T, H]."""
        along = self._sum_by_expert((z[self._reference.slots.token] * self._parts).sum(1))
        value = torch.cat([(z * self._whole).sum()[None], along]) / self._power.clamp_min(1e-300)
        value = torch.where(self._power > 0, value, 0.0)
        expert = self._experts + self._reference.problem.case.first_expert
        if bool((value.abs() <= self._floor).all()):
            return Gain(value, torch.full_like(value, self._floor), expert)
        if self._limit is None:
            self._limit = self._floor + self._tau * self._deviation()
        return Gain(value, self._limit, expert)

    def _sum_by_expert(self, value: Tensor) -> Tensor:
        return value.new_zeros(len(self._experts)).index_add_(0, self._group, value)

    def _deviation(self) -> Tensor:
        """Healthy standard deviation of each scale error.

        Errors of the intermediate reach a direction d through W2 transposed: variance sum v * (w * W2^T (d / S))^2,
        exact for the whole answer and for an expert's own slots. Everything else: see _apart.
        """
        reference, slots = self._reference, self._reference.slots
        together = slots.together()
        influence = (slots.weight * together).abs()[:, None]
        variance = hidden_variance(reference.numerics, reference.hidden, reference.hidden_scale, reference.noise,
                                   reference.edges) * influence
        down, seen = reference.problem.weights.down, self._inverse[slots.token]

        def through(direction: Tensor) -> Tensor:
            return (variance * grouped_product(direction * seen, down, slots, transform="backward").square()).sum(1)

        whole = through(self._whole[slots.token]).sum()[None]
        own = self._sum_by_expert(through(self._parts))
        total = torch.cat([whole, own]) + self._apart(slots.copies(together))
        if reference.swing is not None:  # all at once
            at_once = reference.swing * seen
            own = self._sum_by_expert((at_once * self._parts).sum(1))
            total += torch.cat([(at_once * self._whole[slots.token]).sum()[None], own]).square()
        return total.sqrt() / self._power.clamp_min(1e-300)

    def _apart(self, copies: Tensor) -> Tensor:
        """Variance of the roundings of expert outputs, combine and answer along each direction, [1 + experts].

        Those of different elements are independent; copies of an expert share theirs. Exact operands have few values, and equal
        values are rounded alike.
        """
        if self._reference.problem.case.exact:
            return torch.cat([self._whole.abs().sum()[None], self._sum_by_expert(self._parts.abs().sum(1))]).square()
        return torch.cat([self._whole.square().sum()[None], self._sum_by_expert(self._parts.square().sum(1) * copies)])
