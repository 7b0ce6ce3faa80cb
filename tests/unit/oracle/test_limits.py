"""Limits: the element level, the block limits by degrees of freedom, small and ragged shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from small_cases import RECIPES, make_case, reference_of

from moeguard.oracle.emulation import Emulation
from moeguard.oracle.flips import flip_limit
from moeguard.oracle.judge import Judge
from moeguard.oracle.limits import FEW_TWINS, MANY_TWINS, Limits, few_twins


def test_tau_at_the_reference_size() -> None:
    assert Limits().element(500_000) == pytest.approx(7.34, abs=0.01)


def test_gaussian_z_alarms_at_the_stated_rate() -> None:
    generator = torch.Generator().manual_seed(0)
    tau = Limits(alpha=0.01).element(500_000)
    alarms = sum(float(torch.randn(500_000, generator=generator).abs().max()) > tau for _ in range(300))
    assert alarms <= 5  # at most 0.4 expected: 2 N Phi(-tau) = 0.0013 a draw


def test_block_limits_fall_with_freedom_to_the_floor() -> None:
    limits = Limits().blocks(np.array([1.0, 4.0, 16.0, 64.0, 1e4]), 400)
    assert list(limits) == sorted(limits, reverse=True)
    assert limits[-1] == 1.5


@pytest.mark.parametrize("freedom", [3.0, 8.0, 30.0])
def test_block_limit_is_the_chi_square_quantile(freedom: float) -> None:
    limit = Limits().blocks(np.array([freedom]), 100)[0]
    assert stats.chi2.sf(limit**2 * freedom, freedom) <= 1e-3 / 100 * (1 + 1e-9)


def test_ratio_limit_grows_when_twins_scatter_and_is_never_below_two() -> None:
    limits = Limits()
    steady, wild = np.full(64, 0.2), np.r_[np.full(60, 0.01), np.full(4, 3.0)]
    assert 2.0 <= limits.twin_ratio(steady, 10**6) < 2.1
    assert limits.twin_ratio(wild, 10**6) > 3.0
    assert limits.twin_ratio(steady, 8) > 3.0
    assert limits.twin_ratio(np.zeros(64), 10**6) == 0.0
    assert limits.twin_ratio(np.ones(1), 10**6) == np.inf


def test_small_batches_get_more_twins() -> None:
    assert few_twins(8) == few_twins(127) == MANY_TWINS
    assert few_twins(128) == FEW_TWINS


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_tiny_batches_pass(recipe: str, tokens: int) -> None:
    for seed in range(3):
        reference = reference_of(make_case(recipe, (tokens, 256, 128, 16, 4), seed=seed))
        judge = Judge(reference)
        assert torch.isinf(judge.plan.limit["column"]).all()
        for kernel in range(4):
            assert judge.judge(Emulation(kernel).run(reference.problem, reference.numerics)).passed


@pytest.mark.parametrize("recipe", RECIPES)
def test_defects_in_the_ragged_corner_tile_are_caught_and_placed(recipe: str) -> None:
    reference = reference_of(make_case(recipe, (65, 200, 128, 16, 4)))
    judge = Judge(reference)
    healthy = Emulation(1).run(reference.problem, reference.numerics)
    assert judge.judge(healthy).passed
    broken = healthy.clone()
    broken[64:, 192:] = 0
    judgement = judge.judge(broken)
    assert "tile" in judgement.failed
    assert judgement.numbers["worst_tile"] == [1, 3]
    broken = healthy.clone()
    broken[:, -8:] = 0
    judgement = judge.judge(broken)
    assert "column" in judgement.failed
    assert judgement.numbers["worst_column"] >= 192
    broken = healthy.clone()
    broken[64] = 0
    judgement = judge.judge(broken)
    assert "row" in judgement.failed
    assert judgement.numbers["worst_row"] == 64


def test_flip_limit_covers_single_flips_and_is_sharper_than_chi_square() -> None:
    reference = reference_of(make_case("fp8_per_tensor", (33, 128, 16, 4, 2)))
    judge = Judge(reference)
    level = judge.limits.first_look / judge.plan.blocks
    limits = [flip_limit(reference, row, level) for row in range(33)]
    assert sum(limit < float(chi) for limit, chi in zip(limits, judge.plan.limit["row"], strict=True)) > 16
    for kernel in range(40):
        answer = Emulation(kernel).run(reference.problem, reference.numerics)
        mean = judge.normalised(answer.double()).square().mean(1)
        assert all(float(value) <= limit for value, limit in zip(mean, limits, strict=True))


def test_biases_that_make_tokens_equal_lower_the_freedom_of_columns() -> None:
    plain = reference_of(make_case("fp16", (64, 64, 32, 2, 1), inputs={"kind": "normal"}))
    equal = reference_of(make_case("fp16", (64, 64, 32, 2, 1), inputs={"kind": "zeros"}, weights={"bias": True}))
    assert float(Judge(plain).plan.freedom["column"].min()) == 64
    assert float(Judge(equal).plan.freedom["column"].max()) <= 2.0
