"""A sharper limit for rows that stand out: how far can flips of a re-quantised intermediate move one row?

The oracle rounds the intermediate as the kernel does, so both differ only where noise carries a value over a rounding edge.
Whether a value can flip, how likely and how far is known from the reference. Flips are independent, so the row's mean z^2
has the Chernoff (Poisson) bound min over lambda of (sum p (e^(lambda q) - 1) + ln(1/level)) / lambda, with q the mean z^2 of
one flip. Where few values can flip this is far below the chi-square limit; it costs the token's weight matrices and is
computed for single rows only.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from scipy import special
from torch import Tensor

from moeguard.oracle.noise import FAST_MATH, QUOTIENT, REACH
from moeguard.oracle.reference import Reference, quantum, roundoff
from moeguard.oracle.twins import round_intermediate
from moeguard.oracle.unpacked import unpacked
from moeguard.tensors.operand import Operand

#: Factor on the noise, whose estimate may be low for a real kernel.
_SAFETY = 2.0
_LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, REACH)
_LAMBDAS = torch.logspace(-2, 3, 41, dtype=torch.float64)


def flip_limit(reference: Reference, token: int, level: float) -> float:
    """Limit on mean z^2 of row ``token`` that a healthy kernel passes with probability at least 1 - ``level``.

    Infinite where the model does not hold: no intermediate rounding, undecided input codes or undecided scales in the row.
    """
    rounding = reference.numerics.intermediate
    slots = reference.slots
    mine = (slots.token == token).nonzero()[:, 0]
    together = slots.together()
    _, first = np.unique(slots.expert[mine].cpu().numpy(), return_index=True)  # copies of an expert flip together
    mine = mine[torch.from_numpy(first).to(mine.device)]
    columns = reference.y.shape[1]
    if rounding == "none" or not len(mine) or bool(reference.tied[token]):
        return math.inf
    if reference.edges is not None and bool(torch.isin(mine, reference.edges.slot).any()):
        return math.inf
    inverse = reference.deviation[token].square().reciprocal()
    hidden = reference.hidden[mine]
    scale = reference.hidden_scale
    scale = None if scale is None else scale.expand_as(reference.hidden)[mine]
    step = torch.maximum(roundoff(rounding) * hidden.abs(), torch.as_tensor(quantum(rounding, scale), dtype=hidden.dtype))
    probability, size = _flips(reference, mine, scale)
    shared, energy = torch.zeros_like(inverse), torch.zeros_like(size)
    for row, slot in enumerate(mine.tolist()):
        squares = _matrix(reference.problem.weights.down, int(slots.expert[slot])).square_().mul_(together[slot] ** 2)
        shared += squares @ (step[row].square() / 3)
        energy[row] = size[row].square() * (inverse @ squares / columns)
    rest = 1 - float((shared * inverse).clamp(0, 1).mean())
    unit, lambdas = float(energy.max().clamp_min(1e-12)), _LAMBDAS.to(energy.device)
    moving = energy > 0
    exponent = (lambdas[:, None] / unit * energy[moving]).clamp_max_(300.0)
    moment = (probability[moving] * torch.expm1(exponent)).sum(1)
    jumps = float(((moment + math.log(2 / level)) * unit / lambdas).min()) * (1 + 2 / math.sqrt(columns))
    return jumps + rest * float(special.chdtri(columns, level / 2)) / columns


def _flips(reference: Reference, mine: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Chance and size of a flip of each intermediate value of the slots ``mine``, [n, I]."""
    raw = reference.raw[mine]
    spread = _SAFETY * torch.hypot(reference.noise[mine], FAST_MATH * raw.abs())

    def rounded(value: Tensor, tilt: float) -> Tensor:
        return round_intermediate(reference.numerics.intermediate, value, scale, tilt)

    centre = rounded(raw, 0.0)
    probability, size = torch.zeros_like(raw), torch.zeros_like(raw)
    for inner, outer in pairwise(_LEVELS):
        moved = torch.maximum((rounded(raw - outer * spread, -QUOTIENT) - centre).abs(),
                              (rounded(raw + outer * spread, QUOTIENT) - centre).abs())
        probability = torch.where((moved > 0) & (probability == 0), 2 * float(special.ndtr(-inner)), probability)
        size = torch.maximum(size, moved)
    return probability, size


def _matrix(weight: Operand, expert: int) -> Tensor:
    kept = unpacked(weight)
    if kept is not None:
        return kept.value[expert].clone()
    return weight.experts(slice(expert, expert + 1)).dequantize(torch.float64)[0]
