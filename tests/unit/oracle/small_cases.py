"""Small cases, their problems and references."""

from __future__ import annotations

from typing import Any

from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.oracle.reference import Reference, make_reference
from moeguard.tensors.problem import Problem, build_problem
from moeguard.tensors.weights import WeightBank

RECIPES = ("bf16", "fp16", "fp8_per_tensor", "fp8_block")


def make_case(recipe: str = "bf16", shape: tuple[int, int, int, int, int] = (17, 64, 32, 8, 2), **fields: Any) -> Case:
    names = ("num_tokens", "hidden_size", "intermediate_size", "num_experts", "top_k")
    return Case.model_validate({"recipe": recipe, "shape": dict(zip(names, shape, strict=True)), **fields})


def problem_of(case: Case) -> Problem:
    return build_problem(case, WeightBank())


def reference_of(case: Case, numerics: Numerics | None = None) -> Reference:
    return make_reference(problem_of(case), numerics or Numerics.of(case.recipe))
