"""The sampled oracle: the same answer on its rows, and the stated chance to hit a defect."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy import stats
from small_cases import RECIPES, make_case, problem_of

from moeguard.core.numerics import Numerics
from moeguard.oracle.emulation import Emulation
from moeguard.oracle.judge import Judge
from moeguard.oracle.reference import make_reference
from moeguard.oracle.sampling import choose_rows, detection_probability, sampled


@pytest.mark.parametrize("recipe", RECIPES)
def test_sampled_rows_have_the_whole_problems_reference(recipe: str) -> None:
    problem = problem_of(make_case(recipe, (200, 64, 32, 8, 2), weights={"bias": True}))
    rows = choose_rows(problem, 40)
    whole, part = (make_reference(p, Numerics.of(recipe)) for p in (problem, sampled(problem, rows)))
    torch.testing.assert_close(part.y, whole.y[rows], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(part.deviation, whole.deviation[rows], rtol=1e-12, atol=0)
    answer = Emulation(0).run(problem, whole.numerics)
    assert Judge(part).judge(answer[rows]).passed
    answer[rows[7]] = 0
    judgement = Judge(part).judge(answer[rows])
    assert "row" in judgement.failed
    assert judgement.numbers["worst_row"] == 7


def test_rows_are_distinct_reproducible_and_follow_the_seed() -> None:
    problem = problem_of(make_case(shape=(300, 8, 8, 4, 2), seed=1))
    rows = choose_rows(problem, 64)
    assert len(set(rows.tolist())) == 64
    assert rows.tolist() == sorted(rows.tolist()) == choose_rows(problem, 64).tolist()
    other = problem_of(make_case(shape=(300, 8, 8, 4, 2), seed=2))
    assert choose_rows(other, 64).tolist() != rows.tolist()
    assert choose_rows(problem, 999).tolist() == list(range(300))


def test_padding_rows_of_the_batched_format_are_never_drawn() -> None:
    problem = problem_of(make_case(shape=(60, 16, 8, 4, 2), activation_format="batched", routing={"kind": "skewed"}))
    assert problem.valid is not None
    rows = choose_rows(problem, 20)
    assert bool(problem.valid[rows].all())
    assert make_reference(sampled(problem, rows), Numerics.of("bf16")).y.shape == (20, 16)


def test_a_defect_is_hit_as_often_as_stated() -> None:
    problem = problem_of(make_case(shape=(2048, 8, 8, 4, 2)))
    broken = torch.zeros(2048, dtype=torch.bool)
    broken[::128] = True  # a share of 1/128
    trials, hits = 400, 0
    for seed in range(trials):
        hits += bool(broken[choose_rows(replace(problem, case=problem.case.with_(seed=seed)), 96)].any())
    expected = detection_probability(1 / 128, 96)
    assert expected == pytest.approx(1 - (127 / 128) ** 96)
    assert stats.binomtest(hits, trials, expected).pvalue > 1e-4


@pytest.mark.parametrize(("share", "rows"), [(-0.1, 3), (1.5, 3), (0.1, -1)])
def test_impossible_shares_are_refused(share: float, rows: int) -> None:
    with pytest.raises(ValueError, match="share"):
        detection_probability(share, rows)
