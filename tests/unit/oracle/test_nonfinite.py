"""Non-finite answers, the limits of formats, and executions that check nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_cases import RECIPES, make_case, problem_of, reference_of

from moeguard.core.numerics import Numerics
from moeguard.oracle.emulation import Emulation
from moeguard.oracle.judge import Judge
from moeguard.oracle.reference import make_reference
from moeguard.tensors.operand import Operand


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_non_finite_element_is_named(recipe: str, value: float) -> None:
    reference = reference_of(make_case(recipe, (70, 136, 32, 8, 2)))
    answer = Emulation(0).run(reference.problem, reference.numerics)
    answer[66, 130] = value
    judgement = Judge(reference).judge(answer)
    assert judgement.failed == ("finite",)
    assert not judgement.soft
    numbers = judgement.numbers
    assert (numbers["nonfinite"], numbers["worst_row"], numbers["worst_column"], numbers["worst_tile"]) == (1, 66, 130, [1, 2])
    assert numbers["worst_expert"] in reference.problem.flat_ids[66].tolist()


def test_a_row_of_nan_cannot_hide_behind_other_errors() -> None:
    reference = reference_of(make_case())
    answer = torch.full(reference.y.shape, torch.nan, dtype=torch.bfloat16)
    judgement = Judge(reference).judge(answer)
    assert judgement.failed == ("finite",)
    assert judgement.numbers["nonfinite"] == reference.y.numel()


def test_overflow_that_a_healthy_kernel_may_have_is_not_judged() -> None:
    case = make_case("fp16", (33, 128, 64, 4, 2), inputs={"kind": "outlier"}, scales={"kind": "bimodal", "exponent": 4})
    reference = reference_of(case)
    judge = Judge(reference)
    assert judge.judged < reference.y.numel()
    for kernel in range(4):
        assert judge.judge(Emulation(kernel).run(reference.problem, reference.numerics)).passed


def test_no_tokens_means_no_judged_element() -> None:
    reference = reference_of(make_case("bf16", (0, 64, 32, 8, 2)))
    judgement = Judge(reference).judge(torch.empty(0, 64, dtype=torch.bfloat16))
    assert judgement.numbers == {"elements": 0}
    assert Judge(reference).informative == 0.0


def test_the_count_of_judged_elements_is_always_recorded() -> None:
    reference = reference_of(make_case())
    judgement = Judge(reference).judge(Emulation(0).run(reference.problem, reference.numerics))
    assert judgement.numbers["elements"] == reference.y.numel() > 0


def test_zeros_must_stay_zeros() -> None:
    reference = reference_of(make_case(inputs={"kind": "zeros"}))
    judge = Judge(reference)
    answer = torch.zeros(reference.y.shape, dtype=torch.bfloat16)
    assert judge.judge(answer).passed
    assert judge.informative == 0.0
    answer[3, 5] = 1e-20
    assert "element" in judge.judge(answer).failed


def test_a_rounded_expert_output_may_overflow_where_the_sum_does_not() -> None:
    """A float16 expert output beyond 65504 is infinite in a kernel that rounds it, even if its weight makes the sum small."""
    case = make_case("fp16", (33, 98, 8, 4, 4), inputs={"kind": "spread"})
    problem = problem_of(case)
    down = problem.weights.down.data.clone()
    down[:, 3] *= 2.0**12
    loud = replace(problem, weights=replace(problem.weights, down=Operand(down, format="fp16")),
                   flat_weights=problem.flat_weights * 2.0**-6)
    for change in ({"expert_output": "fp16"}, {"combine": "output"}):
        reference = make_reference(loud, replace(Numerics.of("fp16"), **change))
        judge = Judge(reference)
        assert judge.judged < reference.y.numel() or "combine" in change
        assert all(judge.judge(Emulation(seed).run(loud, reference.numerics)).passed for seed in range(4))
