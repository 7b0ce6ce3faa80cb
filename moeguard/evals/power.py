"""Before a run: how large a drop it can find, and how likely it is to show that there is none beyond the margin."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from moeguard.evals import margin as noninferiority

#: Error rate and power that a plan is made for.
ALPHA, POWER = 0.05, 0.8
#: Disagreements that a plan is made for when none was measured.
USUAL = (0.01, 0.05, 0.1)


def harm_power(questions: int, disagreement: float, drop: float, alpha: float = ALPHA) -> float:
    """The chance that the exact McNemar test finds a true ``drop``.

    disagreement: share of the questions that are right in one arm alone. The number of these m is binomial, and of m each is
    a loss with probability (disagreement + drop) / (2 disagreement).
    """
    m = np.arange(questions + 1)
    weight = stats.binom.pmf(m, questions, disagreement)
    kept = m[weight > 1e-12]
    # fewest losses b of m that reject: P(B >= b) <= alpha for a fair coin
    fewest = stats.binom.isf(alpha, kept, 0.5).astype(int) + 1
    return float(np.sum(weight[kept] * stats.binom.sf(fewest - 1, kept, (disagreement + drop) / (2 * disagreement))))


def detectable(questions: int, disagreement: float, power: float = POWER, alpha: float = ALPHA) -> float | None:
    """The smallest drop that is found with this ``power``; None when even flips that all go one way are not enough."""
    if harm_power(questions, disagreement, disagreement, alpha) < power:
        return None
    low, high = 0.0, disagreement
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (low, middle) if harm_power(questions, disagreement, middle, alpha) >= power else (middle, high)
    return high


def margin_power(questions: int, disagreement: float, margin: float, drop: float = 0.0, alpha: float = ALPHA) -> float:
    """The chance of the verdict "not worse by more than ``margin``" at a true ``drop``."""
    fewest = noninferiority.fewest_gains(noninferiority.limit(questions, margin, alpha), questions, margin)
    return noninferiority.chance(fewest, questions, (disagreement + drop) / 2, (disagreement - drop) / 2)


@dataclass(frozen=True, slots=True)
class Plan:
    """What n questions can tell at a disagreement between the arms (both shares of the questions).

    detectable: smallest drop that is found with 80 % power, None when there is none. margin_power: the chance to show that an
    equal candidate is not worse by more than ``margin``.
    """

    questions: int
    disagreement: float
    margin: float
    detectable: float | None
    margin_power: float

    @classmethod
    def of(cls, questions: int, disagreement: float, margin: float) -> Plan:
        """The plan; a disagreement of less than one question counts as one question."""
        rate = min(1.0, max(disagreement, 1 / questions))
        return cls(questions, rate, margin, detectable(questions, rate), margin_power(questions, rate, margin))

    @property
    def sentence(self) -> str:
        """One sentence for people."""
        found = "no drop is found with 80 % power" if self.detectable is None else (
            f"a drop of {100 * self.detectable:.2f} points is found with 80 % power")
        return (f"{self.questions} questions, {100 * self.disagreement:.1f} % answered differently: {found}; that an equal "
                f"candidate is not worse by more than {100 * self.margin:g} points is shown with {100 * self.margin_power:.0f} %")

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return asdict(self) | {"sentence": self.sentence}
