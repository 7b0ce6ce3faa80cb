"""What a number of clean cases proves: the Clopper-Pearson bound on a failure rate, and how often a rare bug shows.

Source: Clopper and Pearson, Biometrika 26 (1934). The bound speaks of the distribution that the cases were drawn from;
``runs`` counts distinct cases, never repeats of one.
"""

from __future__ import annotations

import math

from scipy import special  # scipy.stats takes half a second more to import


def upper_bound(failures: int, runs: int, level: float = 0.95) -> float:
    """One-sided upper bound on the failure rate after ``failures`` in ``runs`` distinct cases, at confidence ``level``.

    Zero failures give 1 - (1 - level)**(1/runs), about 3/runs. Raises ValueError when nothing ran or counts are impossible.
    """
    _check(failures, runs, level)
    return 1.0 if failures == runs else float(special.betainccinv(failures + 1, runs - failures, 1.0 - level))


def lower_bound(failures: int, runs: int, level: float = 0.95) -> float:
    """One-sided lower bound on the failure rate. Raises ValueError as ``upper_bound`` does."""
    _check(failures, runs, level)
    return 0.0 if failures == 0 else float(special.betaincinv(failures, runs - failures + 1, 1.0 - level))


def runs_needed(rate: float, level: float = 0.95) -> int:
    """Clean runs after which a failure rate of at least ``rate`` is excluded; also reruns that show a race of probability
    ``rate`` with confidence ``level``. Raises ValueError when ``rate`` or ``level`` is not within (0, 1)."""
    if not 0 < rate < 1 or not 0 < level < 1:
        raise ValueError(f"rate and level: {rate}, {level}; allowed: between 0 and 1")
    return math.ceil(math.log1p(-level) / math.log1p(-rate))


def _check(failures: int, runs: int, level: float) -> None:
    if runs <= 0:
        raise ValueError("runs: nothing was executed, so nothing is known")
    if not 0 <= failures <= runs:
        raise ValueError(f"failures: {failures}; allowed: 0 to {runs}")
    if not 0 < level < 1:
        raise ValueError(f"level: {level}; allowed: between 0 and 1")
