"""Several answers a question: the question is the unit that is drawn again, its answers stay together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy import stats

#: Draws of the bootstrap, and its seed: the same answers give the same interval.
DRAWS, SEED = 10_000, 20_240_229
#: Questions with a difference below which their sums are too far from normal.
FEW = 25
#: Share of the error rate at which the approximate bounds are taken.
STRICT = 0.7


def interval(losses: Sequence[int], repeats: float = 1, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the drop, two-sided, from the net losses of the questions with ``repeats`` answers each.

    It describes; no verdict rests on it alone: without a difference it has no width.
    """
    sizes = Counter(losses)
    values, numbers = np.array(list(sizes)), np.array(list(sizes.values()))
    n = len(losses)
    drawn = np.random.default_rng(SEED).multinomial(n, numbers / n, size=DRAWS)
    low, high = np.quantile(drawn @ values / (n * repeats), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def upper_bound(losses: Sequence[int], repeats: int, alpha: float = 0.05) -> float:
    """Upper bound on the drop at error rate ``alpha`` when there are several answers a question.

    The larger of the bootstrap's and that of Student's t over the questions' means, at STRICT times alpha, since both fall short
    of what they promise where the means are skewed (simulated in the tests). With fewer than FEW questions that differ,
    the Clopper-Pearson bound on the share of questions with a net loss, each taken as lost whole.
    """
    n = len(losses)
    if sum(loss != 0 for loss in losses) < FEW:
        lost = sum(loss > 0 for loss in losses)
        return 1.0 if lost == n else float(stats.beta.isf(alpha, lost + 1, n - lost))
    means = np.array(losses) / repeats
    student = means.mean() + stats.t.isf(STRICT * alpha, n - 1) * means.std(ddof=1) / np.sqrt(n)
    return max(float(student), interval(losses, repeats, 1 - 2 * STRICT * alpha)[1])
