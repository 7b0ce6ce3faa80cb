"""The tensors of a case have the same bits on CPU and GPU, so a finding made on one machine is replayed on another."""

from __future__ import annotations

import pytest
import torch

from moeguard.core.case import Case
from moeguard.core.recipe import RECIPES
from moeguard.fuzz.generation import draw_round
from moeguard.fuzz.profiles import profile
from moeguard.memory.digest import storage_bytes
from moeguard.tensors.problem import Problem, build_problem
from moeguard.tensors.weights import WeightBank

pytestmark = pytest.mark.gpu


def _tensors(problem: Problem) -> dict[str, torch.Tensor]:
    return problem.weights.tensors() | problem.batch.tensors()


@pytest.mark.parametrize("round_number", range(4))
def test_drawn_cases_have_equal_bits(round_number: int) -> None:
    """Every storage of 32 drawn smoke cases, padding included."""
    for case in draw_round(profile("smoke", "cpu"), tuple(RECIPES), 11, round_number):
        _same(case)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_layer_sized_case_has_equal_bits(recipe: str) -> None:
    """Rows beyond a thousand, several weight blocks, every scale factor in use."""
    shape = {"num_tokens": 1025, "hidden_size": 1536, "intermediate_size": 928 + -928 % RECIPES[recipe].group, "num_experts": 16,
             "top_k": 6}
    _same(Case.model_validate({"shape": shape, "recipe": recipe, "scales": {"kind": "heterogeneous", "exponent": 30}}))


def _same(case: Case) -> None:
    here, there = (_tensors(build_problem(case, WeightBank(), device)) for device in ("cpu", "cuda"))
    assert here.keys() == there.keys()
    for name, tensor in here.items():
        assert torch.equal(storage_bytes(tensor), storage_bytes(there[name]).cpu()), (name, case.to_json(indent=None))
