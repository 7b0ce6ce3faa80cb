"""The paired statistics: exact values, and error rates and power against simulated runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from moeguard.evals import clusters, harm, margin, power

ALPHA = 0.05


def run(rng: np.random.Generator, runs: int, n: int, disagreement: float, drop: float) -> np.ndarray:
    """Losses and gains of ``runs`` spot checks, [runs, 2]."""
    rates = [(disagreement + drop) / 2, (disagreement - drop) / 2, 1 - disagreement]
    return rng.multinomial(n, rates, size=runs)[:, :2]


def losses_of(lost: int, gained: int) -> list[int]:
    return [1] * lost + [-1] * gained


def cluster_losses(rng: np.random.Generator, n: int, repeats: int, disagreement: float, drop: float, alike: float) -> list[int]:
    """Net losses of n questions; of a question that can differ, each repeat does with probability ``alike``, all one way."""
    differs = rng.random(n) < disagreement / alike
    lost = rng.random(n) < (disagreement + drop) / (2 * disagreement)
    number = rng.binomial(repeats, alike, size=n) * differs
    values: list[int] = np.where(lost, number, -number).tolist()
    return values


@pytest.mark.parametrize(("lost", "gained"), [(5, 0), (8, 2), (0, 7), (30, 12), (0, 0), (4, 4)])
def test_with_one_answer_a_question_it_is_mcnemar(lost: int, gained: int) -> None:
    expected = stats.binomtest(lost, lost + gained, 0.5, alternative="greater").pvalue if lost + gained else 1.0
    assert harm.p_value([*losses_of(lost, gained), 0, 0]) == pytest.approx(expected)


def test_repeats_are_no_questions() -> None:
    assert harm.p_value([3, 3]) == 0.25  # two questions, however often they were asked
    signs = [2, -1, 3, 1]  # all 16 signs of these sizes
    sums = [sum(size * sign for size, sign in zip((2, 1, 3, 1), one, strict=True))
            for one in np.array(np.meshgrid(*[[-1, 1]] * 4)).reshape(4, -1).T.tolist()]
    assert harm.p_value(signs) == pytest.approx(sum(one >= sum(signs) for one in sums) / 16)


@pytest.mark.parametrize(("n", "disagreement", "drop"), [
    (198, 0.05, 4.13), (198, 0.1, 5.80), (400, 0.03, 2.25), (1319, 0.01, 0.72), (1319, 0.05, 1.59), (1319, 0.2, 3.13)])
def test_detectable_drops_are_those_of_the_reference_table(n: int, disagreement: float, drop: float) -> None:
    found = power.detectable(n, disagreement)
    assert found is not None and 100 * found == pytest.approx(drop, abs=0.006)


def test_too_few_questions_find_nothing() -> None:
    assert power.detectable(198, 0.02) is None
    assert "no drop is found with 80 % power" in power.Plan.of(60, 0.02, 0.05).sentence


def test_no_difference_at_all_still_leaves_a_bound() -> None:
    for n in (60, 198):
        assert margin.upper_bound(0, 0, n) == pytest.approx(1 - ALPHA ** (1 / n), abs=2e-4)  # the rule of three
    assert clusters.interval([0] * 50) == (0.0, 0.0)  # what the bootstrap says of it


@pytest.mark.parametrize(("n", "allowed"), [(60, 0.05), (198, 0.05)])
def test_the_chance_of_a_false_not_worse_is_kept_whatever_the_rate_of_gains(n: int, allowed: float) -> None:
    fewest = margin.fewest_gains(margin.limit(n, allowed, ALPHA), n, allowed)
    sizes = [margin.chance(fewest, n, rate + allowed, rate) for rate in np.linspace(0, (1 - allowed) / 2, 101)]
    assert 0.03 < max(sizes) <= ALPHA + 0.001  # also between the rates that it was made from


def test_bound_and_test_say_the_same() -> None:
    n, allowed = 120, 0.05
    for lost, gained in ((0, 0), (1, 0), (2, 1), (4, 3), (6, 6), (3, 0)):
        inside = margin.p_value(lost, gained, n, allowed) <= ALPHA
        assert (margin.upper_bound(lost, gained, n) < allowed) == inside


def test_false_alarms_and_power_of_harm(runs: int = 4000) -> None:
    rng = np.random.default_rng(7)
    for n, disagreement in ((198, 0.1), (1319, 0.05)):
        alarms = np.mean([harm.p_value(losses_of(*one)) <= ALPHA for one in run(rng, runs, n, disagreement, 0.0).tolist()])
        assert alarms <= ALPHA + 2 * math.sqrt(ALPHA / runs)
        drop = power.detectable(n, disagreement)
        assert drop is not None
        found = np.mean([harm.p_value(losses_of(*one)) <= ALPHA for one in run(rng, runs, n, disagreement, drop).tolist()])
        assert found == pytest.approx(power.POWER, abs=0.02)


def test_false_and_true_not_worse(runs: int = 20_000) -> None:
    rng = np.random.default_rng(8)
    n, allowed, disagreement = 198, 0.05, 0.08
    limit = margin.limit(n, allowed, ALPHA)
    for drop, wanted in ((allowed, None), (0.0, power.margin_power(n, disagreement, allowed))):
        counts = run(rng, runs, n, disagreement, drop)
        said = np.mean(margin.score(counts[:, 0], counts[:, 1], n, allowed) <= limit)
        assert said <= ALPHA + 0.003 if wanted is None else said == pytest.approx(wanted, abs=0.02)


def test_looking_all_the_time_does_not_raise_false_alarms(runs: int = 400) -> None:
    rng = np.random.default_rng(9)
    stopped = 0
    for one in rng.choice([1, -1, 0], p=[0.05, 0.05, 0.9], size=(runs, 600)).tolist():
        stopped += any(harm.evidence(one[:end]) >= 100 for end in range(50, 601, 50))
    assert stopped / runs <= 0.01 + 2 * math.sqrt(0.01 / runs)
    assert harm.evidence([1] * 12) >= 100 > harm.evidence([1] * 3)  # and great harm ends a run early
    assert harm.evidence([-1] * 40) < 1  # but nothing good does


def test_coverage_with_repeats(runs: int = 60) -> None:
    rng = np.random.default_rng(10)
    missed = [clusters.upper_bound(cluster_losses(rng, 198, 3, 0.2, 0.05, 0.5), 3) < 0.05 for _ in range(runs)]
    assert np.mean(missed) <= ALPHA + 2 * math.sqrt(ALPHA / runs)
    few = [0] * 195 + [3, 1, -2]
    assert clusters.upper_bound(few, 3) == pytest.approx(stats.beta.isf(ALPHA, 3, 196))


@pytest.mark.soak
def test_error_rates_over_many_runs() -> None:
    test_false_alarms_and_power_of_harm(40_000)
    test_looking_all_the_time_does_not_raise_false_alarms(10_000)
    rng = np.random.default_rng(11)
    for n, repeats, disagreement, alike in ((198, 3, 0.1, 0.3), (198, 3, 0.2, 0.5), (198, 8, 0.2, 0.5), (594, 3, 0.1, 0.5)):
        for drop in (0.02, 0.05):
            missed = np.mean([clusters.upper_bound(cluster_losses(rng, n, repeats, disagreement, drop, alike), repeats) < drop
                              for _ in range(2000)])
            assert missed <= ALPHA + 2 * math.sqrt(ALPHA / 2000), (n, repeats, disagreement, alike, drop, missed)


@pytest.mark.soak
@pytest.mark.parametrize(("n", "allowed"), [(1319, 0.01), (1319, 0.02), (198, 0.02), (594, 0.05)])
def test_false_and_true_not_worse_over_many_runs(n: int, allowed: float) -> None:
    rng = np.random.default_rng(12)
    limit = margin.limit(n, allowed, ALPHA)
    for disagreement in (1.2 * allowed, 0.05, 0.1, 0.3):
        if disagreement <= allowed:
            continue
        for drop, most in ((allowed, ALPHA), (0.0, None)):
            counts = run(rng, 100_000, n, disagreement, drop)
            said = np.mean(margin.score(counts[:, 0], counts[:, 1], n, allowed) <= limit)
            wanted = power.margin_power(n, disagreement, allowed)
            assert said <= ALPHA + 0.002 if most else said == pytest.approx(wanted, abs=0.02)
