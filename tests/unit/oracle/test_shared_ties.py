"""Equal values of a clamped intermediate on a rounding tie: either code is right, for all of them at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import moeguard as mg
from moeguard.backends.torch_reference import TorchReference
from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.oracle.derive import reordered, scaled
from moeguard.oracle.judge import Judge
from moeguard.oracle.reference import Reference, make_reference
from moeguard.oracle.shared_ties import FEWEST
from moeguard.quant.formats import round_to
from moeguard.tensors.problem import build_problem
from moeguard.tensors.weights import WeightBank

#: The largest value of a clamped row is 2, and 1.5 is code 336 of it; a healthy backend was blamed for the other code.
FOUND: dict[str, Any] = {"kind": "swiglu_oai", "alpha": 4.0, "beta": -0.25, "limit": 1.75}
#: gpt-oss: 6/8 of the largest.
GPT_OSS: dict[str, Any] = {"kind": "swiglu_oai", "limit": 7.0}


def case(recipe: str = "mxfp4_fp8", activation: dict[str, Any] = FOUND, **fields: Any) -> Case:
    shape = {"num_tokens": 17, "hidden_size": 416, "intermediate_size": 64, "num_experts": 1, "top_k": 1}
    drawn = {"shape": shape, "recipe": recipe, "activation": activation, "inputs": {"kind": "spread"}}
    return Case.model_validate(drawn | fields)


def reference(one: Case) -> Reference:
    return make_reference(build_problem(one, WeightBank()), Numerics.of(one.recipe))


@pytest.mark.parametrize(("recipe", "activation"), [("mxfp4_fp8", FOUND), ("fp8_block", FOUND), ("fp8_block", GPT_OSS)])
def test_either_code_is_right_and_a_wrong_scale_is_not(recipe: str, activation: dict[str, Any]) -> None:
    known = reference(case(recipe, activation))
    assert known.swing is not None and bool(known.tied.any()) and not bool(known.tied.all())
    judge = Judge(known)
    for share in (0.0, 1.0):
        answer = round_to(known.y + share * known.slots.combine(known.swing), "bf16").to(torch.bfloat16)
        verdict = judge.judge(answer)
        assert verdict.passed, verdict
    assert "gain" in judge.judge((1.1 * known.y).to(torch.bfloat16)).failed


def test_the_backend_that_was_blamed_is_right() -> None:
    assert mg.check(TorchReference(), case()).passed


@pytest.mark.parametrize(("recipe", "fields"), [
    ("mxfp4_fp8", {"activation": FOUND | {"beta": 0.5}}),  # 1.25 / 2.25 of the largest is no tie
    ("bf16", {}), ("mxfp4_fp8", {"activation": {"kind": "swiglu"}}), ("mxfp4_fp8", {"inputs": {"kind": "zeros"}}),
    ("nvfp4", {"inputs": {"kind": "zeros"}}), ("nvfp4", {"activation": {"kind": "swiglu"}, "scales": {"kind": "zero"}}),
])
def test_other_cases_have_none(recipe: str, fields: dict[str, Any]) -> None:
    assert reference(case(recipe, **fields)).swing is None


def test_a_few_values_that_lie_on_a_tie_by_chance_are_left_out() -> None:
    known = reference(case())
    moved = (known.raw / known.hidden_scale == 336).sum(1)
    assert known.swing is not None
    assert ((known.swing != 0).any(1) == (moved >= FEWEST)).all() and 0 < int((moved >= FEWEST).sum()) < len(moved)


def test_the_swing_moves_with_its_tokens() -> None:
    known = reference(case())
    order = torch.arange(16, -1, -1)
    turned = reordered(known, order, known.problem)
    assert known.swing is not None and turned.swing is not None
    assert torch.equal(turned.slots.combine(turned.swing), known.slots.combine(known.swing)[order])
    larger = scaled(known, 4.0, known.problem).swing
    assert larger is not None and torch.equal(larger, 4 * known.swing)
