"""Kernels that round gate and up before the activation, and declare it."""

from dataclasses import replace

import pytest
import torch

from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.oracle.activation import slopes
from moeguard.oracle.emulation import Emulation
from moeguard.oracle.judge import Judge
from moeguard.oracle.reference import make_reference
from moeguard.tensors.problem import build_problem
from moeguard.tensors.weights import WeightBank


def case(recipe, activation="swiglu", **changes):
    shape = {"num_tokens": 96, "hidden_size": 256, "intermediate_size": 128, "num_experts": 8, "top_k": 2}
    return Case.model_validate({"shape": shape, "recipe": recipe, "activation": {"kind": activation}, **changes})


def narrow(recipe):
    return replace(Numerics.of(recipe), projection="fp16" if recipe == "fp16" else "bf16")


@pytest.mark.parametrize("recipe", ["bf16", "fp16", "fp8_per_tensor", "fp8_block"])
@pytest.mark.parametrize("activation", ["swiglu", "geglu_tanh", "swiglu_oai", "relu2"])
def test_healthy_kernels_pass(recipe, activation):
    problem = build_problem(case(recipe, activation, weights={"bias": True}), WeightBank(), "cpu")
    judge = Judge(make_reference(problem, narrow(recipe)))
    for seed in range(3):
        assert judge.judge(Emulation(seed).run(problem, narrow(recipe))).passed


def test_an_undeclared_rounding_of_the_projections_is_seen_in_fp16():
    problem = build_problem(case("fp16"), WeightBank(), "cpu")
    coarse = replace(Numerics.of("fp16"), projection="bf16")
    assert not Judge(make_reference(problem, Numerics.of("fp16"))).judge(Emulation(0).run(problem, coarse)).passed


def test_slopes_are_the_derivatives():
    gate = torch.linspace(-4, 4, 33, dtype=torch.float64)
    up = torch.full_like(gate, 2.0)
    by_gate, by_up = slopes(case("bf16").activation, gate, up)
    sigmoid = torch.sigmoid(gate)
    torch.testing.assert_close(by_gate, 2 * sigmoid * (1 + gate * (1 - sigmoid)))
    torch.testing.assert_close(by_up, gate * sigmoid)


def test_exact_mode_needs_expert_outputs_that_their_format_holds():
    problem = build_problem(case("bf16", inputs={"kind": "exact"}), WeightBank(), "cpu")
    reference = make_reference(problem, replace(narrow("bf16"), expert_output="bf16"))
    assert reference.exact
    reference.expert_output[0, 0] = 257.0  # needs nine bits
    assert not reference.exact


def test_projection_names_what_is_allowed():
    with pytest.raises(ValueError, match="projection: 'e4m3'; allowed: none, bf16, fp16"):
        Numerics(projection="e4m3")
