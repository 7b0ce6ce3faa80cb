"""The bound on a failure rate."""

from __future__ import annotations

import pytest

from moeguard.gate.confidence import lower_bound, runs_needed, upper_bound


@pytest.mark.parametrize(("runs", "bound"), [
    (100, 0.0295), (192, 0.0155), (300, 0.0099), (1000, 0.0030), (3000, 0.0010), (10000, 0.0003)])
def test_no_failure(runs: int, bound: float) -> None:
    assert upper_bound(0, runs) == pytest.approx(bound, abs=6e-5)
    assert upper_bound(0, runs) == pytest.approx(1 - 0.05 ** (1 / runs))


@pytest.mark.parametrize(("failures", "runs", "low", "high"), [
    (1, 10, 0.00512, 0.39416), (5, 10, 0.22244, 0.77756), (2, 100, 0.00357, 0.06162)])
def test_known_table(failures: int, runs: int, low: float, high: float) -> None:
    assert upper_bound(failures, runs) == pytest.approx(high, abs=1e-5)
    assert lower_bound(failures, runs) == pytest.approx(low, abs=1e-5)


def test_all_failed() -> None:
    assert upper_bound(7, 7) == 1.0
    assert lower_bound(0, 7) == 0.0


@pytest.mark.parametrize(("failures", "runs", "level"), [(0, 0, 0.95), (-1, 5, 0.95), (6, 5, 0.95), (0, 5, 1.0)])
def test_nothing_ran_or_impossible_counts_raise(failures: int, runs: int, level: float) -> None:
    with pytest.raises(ValueError, match=r"runs|failures|level"):
        upper_bound(failures, runs, level)


def test_runs_needed_is_three_over_the_rate() -> None:
    assert runs_needed(0.001) == pytest.approx(2995, abs=1)
    assert upper_bound(0, runs_needed(0.001)) <= 0.001
    with pytest.raises(ValueError, match="rate"):
        runs_needed(0.0)
