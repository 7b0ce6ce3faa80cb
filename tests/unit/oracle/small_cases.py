"""Small cases, their problems and references."""

from __future__ import annotations

from typing import Any

from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.core.recipe import RECIPES as TABLE
from moeguard.oracle.reference import Reference, make_reference
from moeguard.tensors.problem import Problem, build_problem
from moeguard.tensors.weights import WeightBank

RECIPES = tuple(TABLE)


def make_case(recipe: str = "bf16", shape: tuple[int, int, int, int, int] = (17, 64, 32, 8, 2), **fields: Any) -> Case:
    """A case; H and I are rounded up to what the recipe needs."""
    names = ("num_tokens", "hidden_size", "intermediate_size", "num_experts", "top_k")
    sizes = dict(zip(names, shape, strict=True))
    for name in ("hidden_size", "intermediate_size"):
        sizes[name] += -sizes[name] % TABLE[recipe].group
    return Case.model_validate({"recipe": recipe, "shape": sizes, **fields})


def problem_of(case: Case) -> Problem:
    return build_problem(case, WeightBank())


def reference_of(case: Case, numerics: Numerics | None = None) -> Reference:
    return make_reference(problem_of(case), numerics or Numerics.of(case.recipe))
