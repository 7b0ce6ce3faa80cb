"""The deterministic cap B: an answer of the declared recipe cannot be further from y* than B, whatever its order of sums.

First-order worst-case bounds (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., sections 2-4). Too loose to
find defects, tight enough to call a large one proven.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from moeguard.oracle.activation import sensitivity
from moeguard.oracle.noise import PROMOTION, input_ties, tie_shift
from moeguard.oracle.reference import Reference, quantum, roundoff
from moeguard.oracle.slots import grouped_product

#: Relative error allowed to an approximate exponential and reciprocal, in float32 roundoffs.
FAST_MATH_ROUNDOFFS = 8


def cap(reference: Reference) -> Tensor | str:
    """B [T, H], or the reason why no cap exists (too many accumulation steps for the accumulator)."""
    problem, numerics, slots = reference.problem, reference.numerics, reference.slots
    hidden_size, inter = reference.x.shape[1], reference.hidden.shape[1]
    first, second = _gamma(numerics.u_acc, numerics.accumulate, hidden_size), _gamma(numerics.u_acc, numerics.accumulate, inter)
    if first is None or second is None:
        return f"n * u_acc >= 1 for n = {max(hidden_size, inter)}"
    weights = problem.weights
    u = roundoff(numerics.intermediate)
    rows = reference.x[slots.token].abs()
    # products of stored operands may underflow float32; biases are added in float32
    gate_error = first * grouped_product(rows, weights.gate, slots, transform="abs") + 2.0**-126 * rows.sum(1)[:, None]
    narrow = roundoff(numerics.projection)
    gate_error += (2.0**-23 + narrow) * reference.gate.abs() + narrow * gate_error
    undecided = input_ties(problem, numerics)
    ties = tie_shift(problem, slots, undecided, "gate", power=1)
    gate_error = gate_error if ties is None else gate_error + ties
    by_gate, by_up = sensitivity(problem.case.activation, reference.gate, reference.up)
    if problem.case.activation.kind == "relu2":
        by_gate = by_gate + 2 * gate_error
    error = by_gate * gate_error
    if weights.up is not None:
        assert reference.up is not None
        up_error = first * grouped_product(rows, weights.up, slots, transform="abs") + 2.0**-126 * rows.sum(1)[:, None]
        up_error += (2.0**-23 + narrow) * reference.up.abs() + narrow * up_error
        ties = tie_shift(problem, slots, undecided, "up", power=1)
        up_error = up_error if ties is None else up_error + ties
        error = error + (by_up + 1.13 * gate_error) * up_error
    error = error + FAST_MATH_ROUNDOFFS * 2.0**-24 * reference.hidden.abs()
    magnitude = reference.hidden.abs() * (1 + u) + error
    error = error + 2 * u * magnitude + 2 * torch.as_tensor(quantum(numerics.intermediate, reference.hidden_scale)) + 2.0**-117
    if reference.edges is not None:  # the whole group may be on the grid of another scale
        edges = reference.edges
        error = error + edges.fill(edges.swing + torch.as_tensor(quantum(numerics.intermediate, edges.high[:, None])), error)
    out = grouped_product(error + second * magnitude, weights.down, slots, transform="abs")
    out = out + 2.0**-23 * reference.expert_output.abs()
    if numerics.expert_output != "none":
        out = out + roundoff(numerics.expert_output) * (reference.expert_output.abs() + out)
    spread = slots.combine(out * slots.weight.abs()[:, None])
    total = slots.combine(reference.expert_output.abs() * slots.weight.abs()[:, None]) + spread
    flushed = slots.weight.abs() < 2.0**-126
    if bool(flushed.any()):  # a subnormal routing weight may count as zero
        spread = spread + slots.combine(reference.expert_output.abs() * (slots.weight.abs() * flushed)[:, None])
    form = reference.output
    if numerics.combine != "fp32":
        step = form.roundoff if numerics.combine == "output" else 2.0**-8
        spread = spread + problem.flat_ids.shape[1] * step * total
    return spread + 2.0**-22 * total + form.roundoff * (reference.y.abs() + spread) + max(form.quantum, 2.0**-126)


def _gamma(u_acc: float, accumulate: str, length: int) -> float | None:
    steps = math.ceil(length / PROMOTION) + 1 if accumulate == "fp8_hopper" else length + 1
    product = steps * u_acc
    return None if product >= 1 else product / (1 - product)
