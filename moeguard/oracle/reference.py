"""The reference answer of a problem, with the variance map of a healthy kernel.

y* = sum_j w_j * (Q(act(x W1, x W3)) W2), in float64, with Q the declared intermediate rounding; neither the experts'
outputs nor y* are rounded. V is the first-order variance of a healthy kernel around y*: every rounding is uniform on
+-u*|value| and independent. S = sqrt(V).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from moeguard.core.errors import HarnessError
from moeguard.core.numerics import UNSCALED, Numerics
from moeguard.core.recipe import RECIPES
from moeguard.oracle.activation import activate
from moeguard.oracle.noise import FAST_MATH, PROMOTION, preactivation_noise, static_scale
from moeguard.oracle.scale_edges import ScaleEdges, scale_edges
from moeguard.oracle.shared_ties import shared_ties
from moeguard.oracle.slots import Slots, column_energy, grouped_product, make_slots, row_norms
from moeguard.quant.blocks import code_format, fake_quantize
from moeguard.quant.formats import FORMATS, Format
from moeguard.tensors.problem import Problem

#: Below this a float32 kernel may flush, or a dynamic FP8 block counts as zero (448 * 2**-126).
UNDERFLOW = 448.0 * 2.0**-126
#: Smallest normal number of float32 and bf16.
FLUSHED = 2.0**-126


@dataclass(frozen=True, slots=True)
class Reference:
    """Oracle of one problem. All float64.

    y, deviation (S) [T, H]. row_freedom [T]: effective degrees of freedom of a row's squared error (nu).
    tied bool [T]: rows with input codes, or several equal values of the intermediate, that a kernel may round either way.
    underflow: mean share of V that stands for underflow, which twins do not have. defined: bool [T, H], False where a healthy
    kernel may overflow its formats, or None for everywhere. valid: bool [T] rows with a defined answer, or None.
    edges: groups of the intermediate with an undecided scale, or None. swing [S, H]: how far a slot's weighted output moves when
    its equal values on a tie are rounded the other way, or None.
    Intermediate values gate, up, raw act, its healthy noise, hidden (rounded) [S, I], expert_output [S, H] serve twins, cap.
    """

    problem: Problem
    numerics: Numerics
    slots: Slots
    y: Tensor
    deviation: Tensor
    row_freedom: Tensor
    tied: Tensor
    underflow: float
    defined: Tensor | None
    valid: Tensor | None
    x: Tensor
    gate: Tensor
    up: Tensor | None
    raw: Tensor
    noise: Tensor
    edges: ScaleEdges | None
    hidden: Tensor
    hidden_scale: Tensor | None
    expert_output: Tensor
    swing: Tensor | None = None

    @property
    def output(self) -> Format:
        """Format of ``out``."""
        return FORMATS[RECIPES[self.problem.case.recipe].output]

    @property
    def exact(self) -> bool:
        """Whether healthy answers are bitwise equal: the case is exact, and so are its expert outputs and their combine."""
        if not self.problem.case.exact or self.numerics.combine != "fp32":
            return False
        kept = self.numerics.expert_output == "none" or fake_quantize(self.expert_output, self.numerics.expert_output)[0]
        return kept is True or bool(torch.equal(kept, self.expert_output))


def make_reference(problem: Problem, numerics: Numerics) -> Reference:
    """Compute the oracle. Raises HarnessError when it is not finite."""
    case, weights = problem.case, problem.weights
    slots = make_slots(problem.flat_ids, problem.flat_weights, case.first_expert, case.experts_local)
    x, _ = fake_quantize(problem.flat_x.dequantize(torch.float64), numerics.input, static_scale(problem))
    rows = x[slots.token]
    gate = grouped_product(rows, weights.gate, slots, bias=weights.gate_bias)
    up = None if weights.up is None else grouped_product(rows, weights.up, slots, bias=weights.up_bias)
    raw = activate(case.activation, gate, up, saturated=case.inputs.kind == "exact")
    hidden, scale = fake_quantize(raw, numerics.intermediate, weights.intermediate_scale)
    hidden = torch.where(torch.isfinite(hidden), hidden, raw)  # overflow: the row is undefined, the oracle stays finite
    output = grouped_product(hidden, weights.down, slots, bias=weights.down_bias)
    weighted = output * slots.weight[:, None]
    y = slots.combine(weighted)

    noise, edge = preactivation_noise(problem, numerics, slots, x, gate, up)
    edges = scale_edges(numerics.intermediate, raw, torch.hypot(noise, FAST_MATH * raw.abs()), weights.intermediate_scale)
    variance_hidden = hidden_variance(numerics, hidden, scale, noise, edges)
    together = slots.together()
    influence = (slots.weight * together).abs_()
    spread = grouped_product(variance_hidden, weights.down, slots, transform="square") * influence[:, None]
    ties = None if case.exact else shared_ties(numerics.intermediate, raw, hidden, scale)  # exact quotients decide a tie
    swing = None if ties is None else grouped_product(ties, weights.down, slots) * slots.weight[:, None]
    shared = slots.combine(spread) if swing is None else slots.combine(spread) + slots.combine(swing).square_()
    squares = slots.combine(output.square() * influence[:, None])
    form = FORMATS[RECIPES[case.recipe].output]
    variance = shared + _independent(numerics, form, problem.flat_ids.shape[1], squares, y)
    flush = _flush(slots, hidden, output, influence)
    floor = flush + _smallest(form, numerics, problem.flat_ids.shape[1]) ** 2
    if numerics.expert_output != "none":
        floor = floor + (FORMATS[numerics.expert_output].quantum / 2) ** 2 * slots.combine(influence)[:, None]
    deviation = (variance + floor).sqrt_()
    underflow = float((flush / deviation.square()).mean()) if y.numel() else 0.0
    if not bool(torch.isfinite(y).all() & torch.isfinite(deviation).all()):
        raise HarnessError(f"the oracle of case {case.fingerprint} is not finite")
    unit_energy = column_energy(weights.down, slots)[slots.expert] * influence[:, None]
    fraction = (shared / deviation.square()).mean(1)
    coherent = None if edge is None else edge.square() * unit_energy
    freedom = _freedom(slots, variance_hidden * unit_energy, coherent, slots.copies(together), fraction, case.shape.hidden_size)
    longest = row_norms(weights.down, slots).amax(1)[slots.expert]
    if weights.down.scale is not None:  # a kernel may sum codes and scale the sum, the row's scale first
        codes = weights.down.maximum * (FORMATS["e4m3"].maximum if weights.down.global_scale is not None else 1.0)
        longest = longest.clamp_min(codes * math.sqrt(hidden.shape[1]))
    reach = torch.linalg.vector_norm(hidden, dim=1) * longest
    projected = gate if up is None else torch.maximum(gate.abs(), up.abs())
    defined = _defined(slots, raw, projected, reach, output, y, deviation, numerics, form)
    tied = torch.zeros(y.shape[0], dtype=torch.bool, device=y.device)
    if edge is not None:
        tied[slots.token[(edge > 0).any(1)]] = True
    if ties is not None:
        tied[slots.token[(ties != 0).any(1)]] = True
    return Reference(problem, numerics, slots, y, deviation, freedom, tied, underflow, defined, problem.valid, x, gate, up, raw,
                     noise, edges, hidden, scale, output, swing)


def roundoff(rounding: str) -> float:
    """Root of the summed squared roundoffs of a rounding chain."""
    parts = (part for part in rounding.split("+") if part != "none")
    return math.sqrt(sum(FORMATS[code_format(part)].roundoff ** 2 for part in parts))


def quantum(rounding: str, scale: Tensor | None) -> Tensor | float:
    """Half the smallest step of the last format of a chain, in real units (broadcastable to [S, I])."""
    last = rounding.rsplit("+", 1)[-1]
    if last == "none":
        return 0.0
    if last not in UNSCALED:
        assert scale is not None
        return scale * (FORMATS[code_format(last)].quantum / 2)
    return FORMATS[last].quantum / 2


def hidden_variance(numerics: Numerics, hidden: Tensor, scale: Tensor | None, noise: Tensor,
                    edges: ScaleEdges | None = None) -> Tensor:
    """Variance of one element of the rounded intermediate, [S, I]. A kernel takes the other scale of ``edges`` in half of the
    cases at most.
    """
    step = torch.maximum(roundoff(numerics.intermediate) * hidden.abs(),
                         torch.as_tensor(quantum(numerics.intermediate, scale), dtype=hidden.dtype, device=hidden.device))
    steps = math.ceil(hidden.shape[1] / PROMOTION) if numerics.accumulate == "fp8_hopper" else hidden.shape[1]
    variance = step.square_() + (steps * numerics.u_acc**2) * hidden.square()
    variance = variance.div_(3).add_(noise.square()).add_(UNDERFLOW**2)
    return variance if edges is None else variance.add_(edges.fill(edges.swing.square() / 2, variance))


def _independent(numerics: Numerics, form: Format, top_k: int, squares: Tensor, y: Tensor) -> Tensor:
    """Variance of roundings that hit each output element on its own: expert outputs, combine, output. [T, H]

    A combine in low precision rounds K partial sums; over a random order their mean square is
    (K+1)/2 * sum t^2 + (K+1)/3 * (y^2 - sum t^2), with copies of one expert in ``squares`` taken together (an upper bound).
    """
    variance = y.square() * (form.roundoff**2 / 3)
    if numerics.expert_output != "none":
        variance += squares * (roundoff(numerics.expert_output) ** 2 / 3)
    if numerics.combine != "fp32":
        u = form.roundoff if numerics.combine == "output" else FORMATS["bf16"].roundoff
        partial = squares * ((top_k + 1) / 2) + (y.square() - squares) * ((top_k + 1) / 3)
        variance += partial.clamp_min_(0) * (u**2 / 3)
    return variance


def _flush(slots: Slots, hidden: Tensor, output: Tensor, influence: Tensor) -> Tensor:
    """Variance from float32 and bf16 subnormals that a kernel may flush, [T, 1] or [T, H]."""
    flush = slots.combine(UNDERFLOW**2 * hidden.square().sum(1) * influence)[:, None] + (2 * FLUSHED) ** 2
    flushed = slots.weight.abs() < FLUSHED  # a subnormal routing weight may count as zero
    return flush + slots.combine(output.square() * (influence * flushed)[:, None]) if bool(flushed.any()) else flush


def _smallest(form: Format, numerics: Numerics, top_k: int) -> float:
    """Half the smallest step of ``out``, once and at each step of a combine in its format."""
    return form.quantum / 2 * (1.0 + (math.sqrt(top_k) if numerics.combine == "output" else 0.0))


def _freedom(slots: Slots, energy: Tensor, coherent: Tensor | None, copies: Tensor, fraction: Tensor, columns: int) -> Tensor:
    """nu of each row: 1/nu = f^2 * (p + (1 - p)/H) + (1 - f^2)/H.

    f is the share of the variance that comes from the intermediate, p = sum of squared shares of its elements: one
    dominant element moves all columns of the row together (Satterthwaite's approximation with tr C^2 / (tr C)^2).
    ``coherent``: the part of ``energy`` that comes from undecided input codes, which move all elements of a token at once.
    ``copies`` [S]: how often a token has the slot's expert; its errors are the same in every copy.
    """
    total = slots.combine(energy.sum(1)).clamp_min_(1e-300)
    share = (energy if coherent is None else energy - coherent) / total[slots.token][:, None]
    parallel = slots.combine(share.square().sum(1) * copies)
    if coherent is not None:
        parallel += (slots.combine(coherent.sum(1)) / total).square()
    parallel = parallel.clamp_(1e-12, 1.0)
    return 1.0 / (fraction.square() * (parallel + (1 - parallel) / columns) + (1 - fraction.square()) / columns)


def _defined(slots: Slots, raw: Tensor, projected: Tensor, reach: Tensor, output: Tensor, y: Tensor, deviation: Tensor,
             numerics: Numerics, form: Format) -> Tensor | None:
    """Where a healthy kernel is sure to stay inside its formats; None when everywhere.

    projected [S, I]: the larger of gate and up. reach [S]: no partial sum of a slot's second product, scaled or not, is
    larger (Cauchy-Schwarz).
    """
    inside = sums_inside(slots, output, y, deviation, numerics, form)
    if numerics.expert_output != "none":
        too_large = output.abs() > FORMATS[numerics.expert_output].maximum * 0.9
        inside &= slots.combine(too_large.double()) == 0
    last = numerics.intermediate.split("+")[0]
    ceiling = FORMATS[last].maximum if last in ("bf16", "fp16") else FORMATS["float32"].maximum
    overflow = (raw.abs() > ceiling * 0.99).any(1) | (reach > FORMATS["float32"].maximum / 2)
    if numerics.projection != "none":
        overflow |= (projected.abs() > FORMATS[numerics.projection].maximum * 0.9).any(1)
    if bool(overflow.any()):
        inside &= ~(slots.combine(overflow.double()) > 0)[:, None]
    return None if bool(inside.all()) else inside


def sums_inside(slots: Slots, output: Tensor, y: Tensor, deviation: Tensor, numerics: Numerics, form: Format) -> Tensor:
    """Where the answer, and the partial sums of a combine in low precision, stay inside their formats, bool [T, H]."""
    inside = y.abs() + 8 * deviation < form.maximum
    if numerics.combine != "fp32":
        narrow = form if numerics.combine == "output" else FORMATS["bf16"]
        inside &= slots.combine((output * slots.weight[:, None]).abs_()) + 8 * deviation < narrow.maximum
    return inside
