"""Worse answers never look better."""

from __future__ import annotations

from functools import cache

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_cases import make_case, reference_of

from moeguard.oracle.emulation import Emulation
from moeguard.oracle.judge import Judge


@cache
def judge_and_answer(recipe: str) -> tuple[Judge, torch.Tensor]:
    reference = reference_of(make_case(recipe, (17, 64, 32, 8, 2)))
    return Judge(reference), Emulation(0).run(reference.problem, reference.numerics)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["bf16", "fp8_block"]), st.integers(0, 16), st.integers(0, 63), st.floats(7, 100), st.floats(0, 100))
def test_more_error_of_the_same_sign_keeps_the_element_rule_failing(recipe: str, row: int, column: int, size: float,
                                                                    more: float) -> None:
    judge, answer = judge_and_answer(recipe)
    reference = judge.reference
    y = answer.double()
    sign = 1.0 if float(y[row, column]) >= float(reference.y[row, column]) else -1.0
    y[row, column] = reference.y[row, column] + sign * size * reference.deviation[row, column]
    if "element" not in judge.judge(y).failed:
        return
    y[row, column] += sign * more * reference.deviation[row, column]
    judgement = judge.judge(y)
    assert "element" in judgement.failed
    assert (judgement.numbers["max_z_row"], judgement.numbers["max_z_column"]) == (row, column)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["bf16", "fp8_block"]), st.floats(0.0, 0.5), st.floats(1.0, 8.0))
def test_a_larger_global_scale_error_is_caught_where_a_smaller_one_is(recipe: str, size: float, factor: float) -> None:
    judge, _ = judge_and_answer(recipe)
    smaller, larger = (judge.judge(judge.reference.y * (1 + s)) for s in (size, size * factor))
    assert larger.numbers["rms_z"] >= smaller.numbers["rms_z"] - 1e-12
    assert smaller.passed or not larger.passed
