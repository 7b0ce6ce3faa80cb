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
#: Largest value and largest 1/S that float32 is left to work with.
LARGEST = 1e37


class QuickJudge:
    """Measures answers against one reference.

    y float32 [T, H]: the reference, rounded to the output where the answer is ``exact``. weight float32 [T, H]: 1/S where the
    answer is judged, else 0. Both hold the ``rows`` of a sampled judge alone (None for all). energy: by rule, the sum of z^2 that
    each block may have, float32; infinite where there is no limit.
    """

    def __init__(self, judge: Judge) -> None:
        reference, self.plan = judge.reference, judge.plan
        self.cut, self.rows = judge.cut, judge.rows
        self.exact = reference.exact
        self.tau = judge.limits.element(judge.judged)
        self.y = (round_to(reference.y, reference.output.name) if self.exact else reference.y).float()
        self.weight = judge.inverse.clamp(max=LARGEST).float()
        self.energy = {rule: _limits(self.plan.limit[rule] * self.plan.count[rule]) for rule in RULES}

    @staticmethod
    def fits(judge: Judge) -> bool:
        """Whether there is anything to judge, and float32 holds it."""
        return judge.judged > 0 and bool(judge.reference.y.abs().max() < LARGEST)

    def measure(self, answer: Tensor) -> Tensor:
        """Shares of their limits, float32 [len(SHARES)], for ``answer`` [T, H] in the output dtype; above 1 is flagged.

        ``finite``: twice the number of judged elements that are not finite. A case with an exact answer has ``element`` alone:
        twice the number of elements that differ.
        """
        y = self.cut(answer).float()
        judged, finite = self.weight > 0, torch.isfinite(y)
        broken = 2 * (judged & ~finite).sum(dtype=torch.float32)
        if self.exact:
            wrong = 2 * (judged & (y != self.y)).sum(dtype=torch.float32)
            return torch.stack([broken, wrong, *[torch.zeros_like(broken)] * len(RULES)])
        z = torch.where(judged & finite, (y - self.y) * self.weight, 0.0)
        totals = sums(z.square(), self.plan)
        shares = [(totals[rule] / self.energy[rule]).amax() if totals[rule].numel() else torch.zeros_like(broken)
                  for rule in RULES]
        return torch.stack([broken, z.abs().amax() / self.tau, *shares])


def _limits(energy: Tensor) -> Tensor:
    return torch.where(energy > 0, energy, torch.inf).float()
