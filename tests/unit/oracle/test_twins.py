"""Twins: they match healthy kernels of their recipe, and betray kernels of another one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_cases import RECIPES, make_case, problem_of, reference_of
from spec_grid import GEOMETRIES, Draw, kernel, make_problem, numerics_of, with_noise

from moeguard.core.numerics import Numerics
from moeguard.oracle.emulation import Emulation
from moeguard.oracle.judge import Judge
from moeguard.oracle.noise import input_ties
from moeguard.oracle.reference import make_reference
from moeguard.oracle.twins import each_twin, round_intermediate, twin_outputs
from moeguard.tensors.operand import Operand


def ratios(twin: str, noise: float, deviation: dict[str, str], kernel_noise: float, count: int = 3) -> list[float]:
    """rho of healthy kernels that deviate from the twins' recipe."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        problem = make_problem(rng, twin, "normal", GEOMETRIES["G2"])
        declared = numerics_of(twin)
        draw = Draw(with_noise(problem, declared, noise), *kernel(problem, replace(declared, **deviation), kernel_noise, rng))
        judgement = Judge(draw.reference).judge(draw.healthy)
        assert not set(judgement.failed) - {"global"}  # of another recipe, not wrong: the ratio rule alone
        found.append(float(judgement.numbers["rho"]))
    return found


#: (twins' recipe, noise, the kernel's deviation, its noise, lowest and highest rho of the simulation, +-20 %). The simulated
#: kernels divide in float64, so their codes never differ from the oracle's at ties; the twins' tilt is switched off for them.
SENSITIVITY = [
    ("bf16", 3e-6, {}, 3e-6, 0.99, 1.01),
    ("bf16", 3e-6, {"expert_output": "none"}, 3e-6, 0.66, 0.66),
    ("bf16", 3e-6, {}, 2.0**-13, 1.1, 1.1),
    ("bf16", 3e-6, {}, 2.0**-11, 1.4, 1.4),
    ("fp8", 2.0**-13, {}, 2.0**-13, 0.79, 1.10),
    ("fp8", 2.0**-13, {"intermediate": "e4m3_1x128"}, 2.0**-13, 1.9, 2.4),
    ("fp8", 2.0**-13, {"intermediate": "bf16"}, 2.0**-13, 3.9, 4.8),
    ("fp8", 2.0**-13, {}, 2.0**-11, 1.6, 1.9),
    ("fp8", 3e-6, {}, 3e-6, 0.89, 1.02),
    ("fp8", 3e-6, {"intermediate": "e4m3_1x128"}, 3e-6, 4.6, 5.3),
    ("fp8", 3e-6, {"intermediate": "bf16"}, 3e-6, 8.7, 9.9),
]


@pytest.mark.parametrize(("twin", "noise", "deviation", "kernel_noise", "low", "high"), SENSITIVITY)
def test_ratio_betrays_a_deviating_recipe(monkeypatch: pytest.MonkeyPatch, twin: str, noise: float, deviation: dict[str, str],
                                          kernel_noise: float, low: float, high: float) -> None:
    monkeypatch.setattr("moeguard.oracle.twins.QUOTIENT", 0.0)
    found = ratios(twin, noise, deviation, kernel_noise)
    assert 0.8 * low <= np.mean(found) <= 1.2 * high


def test_a_finer_intermediate_is_recognised_as_such() -> None:
    rng = np.random.default_rng(1)
    problem = make_problem(rng, "fp8", "normal", GEOMETRIES["G2"])
    declared = replace(numerics_of("fp8"), expert_output="none")
    finer = replace(declared, intermediate="e4m3_1x128")
    judge = Judge(make_reference(problem, declared))
    answer = kernel(problem, finer, 3e-7, rng)[0]
    assert judge.judge(answer).failed == ("global",)
    assert judge.explained_by_finer(answer) == finer
    scaled = (answer.double() * 1.2).to(torch.bfloat16)
    assert judge.explained_by_finer(scaled) is None


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("change", [{}, {"expert_output": "bf16"}, {"combine": "output"}])
def test_twins_are_as_far_from_the_oracle_as_an_independent_kernel(recipe: str, change: dict[str, str]) -> None:
    reference = reference_of(make_case(recipe, (65, 136, 96, 8, 4)), replace(Numerics.of(recipe), **change))
    judge = Judge(reference)
    kernels = np.mean([float(judge.normalised(Emulation(seed).run(reference.problem, reference.numerics).double()).square().sum())
                       for seed in range(4)]) / judge.judged
    assert 0.5 < (kernels / judge.twin_energies(16).mean()) ** 0.5 < 1.5


def test_twins_are_reproducible_and_differ_among_themselves() -> None:
    reference = reference_of(make_case("fp8_per_tensor", (65, 136, 96, 8, 4)))
    first, again, other = (twin_outputs(reference, 2, seed=seed, noise=1e-3) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])
    assert torch.equal(torch.stack(list(each_twin(reference, 2, seed=1, noise=1e-3))), first)
    assert twin_outputs(reference, 0).shape == (0, 65, 136)


def test_without_noise_a_twin_is_the_rounded_oracle() -> None:
    reference = reference_of(make_case("bf16", (5, 64, 32, 4, 2), inputs={"kind": "exact"}))
    assert torch.equal(twin_outputs(reference, 1, noise=0.0)[0], reference.y.bfloat16().double())


def test_undecided_input_codes_belong_to_kernels_that_quantise_bf16_themselves() -> None:
    problem = problem_of(make_case("fp8_block", (100, 192, 32, 8, 2)))
    assert not input_ties(problem, Numerics.of("fp8_block"))[0].numel()  # generated inputs have none
    data = torch.randn(100, 192, generator=torch.Generator().manual_seed(0)).bfloat16()
    given = replace(problem, flat_x=Operand(data))
    token, _, step = input_ties(given, Numerics.of("fp8_block"))
    assert 0.05 < len(token.unique()) / 100 < 0.9
    assert float(step.min()) > 0
    assert not input_ties(given, Numerics.of("bf16"))[0].numel()
    reference = make_reference(given, Numerics.of("fp8_block"))
    judge = Judge(reference)
    assert reference.tied.nonzero()[:, 0].tolist() == token.unique().tolist()
    assert all(judge.judge(Emulation(seed).run(given, reference.numerics)).passed for seed in range(4))


def test_a_static_power_of_two_leaves_no_tie_open() -> None:
    problem = problem_of(make_case("int4_fp8", (40, 128, 128, 4, 2)))
    assert not input_ties(problem, Numerics.of("int4_fp8"))[0].numel()
    value, scale = torch.tensor([[1.0625, 1.1875]], dtype=torch.float64), torch.tensor([0.125], dtype=torch.float64)
    for tilt in (-1e-6, 0.0, 1e-6):
        assert round_intermediate("bf16+e4m3_per_tensor", value, scale, tilt).tolist() == [[1.0, 1.25]]
    assert round_intermediate("e4m3_per_token", value, scale, 1e-6).tolist() == [[1.125, 1.25]]


def test_ties_of_a_scale_per_token_are_noise_where_given() -> None:
    problem = problem_of(make_case("mxfp4_fp8", (40, 128, 128, 4, 2)))
    assert not input_ties(problem, Numerics.of("mxfp4_fp8"))[0].numel()  # generated inputs have none
    data = problem.flat_x.data.clone()
    data[3] = 0.0
    data[3, :2] = torch.tensor([7.0, 116 * 7 / 448])
    operand = Operand(data, format="bf16")
    given = replace(problem, flat_x=operand, batch=replace(problem.batch, x=operand))
    token, column, step = input_ties(given, Numerics.of("mxfp4_fp8"))
    assert (token.tolist(), column.tolist()) == ([3], [1]) and float(step) == 8 * 7 / 448
