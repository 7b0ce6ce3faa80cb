"""The gain rule: scale errors of the whole answer and of one expert are measured, named, and silent on healthy kernels."""

from __future__ import annotations

import pytest
import torch

from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.core.recipe import RECIPES
from moeguard.oracle.emulation import Emulation
from moeguard.oracle.gain import ALLOWANCE
from moeguard.oracle.judge import Judge
from moeguard.oracle.reference import make_reference
from moeguard.tensors.problem import build_problem
from moeguard.tensors.weights import WeightBank

SHAPE = {"num_tokens": 64, "hidden_size": 192, "intermediate_size": 128, "num_experts": 8, "top_k": 2}


def coarse(recipe: str) -> int:
    """How much larger errors, and limits, are than those of e4m3: e2m1 has two significant bits less."""
    return 4 if RECIPES[recipe].numerics.intermediate == "nvfp4" else 1


def judged(recipe: str, seed: int = 0) -> tuple[Judge, torch.Tensor]:
    """A judge and a healthy answer."""
    hidden = SHAPE["hidden_size"] + -SHAPE["hidden_size"] % RECIPES[recipe].group
    case = Case.model_validate({"shape": SHAPE | {"hidden_size": hidden}, "recipe": recipe, "seed": seed})
    problem = build_problem(case, WeightBank())
    numerics = Numerics.of(recipe)
    answer = Emulation(seed).run(problem, numerics)
    return Judge(make_reference(problem, numerics)), answer


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_scaled_answer_is_measured_and_fails(recipe: str) -> None:
    judge, answer = judged(recipe)
    size = 0.02 * coarse(recipe)
    verdict = judge.judge((answer.double() * (1 + size)).to(answer.dtype))
    assert "gain" in verdict.failed and verdict.numbers["gain"] == pytest.approx(size, abs=0.003)
    assert not judge.judge((answer.double() * 1.02).to(answer.dtype)).passed


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_scaled_expert_is_named(recipe: str) -> None:
    judge, answer = judged(recipe)
    slots = judge.reference.slots
    part = slots.combine(judge.reference.expert_output * (slots.weight * (slots.expert == 3))[:, None])
    size = 0.06 * coarse(recipe)
    scaled = (answer.double() + size * part).to(answer.dtype)
    verdict = judge.judge(scaled)
    assert "gain" in verdict.failed and verdict.numbers["gain_expert"] == 3
    assert verdict.numbers["expert_gain"] == pytest.approx(size, abs=0.01)
    assert judge.confirms(scaled, verdict)


@pytest.mark.parametrize("recipe", RECIPES)
def test_healthy_answers_stay_far_below_the_limit(recipe: str) -> None:
    for seed in range(6):
        judge, answer = judged(recipe, seed)
        numbers = judge.judge(answer).numbers
        assert abs(numbers["gain"]) < max(0.3 * numbers["gain_limit"], ALLOWANCE)


def test_healthy_scale_errors_spread_no_wider_than_the_model() -> None:
    judge, _ = judged("fp8_block")
    problem, numerics = judge.reference.problem, judge.reference.numerics
    found = [judge.gain.measure(judge.normalised(Emulation(seed).run(problem, numerics).double())).value for seed in range(24)]
    spread = torch.stack(found).square().mean(0).sqrt()
    assert bool((spread <= judge.gain._deviation()).all())


def test_an_answer_of_zeros_has_no_gain() -> None:
    problem = build_problem(Case.model_validate({"shape": SHAPE, "inputs": {"kind": "zeros"}}), WeightBank())
    judge = Judge(make_reference(problem, Numerics.of("bf16")))
    verdict = judge.judge(torch.zeros(64, 192, dtype=torch.bfloat16))
    assert verdict.passed and verdict.numbers["gain"] == 0.0
