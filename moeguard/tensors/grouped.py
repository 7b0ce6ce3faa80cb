"""Four-bit weights with one scale for each group of a row: e2m1 with e8m0 scales of 32 elements, int4 with bf16 scales of 128.

Groups lie along the reduction axis: along H in gate and up, along I in down.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moeguard.core.case import Case
from moeguard.core.recipe import RECIPES
from moeguard.quant.e8m0 import LEAST, exponent_byte
from moeguard.quant.formats import encode
from moeguard.quant.packed import NIBBLES, encode_nibbles, pack
from moeguard.tensors.counter import NORMAL_BOUND, Stream
from moeguard.tensors.operand import Operand

#: Drawn integer (of 510) that becomes the largest code: 3 standard deviations, what the largest of a group of 128 is like.
_PEAK = 450.0
#: Binades over which e8m0 scales of one matrix spread, and where they begin.
_BINADES, _LOWEST = 4, -2


def store(case: Case, stream: Stream, label: str, words: Tensor, deviation: float, factor: Tensor) -> Operand:
    """This rank's integers in [-510, 510], [E_local, R, C], as a packed operand.

    deviation: standard deviation of the values at factor 1. factor float32 [E_local, 1]: multiplies an expert's scales; where
    it is zero, e8m0 (which has none) is at its least and the codes are zero, as quantisers leave them; bf16 scales are zero.
    """
    recipe = RECIPES[case.recipe]
    full = 4.0 if case.scales.kind == "saturating" else 1.0
    top = NIBBLES[recipe.weight_format].maximum
    factor = factor.view(-1, 1, 1)
    value = words.to(torch.float32).mul_(full * top / _PEAK)
    base = deviation * NORMAL_BOUND / 510 * _PEAK / top / full
    if recipe.weight_format == "e2m1":
        _, exponent = torch.frexp(factor * base)
        scale = exponent_byte(exponent - 1 + _drawn(case, stream, label, _LOWEST, _LOWEST + _BINADES))
        scale = torch.where(factor == 0, torch.full_like(scale, LEAST), scale)
        value = torch.where(factor == 0, torch.zeros_like(value), value)
    else:
        jitter = _drawn(case, stream, label, 1 << 7, 1 << 9).to(torch.float32) / 256.0
        scale = encode(jitter * (factor * base), "bf16")
    return Operand(pack(encode_nibbles(value, recipe.weight_format)), scale=scale, format=recipe.weight_format)


def store_exact(case: Case, stream: Stream, label: str, value: Tensor) -> Operand:
    """Float32 ``value`` [E_local, R, C] of this rank as a packed operand that holds it exactly.

    value: in each group zeros and one magnitude, a power of two. It is stored as code 1, 2 or 4, so that the scales of
    neighbouring groups differ.
    """
    recipe = RECIPES[case.recipe]
    groups = value.unflatten(-1, (-1, recipe.group))
    _, exponent = torch.frexp(groups.abs().amax(-1))
    largest = (exponent - 1).clamp_min(0)
    power = (largest - _drawn(case, stream, label, 0, 3)).to(torch.int32)
    code = torch.ldexp(groups, -power[..., None]).flatten(-2)
    stored = encode_nibbles(code, recipe.weight_format)
    real = torch.ldexp(torch.ones(power.shape, device=power.device), power)
    scale = exponent_byte(power) if recipe.weight_format == "e2m1" else encode(real, "bf16")
    return Operand(pack(stored), scale=scale, format=recipe.weight_format)


def _drawn(case: Case, stream: Stream, label: str, low: int, high: int) -> Tensor:
    """Integers in [low, high), one a group of this rank's matrix ``label``: drawn for the whole layer, then cut."""
    hidden, inter, local = case.shape.hidden_size, case.shape.intermediate_size, case.intermediate_local
    group, start = RECIPES[case.recipe].group, case.parallel.tp_rank * local
    experts = range(case.first_expert, case.first_expert + case.experts_local)
    rows, columns = (hidden, inter // group) if label == "down" else (inter, hidden // group)
    value = stream.integers(f"{label}-groups", rows * columns, low, high, rows=experts).view(len(experts), rows, columns)
    if label == "down":
        return value[:, :, start // group:(start + local) // group].contiguous()
    return value[:, start:start + local].contiguous()
