"""The simulation grid that the judge was designed on: three recipes, four input kinds, eleven seeded defects.

Everything here is float64 and independent of the oracle, but for the number formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.oracle.noise import preactivation_noise
from moeguard.oracle.reference import Reference, make_reference
from moeguard.quant.blocks import fake_quantize
from moeguard.quant.formats import round_to
from moeguard.tensors.operand import Batch, Operand, Weights
from moeguard.tensors.problem import Problem

#: name: (T, H, I, E, k)
GEOMETRIES = {"G1": (512, 1024, 512, 32, 8), "G2": (128, 256, 128, 16, 4), "G3": (128, 512, 256, 16, 4)}
INPUTS = ("normal", "heavy", "sparse", "mixed")
RECIPES = (("bf16", 3e-6), ("fp8", 3e-6), ("fp8", 2.0**-13))
SETTINGS = [(recipe, noise, kind) for recipe, noise in RECIPES for kind in INPUTS]
#: The block-scaled recipes of Blackwell, whose tensor cores accumulate in float32.
BLOCK_SCALED = [(recipe, 3e-6, kind) for recipe in ("mxfp8", "nvfp4") for kind in INPUTS]
CHAINS = {"bf16": "bf16", "fp8": "bf16+e4m3_1x128", "mxfp8": "bf16+mxfp8", "nvfp4": "bf16+nvfp4"}
DEFECTS = tuple(f"D{n}" for n in range(1, 12))


@dataclass(frozen=True)
class Draw:
    """One draw: problem, its reference (with the kernel's noise level), the healthy answer and its parts [T, k, H]."""

    reference: Reference
    healthy: Tensor
    parts: Tensor
    hidden: dict[int, Tensor]

    @property
    def problem(self) -> Problem:
        return self.reference.problem


def numerics_of(recipe: str) -> Numerics:
    return Numerics(intermediate=CHAINS[recipe], expert_output="bf16")


def largest(value: Tensor) -> Tensor:
    """The global scale of NVFP4 that a calibration on ``value`` gives, float32 [1]."""
    return (value.abs().max() / (6 * 448)).float().reshape(1)


def make_problem(rng: np.random.Generator, recipe: str, kind: str, geometry: tuple[int, int, int, int, int]) -> Problem:
    tokens, hidden, inter, experts, top_k = geometry

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape))

    x = normal(tokens, hidden)
    gate, up = (normal(experts, inter, hidden) / hidden**0.5 for _ in range(2))
    down, logits = normal(experts, hidden, inter) / inter**0.5, normal(tokens, experts)
    if kind == "heavy":
        x = x.sign() * x.abs() ** 3
    elif kind == "sparse":
        x, gate, up, down = (v * torch.from_numpy(rng.random(tuple(v.shape)) < 0.25) for v in (x, gate, up, down))
    elif kind == "mixed":
        base = 2.0 if recipe == "nvfp4" else 10.0  # a static global scale covers 18 binades, and h has the factor twice
        x = x * base ** torch.from_numpy(rng.integers(-3, 3, (tokens, 1)))
    best = logits.topk(top_k, dim=1)
    ids, weights = best.indices.to(torch.int32), best.values.softmax(1).float()
    operands = [Operand(fake_quantize(v, CHAINS[recipe], largest(v))[0].float(), format="float32") for v in (x, gate, up, down)]
    case = Case.model_validate({"shape": {"num_tokens": tokens, "hidden_size": hidden, "intermediate_size": inter,
                                          "num_experts": experts, "top_k": top_k}})
    batch = Batch(operands[0], ids, weights, logits.float())
    problem = Problem(case, Weights(*operands[1:]), batch, operands[0], ids, weights)
    if recipe == "nvfp4":
        hidden = kernel(problem, Numerics(), 0.0, rng)[2]
        problem = replace(problem, weights=replace(problem.weights, intermediate_scale=largest(torch.cat([*hidden.values()]))))
    return problem


def kernel(problem: Problem, numerics: Numerics, noise: float,
           rng: np.random.Generator) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
    """A healthy answer [T, H] bf16, its expert outputs [T, k, H] and each expert's rounded intermediate."""
    x = problem.flat_x.data.double()
    weights, ids = problem.weights, problem.flat_ids
    assert weights.up is not None
    parts = x.new_zeros(*ids.shape, weights.down.data.shape[1])
    hidden = {}
    for expert in range(weights.gate.data.shape[0]):
        token, rank = (ids == expert).nonzero(as_tuple=True)
        a = x[token] @ weights.gate.data[expert].double().T
        b = x[token] @ weights.up.data[expert].double().T
        a, b = (v * (1 + noise * torch.from_numpy(rng.standard_normal(tuple(v.shape)))) for v in (a, b))
        h = fake_quantize(a * torch.sigmoid(a) * b, numerics.intermediate, weights.intermediate_scale)[0]
        out = h @ weights.down.data[expert].double().T
        parts[token, rank] = out if numerics.expert_output == "none" else round_to(out, numerics.expert_output)
        hidden[expert] = h
    return combine(parts, problem), parts, hidden


def combine(parts: Tensor, problem: Problem) -> Tensor:
    return (parts * problem.flat_weights.double()[:, :, None]).sum(1).to(torch.float32).to(torch.bfloat16)


def with_noise(problem: Problem, numerics: Numerics, noise: float) -> Reference:
    """The reference with its twins at the relative noise of the simulated kernel."""
    ref = make_reference(problem, numerics)
    return replace(ref, noise=preactivation_noise(problem, numerics, ref.slots, ref.x, ref.gate, ref.up, noise)[0])


def draws(count: int, geometry: str = "G2", seed: int = 0, settings: list[tuple[str, float, str]] = SETTINGS) -> Iterator[
        tuple[tuple[str, float, str], Draw]]:
    rng = np.random.default_rng(seed)
    for setting in settings:
        recipe, noise, kind = setting
        for _ in range(count):
            problem = make_problem(rng, recipe, kind, GEOMETRIES[geometry])
            numerics = numerics_of(recipe)
            yield setting, Draw(with_noise(problem, numerics, noise), *kernel(problem, numerics, noise, rng))


def defect(name: str, draw: Draw, size: float | None = None) -> Tensor:
    """The healthy answer with one seeded defect, bf16. size: factor of D8 and D10, sigmas of D11."""
    problem, parts = draw.problem, draw.parts
    y = draw.healthy.double()
    weighted = parts * problem.flat_weights.double()[:, :, None]
    fifth = problem.flat_ids == 5
    if name == "D1":
        y = torch.zeros_like(y)
    elif name == "D2":
        y[7] = 0
    elif name == "D3":
        y[64:128, 128:192] = 0
    elif name == "D4":
        y[:, -8:] = 0
    elif name == "D5":
        y[7] -= weighted[7, 3]
    elif name == "D6":
        y -= weighted[:, -1]
    elif name == "D7":
        token, rank = fifth.nonzero(as_tuple=True)
        w = problem.flat_weights.double()[token, rank][:, None]
        y[token] += w * (parts[token, rank].roll(1, 0) - parts[token, rank])
    elif name == "D8":
        y += ((size or 1.25) - 1) * (weighted * fifth[:, :, None]).sum(1)
    elif name == "D9":
        token, rank = fifth.nonzero(as_tuple=True)
        lost = draw.hidden[5][:, :128] @ problem.weights.down.data[5, :, :128].double().T
        y[token] -= problem.flat_weights.double()[token, rank][:, None] * lost
    elif name == "D10":
        y *= size or 1.03
    elif name == "D11":
        y[100, 100] += (size or 6.0) * y.std()
    return y.to(torch.float32).to(torch.bfloat16)
