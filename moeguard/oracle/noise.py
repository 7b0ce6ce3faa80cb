"""Noise of a healthy kernel's pre-activations: the accumulator, a declared rounding, and input codes on a rounding edge.

A kernel that quantises ``x`` itself computes x / (amax / 448) or x * (448 / amax) in float32, with the amax of a block or of
the token (with a static scale that is a power of two every way gives the same code). With x stored in bf16 the exact quotient
is a tie of e4m3 for about one element in 400, and either code is right. The oracle takes one of them; the other is part of the
noise (kernels take it for a few per cent to one half of the ties, depending on how they divide).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from moeguard.core.case import Activation
from moeguard.core.numerics import Numerics
from moeguard.oracle.activation import sensitivity, slopes
from moeguard.oracle.slots import Slots, operand_columns, row_norms
from moeguard.quant.blocks import fake_quantize, power_of_two
from moeguard.quant.formats import FORMATS, round_to
from moeguard.tensors.problem import Problem

#: Elements per accumulation step of an FP8 tensor core between promotions.
PROMOTION = 128
#: Error of a 14-bit FP8 accumulation in units of u_acc * norm(x) * norm(w) / sqrt(H).
HOPPER_STEP = 2.0
#: Relative error of a float32 quotient by a float32 scale (three roundings, doubled).
QUOTIENT = 2.0**-21
#: Relative error of a fast exponential and reciprocal on a GPU (about 2 ulp in float32).
FAST_MATH = 2.0**-22
#: Noise is cut at this many standard deviations.
REACH = 5.0
#: Share of undecided codes for which a kernel is assumed to differ from the oracle.
_OTHER_CODE = 0.5
#: Undecided input codes that are multiplied at a time.
_CHUNK = 4096


def preactivation_noise(problem: Problem, numerics: Numerics, slots: Slots, x: Tensor, gate: Tensor, up: Tensor | None,
                        relative: float | None = None) -> tuple[Tensor, Tensor | None]:
    """Standard deviation of act(gate, up) of a healthy kernel before it is rounded, and its part from input ties, [S, I].

    relative: relative noise of the pre-activations in place of the accumulator's estimate; the ties are then left out.
    The second value is None when no input code is undecided.
    """
    by_gate, by_up = sensitivity(problem.case.activation, gate, up)
    rounded = projection_noise(problem.case.activation, numerics, gate, up)
    if relative is not None:
        total = (by_gate * gate * relative).square_().add_(rounded)
        return (total if up is None else total + (by_up * up * relative).square_()).sqrt_(), None
    total = (by_gate * accumulator_noise(problem, numerics, slots, x, "gate")).square_()
    undecided = input_ties(problem, numerics)
    ties = tie_shift(problem, slots, undecided, "gate", power=2)
    edge = None if ties is None else by_gate.square() * ties * _OTHER_CODE
    total += rounded
    if up is not None:
        total += (by_up * accumulator_noise(problem, numerics, slots, x, "up")).square_()
        ties = tie_shift(problem, slots, undecided, "up", power=2)
        edge = edge if ties is None or edge is None else edge + by_up.square() * ties * _OTHER_CODE
    return (total if edge is None else total + edge).sqrt_(), None if edge is None else edge.sqrt_()


def projection_noise(activation: Activation, numerics: Numerics, gate: Tensor, up: Tensor | None) -> Tensor | float:
    """Variance of act(gate, up) from the declared rounding of the projections, [S, I]; 0 when there is none."""
    if numerics.projection == "none":
        return 0.0
    by_gate, by_up = slopes(activation, gate, up)
    total = (by_gate * gate).square_()
    if up is not None:
        total += (by_up * up).square_()
    return total.mul_(FORMATS[numerics.projection].roundoff ** 2 / 3)


def accumulator_noise(problem: Problem, numerics: Numerics, slots: Slots, x: Tensor, which: str) -> Tensor:
    """Standard deviation of a healthy pre-activation's accumulation error, float64 [S, I] (rank-one estimate).

    The norms of the token and of the weight row over sqrt(H), times u_acc * sqrt(H) / 2 in float32. Hopper's FP8
    accumulator truncates each product to the largest of its step: HOPPER_STEP * u_acc, whatever H (errors of all steps add
    up like the norms do; measured with oracle.emulation, where u_acc / 2 per promotion was seven times too low for outliers).
    Float32 underflow is added.
    """
    operand = problem.weights.gate if which == "gate" else problem.weights.up
    assert operand is not None
    width = operand.shape[2]
    norm = row_norms(operand, slots)
    token = x.square().sum(1).sqrt_()[slots.token]
    relative = numerics.u_acc * (HOPPER_STEP / math.sqrt(width) if numerics.accumulate == "fp8_hopper" else 0.5)
    flush = 2.0**-126 * x.abs().sum(1)[slots.token]
    return norm[slots.expert] * (token * relative)[:, None] + flush[:, None]


Ties = tuple[Tensor, Tensor, Tensor]


def input_ties(problem: Problem, numerics: Numerics) -> Ties:
    """Undecided input codes: token [N], column [N], and the size of the step between the two codes, float64 [N]."""
    empty = torch.zeros(0, dtype=torch.int64, device=problem.device)
    rounding, static = numerics.input.split("+")[-1], static_scale(problem)
    if not rounding.startswith("e4m3") or (rounding == "e4m3_per_tensor" and static is not None and power_of_two(static)):
        return empty, empty, empty.double()
    value = problem.flat_x.dequantize(torch.float64)
    scale = fake_quantize(value, rounding, static)[1]
    assert scale is not None
    code = value / scale
    low, high = round_to(code * (1 - QUOTIENT), "e4m3"), round_to(code * (1 + QUOTIENT), "e4m3")
    token, column = (low != high).nonzero(as_tuple=True)
    return token, column, ((high - low).abs() * scale)[token, column]


def static_scale(problem: Problem) -> Tensor | None:
    """The scale by which a kernel quantises ``x`` statically, float32 [1]; None where the recipe has none."""
    given = problem.weights.input_scale
    return problem.flat_x.scale if given is None else given


def tie_shift(problem: Problem, slots: Slots, ties: Ties, which: str, power: int) -> Tensor | None:
    """Sum over a slot's undecided inputs of \\|step * weight\\|**power, float64 [S, I]; None when all codes are decided."""
    token, column, step = ties
    if not token.numel() or not slots.count:
        return None
    operand = problem.weights.gate if which == "gate" else problem.weights.up
    assert operand is not None
    by_token = torch.argsort(slots.token)
    held = torch.bincount(slots.token, minlength=slots.tokens)
    first = held.cumsum(0) - held
    tie = torch.repeat_interleave(torch.arange(token.shape[0], device=token.device), held[token])
    if not tie.numel():
        return None
    within = torch.arange(tie.shape[0], device=token.device) - (held[token].cumsum(0) - held[token])[tie]
    slot = by_token[first[token[tie]] + within]
    total = step.new_zeros(slots.count, operand.shape[1])
    for part in torch.arange(tie.shape[0], device=token.device).split(_CHUNK):
        shift = operand_columns(operand, slots.expert[slot[part]], column[tie[part]]) * step[tie[part]][:, None]
        total.index_add_(0, slot[part], shift.abs_() if power == 1 else shift.square_())
    return total
