"""The same checks run on a GPU: healthy backends are clean there, and mutants are caught."""

from __future__ import annotations

import pytest

import moeguard as mg
from moeguard.backends import registry
from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.core.recipe import RECIPES
from moeguard.engine.selftest import HEALTHY_BUILTINS
from moeguard.fuzz.generation import draw_round
from moeguard.fuzz.profiles import profile
from moeguard.mutants.base import Broken
from moeguard.mutants.catalogue import MUTANTS, corpus
from moeguard.oracle.reference import make_reference
from moeguard.tensors.problem import build_problem
from moeguard.tensors.weights import WeightBank

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", HEALTHY_BUILTINS)
def test_a_healthy_backend_is_clean(name: str) -> None:
    """Two rounds of drawn cases, no finding."""
    backend, executions = registry.get(name), 0
    for number in range(2):
        for case in draw_round(profile("smoke", "cuda"), tuple(RECIPES), 5, number):
            verdict = mg.check(backend, case, device="cuda")
            assert not verdict.findings, verdict.findings[0].model_dump_json()
            executions += verdict.executions
    assert executions > 300


@pytest.mark.parametrize("kind", [kind for kind in MUTANTS if not kind.isolated], ids=lambda kind: kind.name)
def test_mutant_is_caught(kind: type[Broken]) -> None:
    """On its corpus, with an expected kind."""
    backend, seen = kind(), set()
    for case in corpus(kind):
        seen |= {finding.kind for finding in mg.check(backend, case, device="cuda").findings}
        if seen & kind.expected:
            return
    pytest.fail(f"survived; seen {sorted(seen)}")


def test_oracle_agrees_with_the_cpu_to_float64() -> None:
    """y* and S on both devices differ by float64 rounding only; TensorFloat-32 plays no part."""
    shape = {"num_tokens": 129, "hidden_size": 512, "intermediate_size": 256, "num_experts": 16, "top_k": 4}
    for recipe in RECIPES:
        case = Case.model_validate({"shape": shape, "recipe": recipe})
        here, there = (make_reference(build_problem(case, WeightBank(), device), Numerics.of(recipe))
                       for device in ("cpu", "cuda"))
        z = ((there.y.cpu() - here.y) / here.deviation).abs()
        spread = (there.deviation.cpu() / here.deviation - 1).abs()
        # a float64 rounding edge of the quantised intermediate may fall the other way, in a few rows
        assert float((z > 1e-6).double().mean()) < 0.02, recipe
        assert float((spread > 1e-6).double().mean()) < 0.02, recipe
        assert float(z.max()) < 4, recipe
