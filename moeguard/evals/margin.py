"""Not worse by more than a margin: the exact unconditional test for paired answers, and the upper bound on the drop.

n questions, of which b are right in the baseline alone (losses) and c in the candidate alone (gains); the drop is
p10 - p01, estimated by (b - c)/n. The statistic is the score of Tango (Statistics in Medicine 17 (1998) 891): it holds at
small b + c, also at 0, where the normal and the bootstrap interval collapse. Its p-value is the largest over the rate of gains,
which is unknown (Hsueh, Liu and Chen, Biometrics 57 (2001) 478), so that the error rate is kept and not only approached.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special, stats

Array = npt.NDArray[np.float64]
#: Rates of gains at which the p-value is looked for; denser where they are small.
GRID = 48
#: Standard deviations of the number of losses beyond which nothing is summed.
FAR = 8.0


def score(losses: npt.ArrayLike, gains: npt.ArrayLike, questions: int, drop: float) -> Array:
    """Tango's statistic for a true drop of ``drop``: about standard normal under it, low when the drop is smaller."""
    b, c, n = np.asarray(losses, dtype=float), np.asarray(gains, dtype=float), float(questions)
    linear = -b - c + (2 * n - b + c) * drop
    constant = -c * drop * (1 - drop)
    rate = (np.sqrt(np.maximum(linear**2 - 8 * n * constant, 0.0)) - linear) / (4 * n)
    spread = np.sqrt(np.maximum(n * (2 * rate + drop * (1 - drop)), 1e-12))
    result: Array = (b - c - n * drop) / spread
    return result


def p_value(losses: int, gains: int, questions: int, margin: float) -> float:
    """The largest chance of so low a score when the true drop is ``margin``. Raises ValueError for impossible counts."""
    if not 0 < margin < 1 or min(losses, gains) < 0 or losses + gains > questions:
        raise ValueError(f"{losses} losses, {gains} gains, {questions} questions, margin {margin}: impossible")
    return size(float(score(losses, gains, questions, margin)), questions, margin)


@lru_cache(maxsize=512)
def size(limit: float, questions: int, margin: float) -> float:
    """The largest chance, over the rate of gains, of a score of at most ``limit`` when the true drop is ``margin``."""
    fewest = fewest_gains(limit, questions, margin)
    rates = (1 - margin) / 2 * np.linspace(0.0, 1.0, GRID) ** 2
    return max(chance(fewest, questions, rate + margin, rate) for rate in rates)


def fewest_gains(limit: float, questions: int, margin: float) -> npt.NDArray[np.int64]:
    """For 0 to n losses the smallest number of gains with a score of at most ``limit``; one too many where there is none."""
    losses = np.arange(questions + 1)
    low, high = np.zeros(questions + 1, dtype=np.int64), questions - losses + 1
    while np.any(low < high):
        middle = (low + high) // 2
        met = (score(losses, np.minimum(middle, questions - losses), questions, margin) <= limit + 1e-9) | (
            middle > questions - losses)
        low, high = np.where(met, low, middle + 1), np.where(met, middle, high)
    return low


def chance(fewest: npt.NDArray[np.int64], questions: int, loss_rate: float, gain_rate: float) -> float:
    """The chance of at least ``fewest[b]`` gains beside b losses, for these rates a question."""
    middle, spread = questions * loss_rate, np.sqrt(questions * loss_rate * (1 - loss_rate))
    losses = np.arange(max(0, int(middle - FAR * spread) - 8), min(questions, int(middle + FAR * spread) + 8) + 1)
    share = 0.0 if loss_rate >= 1 else min(1.0, gain_rate / (1 - loss_rate))
    rest = questions - losses
    weight = np.exp(special.gammaln(questions + 1) - special.gammaln(losses + 1) - special.gammaln(rest + 1)
                    + special.xlogy(losses, loss_rate) + special.xlog1py(rest, -loss_rate))
    return float(np.sum(weight * special.bdtrc(fewest[losses] - 1, rest, share)))


@lru_cache(maxsize=64)
def limit(questions: int, margin: float, alpha: float) -> float:
    """The score at or below which "not worse by more than ``margin``" is said with an error rate of at most ``alpha``."""
    low, high = float(stats.norm.ppf(alpha)) - 3.0, float(stats.norm.ppf(alpha)) + 0.5
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if size(middle, questions, margin) <= alpha else (low, middle)
    return low


def upper_bound(losses: int, gains: int, questions: int, alpha: float = 0.05) -> float:
    """The largest true drop that the answers do not exclude at error rate ``alpha``, to 1e-4."""
    low, high = max(0.0, (losses - gains) / questions), 1.0 - 1e-6
    if low == 0.0 and p_value(losses, gains, questions, 1e-4) <= alpha:
        return 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if p_value(losses, gains, questions, middle) <= alpha else (middle, high)
    return high
