"""Shrinking quality on planted defects."""

from collections.abc import Callable

import pytest

from moeguard.core.case import Case
from moeguard.fuzz.generation import draw_round
from moeguard.fuzz.profiles import profile
from moeguard.fuzz.shrinking import minimise

RECIPES = ("bf16", "fp16", "fp8_per_tensor", "fp8_block")
Fails = Callable[[Case], bool]
#: name: (defect, shape (T, E, K, H, I) that its minimal case has).
DEFECTS: dict[str, tuple[Fails, tuple[int, ...]]] = {
    "large batch": (lambda c: c.shape.num_tokens >= 65 and c.shape.num_experts >= 32 and c.shape.top_k == 2,
                    (65, 32, 2, 8, 8)),
    "odd tokens": (lambda c: c.shape.num_tokens % 2 == 1, (1, 1, 1, 8, 8)),
    "ragged hidden": (lambda c: c.shape.hidden_size % 64 != 0, (1, 1, 1, 8, 8)),
    "second block": (lambda c: c.shape.intermediate_size > 128 and "fp8" in c.recipe, (1, 1, 1, 8, 129)),
    "clamp": (lambda c: c.activation.limit is not None and c.inputs.kind == "outlier", (1, 1, 1, 8, 8)),
    "other rank": (lambda c: c.parallel.ep_rank > 0, (1, 2, 1, 8, 8)),
    "subnormal scale": (lambda c: c.scales.kind == "tiny" and c.scales.exponent < -100, (1, 1, 1, 8, 8)),
}


def counted(fails: Fails) -> tuple[Fails, list[Case]]:
    calls: list[Case] = []

    def wrapped(case: Case) -> bool:
        calls.append(case)
        return fails(case)
    return wrapped, calls


def failing(fails: Fails, profile_name: str, count: int) -> list[Case]:
    found: list[Case] = []
    for number in range(12):
        found += [case for case in draw_round(profile(profile_name), RECIPES, 11, number) if fails(case)]
        if len(found) >= count:
            break
    return found[:count]


@pytest.mark.parametrize("name", DEFECTS)
@pytest.mark.parametrize("profile_name", ["smoke", "ci"])
def test_planted_defects_become_minimal(name: str, profile_name: str) -> None:
    fails, shape = DEFECTS[name]
    for case in failing(fails, profile_name, 4):
        wrapped, calls = counted(fails)
        small = minimise(case, wrapped, 60)
        size = small.shape
        assert (size.num_tokens, size.num_experts, size.top_k, size.hidden_size, size.intermediate_size) == shape
        assert small.recipe == case.recipe and small.seed == 0 and fails(small)
        assert len(calls) <= 40 and len(set(calls)) == len(calls) and case not in calls


def test_only_what_matters_stays() -> None:
    fails = DEFECTS["clamp"][0]
    small = minimise(failing(fails, "smoke", 1)[0], fails)
    assert small.activation.limit is not None and small.activation.alpha is None and small.activation.beta is None
    assert small.weights.kind == "normal" and not small.weights.bias and small.layout.kind == "contiguous"
    assert small.parallel.ep_size == small.parallel.tp_size == 1 and small.routing.kind == "uniform"


def test_exponent_is_bisected() -> None:
    fails = DEFECTS["subnormal scale"][0]
    small = minimise(failing(fails, "smoke", 1)[0], fails)
    assert small.scales.exponent == -101


def test_calls_are_bounded_and_the_result_fails() -> None:
    fails = DEFECTS["large batch"][0]
    case = failing(fails, "ci", 1)[0]
    for limit in (0, 1, 5, 12):
        wrapped, calls = counted(fails)
        assert fails(minimise(case, wrapped, limit))
        assert len(calls) <= limit


def test_goes_on_from_where_it_stopped_and_repeats() -> None:
    fails = DEFECTS["large batch"][0]
    case = failing(fails, "ci", 1)[0]
    once = minimise(case, fails)
    stage = case
    for _ in range(12):
        stage = minimise(stage, fails, 12)
    assert stage == once == minimise(case, fails) == minimise(once, fails)


def test_a_case_that_cannot_be_simplified_stays() -> None:
    case = draw_round(profile("smoke"), RECIPES, 3, 1)[5]
    assert minimise(case, lambda other: other == case) == case


def test_no_tokens_stay_when_they_are_the_defect() -> None:
    fails: Fails = lambda c: c.shape.num_tokens == 0  # noqa: E731
    small = minimise(failing(fails, "smoke", 1)[0], fails)
    assert small.shape.num_tokens == 0 and small.shape.hidden_size == 8


def test_groups_stay_whole() -> None:
    case = Case.model_validate({"recipe": "int4_fp8", "parallel": {"tp_size": 2, "tp_rank": 1}, "shape": {
        "num_tokens": 64, "hidden_size": 512, "intermediate_size": 1024, "num_experts": 8, "top_k": 2}})
    small = minimise(case, lambda candidate: candidate.shape.hidden_size > 200)
    assert small.recipe == "int4_fp8" and (small.shape.hidden_size, small.intermediate_local) == (256, 128)
