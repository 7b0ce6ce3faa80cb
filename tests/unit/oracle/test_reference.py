"""The oracle against a plain loop, and the symmetries of its error model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_cases import RECIPES, make_case, problem_of, reference_of
from spec_grid import GEOMETRIES, make_problem, numerics_of

from moeguard.core.errors import HarnessError
from moeguard.core.numerics import Numerics
from moeguard.oracle.activation import activate
from moeguard.oracle.emulation import Emulation
from moeguard.oracle.judge import Judge
from moeguard.oracle.reference import make_reference
from moeguard.quant.blocks import fake_quantize
from moeguard.tensors.operand import Operand, Weights
from moeguard.tensors.problem import Problem


def loop(problem: Problem, numerics: Numerics) -> torch.Tensor:
    """The same function as a loop over tokens and slots."""
    case, weights = problem.case, problem.weights
    x, _ = fake_quantize(problem.flat_x.dequantize(torch.float64), numerics.input,
                         problem.flat_x.scale if weights.input_scale is None else weights.input_scale)
    gate, down = weights.gate.dequantize(torch.float64), weights.down.dequantize(torch.float64)
    up = None if weights.up is None else weights.up.dequantize(torch.float64)
    biases = [None if b is None else b.dequantize(torch.float64) for b in (weights.gate_bias, weights.up_bias, weights.down_bias)]
    y = torch.zeros_like(x)

    def project(matrix: torch.Tensor, expert: int, vector: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return matrix[expert] @ vector if bias is None else matrix[expert] @ vector + bias[expert]

    for token in range(x.shape[0]):
        for expert, weight in zip(problem.flat_ids[token].tolist(), problem.flat_weights[token].tolist(), strict=True):
            if not 0 <= expert < case.shape.num_experts:
                continue
            a = project(gate, expert, x[token], biases[0])
            b = None if up is None else project(up, expert, x[token], biases[1])
            h = fake_quantize(activate(case.activation, a, b)[None], numerics.intermediate, weights.intermediate_scale)[0][0]
            out = project(down, expert, h, biases[2])
            y[token] += weight * out
    return y


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("routing", ["uniform", "duplicate_ids", "empty_experts", "invalid_ids", "one_expert"])
def test_grouped_oracle_equals_the_loop(recipe: str, routing: str) -> None:
    case = make_case(recipe, routing={"kind": routing}, weights={"bias": True}, seed=3)
    reference = reference_of(case)
    torch.testing.assert_close(reference.y, loop(reference.problem, reference.numerics), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kind", ["swiglu", "geglu", "geglu_tanh", "swiglu_oai", "relu2", "silu", "gelu"])
def test_activations_follow_torch(kind: str) -> None:
    case = make_case(activation={"kind": kind})
    g, u = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    wanted = {"swiglu": torch.nn.functional.silu(g) * u, "geglu": torch.nn.functional.gelu(g) * u,
              "geglu_tanh": torch.nn.functional.gelu(g, approximate="tanh") * u, "relu2": torch.relu(g) ** 2,
              "silu": torch.nn.functional.silu(g), "gelu": torch.nn.functional.gelu(g),
              "swiglu_oai": g * torch.sigmoid(1.702 * g) * (u + 1)}[kind]
    torch.testing.assert_close(activate(case.activation, g, u if case.activation.gated else None), wanted)


def test_float32_sums_agree_within_their_own_roundoff() -> None:
    case = make_case("bf16", (33, 192, 120, 8, 4))
    problem = problem_of(case)
    reference = make_reference(problem, Numerics(intermediate="none"))
    h, down = reference.hidden.float(), problem.weights.down.dequantize()
    for slot in range(reference.slots.count):
        matrix = down[reference.slots.expert[slot]]
        error = (matrix @ h[slot]).double() - reference.expert_output[slot]
        scale = matrix.abs().double() @ h[slot].abs().double()
        assert float((error.abs() / scale.clamp_min(1e-30)).max()) < 120**0.5 * 2.0**-24 + 2.0**-24


def test_oracle_is_blind_to_tf32_settings() -> None:
    problem = problem_of(make_case("bf16", (9, 64, 64, 4, 2)))
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = False
        plain = make_reference(problem, Numerics.of("bf16"))
        torch.backends.cuda.matmul.allow_tf32 = True
        other = make_reference(problem, Numerics.of("bf16"))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert torch.equal(plain.y, other.y)
    assert plain.y.dtype == torch.float64


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_oracle_on_a_gpu_equals_the_cpu_and_ignores_tf32() -> None:
    from moeguard.tensors.problem import build_problem
    from moeguard.tensors.weights import WeightBank

    case = make_case("fp8_block", (33, 192, 128, 8, 4))
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        there = make_reference(build_problem(case, WeightBank(), "cuda"), Numerics.of("fp8_block"))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    here = reference_of(case)
    difference = ((there.y.cpu() - here.y) / here.deviation).abs()
    assert float(difference.max()) < 1.0
    assert float((difference > 1e-6).double().mean()) < 0.05  # re-quantised values may flip


def grid_problem() -> Problem:
    import numpy as np

    return make_problem(np.random.default_rng(5), "fp8", "normal", GEOMETRIES["G2"])


@pytest.mark.parametrize("exponent", [-12, 5])
def test_scaling_the_down_weights_scales_y_and_s(exponent: int) -> None:
    problem = grid_problem()
    down = Operand(torch.ldexp(problem.weights.down.data, torch.tensor(exponent)), format="float32")
    scaled = replace(problem, weights=Weights(problem.weights.gate, problem.weights.up, down))
    first, second = (make_reference(p, numerics_of("fp8")) for p in (problem, scaled))
    torch.testing.assert_close(second.y, first.y * 2.0**exponent, rtol=1e-13, atol=0)
    torch.testing.assert_close(second.deviation, first.deviation * 2.0**exponent, rtol=1e-9, atol=0)


def test_permuting_tokens_permutes_the_reference() -> None:
    problem = grid_problem()
    order = torch.randperm(problem.flat_ids.shape[0], generator=torch.Generator().manual_seed(1))
    x = Operand(problem.flat_x.data[order], format="float32")
    moved = replace(problem, flat_x=x, flat_ids=problem.flat_ids[order], flat_weights=problem.flat_weights[order])
    first, second = (make_reference(p, numerics_of("fp8")) for p in (problem, moved))
    torch.testing.assert_close(second.y, first.y[order], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(second.deviation, first.deviation[order], rtol=1e-12, atol=0)
    torch.testing.assert_close(second.row_freedom, first.row_freedom[order], rtol=1e-9, atol=0)


def test_relabelling_experts_changes_nothing() -> None:
    problem = grid_problem()
    label = torch.randperm(16, generator=torch.Generator().manual_seed(2))
    inverse = torch.argsort(label)
    weights = Weights(*(Operand(o.data[inverse], format="float32") for o in
                        (problem.weights.gate, problem.weights.up, problem.weights.down) if o is not None))
    moved = replace(problem, weights=weights, flat_ids=label[problem.flat_ids.long()].int())
    first, second = (make_reference(p, numerics_of("fp8")) for p in (problem, moved))
    torch.testing.assert_close(second.y, first.y, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(second.deviation, first.deviation, rtol=1e-12, atol=0)


def test_a_float32_kernel_may_take_either_code_of_an_input_tie() -> None:
    """x / (amax / 448) is a tie of e4m3 for x = 21/16, amax = 1: kernels that multiply by 448 / amax may round it elsewhere."""
    case = make_case("fp8_block", (4, 64, 64, 2, 1), seed=1)
    problem = problem_of(case)
    data = problem.flat_x.data.clone()
    data[0] = 0.0
    data[0, 0], data[0, 1] = 1.75, 1.75 * 17 / 448 * 4  # the second is 68 = 17 * 4, halfway between 64 and 72
    tied = replace(problem, flat_x=Operand(data, format="bf16"))
    reference = make_reference(tied, Numerics.of("fp8_block"))
    assert bool(reference.tied[0])
    other = data.clone()
    other[0, 1] *= 1 + 2.0**-7  # a neighbour that certainly rounds up
    kernel = replace(problem, flat_x=Operand(other, format="bf16"))
    assert Judge(reference).judge(Emulation(3).run(kernel, reference.numerics)).passed


def test_an_infinite_oracle_is_the_harness_fault() -> None:
    problem = problem_of(make_case())
    data = problem.flat_x.data.clone()
    data[0, 0] = torch.inf
    with pytest.raises(HarnessError, match="not finite"):
        make_reference(replace(problem, flat_x=Operand(data, format="bf16")), Numerics.of("bf16"))
