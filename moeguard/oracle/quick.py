"""The quick judge: what the judge's rules ask, in float32 and without waiting for the device. What it flags, the judge decides.

It serves executions of a call that the judge has passed already, so rules about the whole answer (gain, ratio) are left out:
they see a systematic error, which the first execution shows as well.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moeguard.oracle.blocks import RULES, sums
from moeguard.oracle.judge import Judge
from moeguard.quant.formats import round_to

#: Columns of a measurement: each a share of its limit, so that a healthy answer has at most 1.
SHARES = ("finite", "element", *RULES)
_LARGEST = 1e37


class QuickJudge:
    """Measures answers against one reference."""

    def __init__(self, judge: Judge) -> None:
        reference, plan = judge.reference, judge.plan
        self._shape = reference.y.shape
        self._plan = plan
        self._judged = judge.inverse > 0
        self._tau = judge.limits.element(judge.judged)
        self._wanted = round_to(reference.y, reference.output.name).float() if reference.exact else None
        self._y = reference.y.float()
        self._weight = judge.inverse.float()
        self._energy = {rule: (plan.limit[rule] * plan.count[rule]).float() for rule in RULES if plan.count[rule].numel()}

    @staticmethod
    def fits(judge: Judge) -> bool:
        """Whether there is anything to judge, and float32 holds its numbers."""
        if not judge.judged:
            return False
        largest = torch.maximum(judge.inverse.max(), judge.reference.y.abs().nan_to_num(0.0, _LARGEST, _LARGEST).max())
        return bool(largest < _LARGEST)

    def measure(self, answer: Tensor) -> Tensor:
        """Shares of their limits, float32 [len(SHARES)], for ``answer`` [T, H] in the output dtype; above 1 is flagged.

        ``finite``: the number of judged elements that are not finite. A case with an exact answer has ``element`` alone: the
        number of elements that differ.
        """
        y = answer.reshape(self._shape).float()
        broken = (~torch.isfinite(y) & self._judged).sum(dtype=torch.float32)
        if self._wanted is not None:
            differing = ((y != self._wanted) & self._judged).sum(dtype=torch.float32) * 2  # one is beyond the limit
            return torch.stack([broken * 2, differing, *[torch.zeros_like(broken)] * len(RULES)])
        z = torch.where(self._judged & torch.isfinite(y), (y - self._y) * self._weight, 0.0)
        totals = sums(z.square(), self._plan)
        shares = [(totals[rule] / self._energy[rule]).nan_to_num(0.0).amax() if rule in self._energy else torch.zeros_like(broken)
                  for rule in RULES]
        return torch.stack([broken * 2, z.abs().amax() / self._tau, *shares])
