"""Twins: emulations of the same recipe on the same problem with another accumulation order.

A twin differs from the oracle where accumulation noise moves a value over a rounding edge, and by the roundings that the
oracle leaves out (expert output, combine, output). Only slots in which something moved are multiplied again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moeguard.core.numerics import Numerics
from moeguard.oracle.activation import activate
from moeguard.oracle.reference import Reference, accumulator_noise
from moeguard.oracle.slots import Slots, grouped_product, make_slots
from moeguard.quant.blocks import fake_quantize
from moeguard.quant.formats import round_to

#: Relative error of a fast exponential and reciprocal on a GPU (about 2 ulp in float32).
FAST_MATH = 2.0**-22


def twin_outputs(reference: Reference, count: int, seed: int = 0, numerics: Numerics | None = None,
                 noise: float | None = None) -> Tensor:
    """``count`` healthy answers, float64 [count, T, H], rounded to the output format.

    numerics: rounding points other than the reference's own. noise: relative standard deviation of the
    pre-activations, in place of the accumulator's estimate.
    """
    recipe = numerics or reference.numerics
    problem, slots = reference.problem, reference.slots
    generator = torch.Generator(device=reference.y.device).manual_seed(seed * 1000 + 17)
    deviations = None if noise is not None else {
        name: accumulator_noise(problem, recipe, slots, reference.x, name)
        for name in (("gate",) if reference.up is None else ("gate", "up"))}

    def moved(value: Tensor, name: str) -> Tensor:
        jitter = torch.randn(value.shape, dtype=torch.float64, device=value.device, generator=generator)
        return value + jitter * (value.abs() * noise if deviations is None else deviations[name])

    answers = []
    for _ in range(count):
        gate = moved(reference.gate, "gate")
        up = None if reference.up is None else moved(reference.up, "up")
        raw = activate(problem.case.activation, gate, up)
        raw *= 1 + FAST_MATH * torch.randn(raw.shape, dtype=torch.float64, device=raw.device, generator=generator)
        hidden, _ = fake_quantize(raw, recipe.intermediate, problem.weights.intermediate_scale)
        output = reference.expert_output + _difference(reference, hidden - reference.hidden)
        answers.append(finish(output, slots, recipe, reference))
    return torch.stack(answers) if answers else reference.y.new_zeros(0, *reference.y.shape)


def finish(output: Tensor, slots: Slots, numerics: Numerics, reference: Reference) -> Tensor:
    """Expert outputs [S, H] to the rounded answer [T, H] by the declared expert-output, combine and output rounding."""
    form = reference.output.name
    if numerics.expert_output != "none":
        output, _ = fake_quantize(output, numerics.expert_output)
    weighted = output * slots.weight[:, None]
    if numerics.combine == "fp32":
        return round_to(slots.combine(weighted), form)
    narrow = form if numerics.combine == "output" else "bf16"
    total = torch.zeros_like(reference.y)
    for rank in range(reference.problem.flat_ids.shape[1]):
        mine = slots.rank == rank
        total[slots.token[mine]] = round_to(total[slots.token[mine]] + weighted[mine], narrow)
    return round_to(total, form)


def _difference(reference: Reference, change: Tensor) -> Tensor:
    """``change`` [S, I] times the down weights, computed for the slots in which anything changed."""
    slots = reference.slots
    hit = (change != 0).any(1).nonzero()[:, 0]
    result = torch.zeros_like(reference.expert_output)
    if not hit.numel():
        return result
    if hit.numel() * 2 > slots.count:
        return grouped_product(change, reference.problem.weights.down, slots)
    case = reference.problem.case
    part = make_slots(slots.expert[hit][:, None] + case.first_expert, slots.weight[hit][:, None], case.first_expert,
                      case.experts_local)
    result[hit[part.token]] = grouped_product(change[hit][part.token], reference.problem.weights.down, part)
    return result
