"""Is the candidate worse? The exact paired test at a fixed number of questions, and one that may look at any time.

Both are about net losses: of each question, how many more of its R answers were right in the baseline than in the candidate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import stats

#: Shares of the capital that a round of the betting martingale stakes; it plays all of them with an equal part each.
STAKES = np.linspace(0.02, 0.98, 49)


def p_value(losses: Sequence[int]) -> float:
    """One-sided p-value of "no net loss": the chance of so large a sum when the sign of each question's loss is a fair coin.

    With one answer a question this is the exact McNemar test (McNemar, Psychometrika 12 (1947)); with R of them the answers
    of one question stay together, so that repeats are not counted as questions. 1.0 when nothing differs.
    """
    sizes = Counter(abs(loss) for loss in losses if loss)
    chance = np.ones(1)
    for size, number in sizes.items():  # of the questions with this size, how many are losses rather than gains
        steps = np.zeros(size * number + 1)
        steps[::size] = stats.binom.pmf(np.arange(number + 1), number, 0.5)
        chance = np.convolve(chance, steps)
    positive = sum(loss for loss in losses if loss > 0)
    return min(1.0, float(chance[positive:].sum()))


def evidence(losses: Iterable[int], repeats: int = 1) -> float:
    """How many times the stake a gambler has now who bet on losses from the first question on, never on what came later.

    Under "no net loss" the chance that this ever reaches 1/a is at most a, at whatever time one looks (Ville's inequality;
    betting as in Waudby-Smith and Ramdas, JRSS-B 86 (2024)). repeats: answers a question, R.
    """
    sizes = Counter(losses)
    growth = sum((number * np.log1p(STAKES * loss / repeats) for loss, number in sizes.items()), np.zeros_like(STAKES))
    return float(np.exp(np.minimum(growth, 700.0)).mean())
