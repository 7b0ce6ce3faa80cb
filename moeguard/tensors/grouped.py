"""Weights with one scale for each group of a row: e4m3 and e2m1 with e8m0 scales of 32 elements, e2m1 with e4m3 scales of 16
below a float32 global scale an expert, int4 with bf16 scales of 128.

Groups lie along the reduction axis: along H in gate and up, along I in down.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moeguard.core.case import Case
from moeguard.core.recipe import RECIPES, Recipe
from moeguard.quant.e8m0 import LEAST, exponent_byte
from moeguard.quant.formats import FORMATS, encode
from moeguard.quant.packed import NIBBLES, encode_nibbles, pack
from moeguard.tensors.counter import NORMAL_BOUND, Stream
from moeguard.tensors.operand import Operand
from moeguard.tensors.scaling import fill

#: Drawn integer (of 510) that becomes the largest code: 3 standard deviations, what the largest of a group of 128 is like.
_PEAK = 450.0
#: Binades over which e8m0 scales of one matrix spread, and where they begin.
_BINADES, _LOWEST = 4, -2
#: e4m3 scales of one matrix: bytes of [2**4, 2**8), all mantissas; where codes saturate, up to the largest scale (448).
_E4M3_BYTES, _E4M3_LARGEST = (0x58, 0x78), 0x7E
#: Typical e4m3 scale; the global scale is made for it.
_E4M3_TYPICAL = 96.0


def codes(case: Case, words: Tensor, factor: Tensor) -> Tensor:
    """This rank's integers in [-510, 510], [E_local, R, C], as stored codes.

    factor float32 [E_local, 1]: multiplies an expert's scales. Where it is zero the codes of e2m1, and of any format whose scales
    are e8m0, which has no zero, are zero, as quantisers leave them.
    """
    recipe = RECIPES[case.recipe]
    value = words.to(torch.float32).mul_(fill(case) * _step(recipe))
    if recipe.weight_scale != "bf16_1x128":
        value = torch.where(factor.view(-1, 1, 1) == 0, 0.0, value)
    return _encode(recipe, value)


def scales(case: Case, stream: Stream, label: str, deviation: float, factor: Tensor) -> tuple[Tensor, Tensor | None]:
    """Scales of ``codes``, one a group, and global scales, if any, with which values have standard deviation ``deviation`` times
    the expert's ``factor``. Where that is zero, e8m0 is at its least; other scales are zero.
    """
    recipe, factor = RECIPES[case.recipe], factor.view(-1, 1, 1)
    base = deviation * NORMAL_BOUND / 510 / _step(recipe) / fill(case)
    if recipe.weight_scale == "e4m3_1x16":
        return _nvfp4(case, stream, label, factor, base)
    if recipe.weight_scale == "e8m0_1x32":
        _, exponent = torch.frexp(factor * base)
        scale = exponent_byte(exponent - 1 + _drawn(case, stream, label, _LOWEST, _LOWEST + _BINADES))
        return torch.where(factor == 0, torch.full_like(scale, LEAST), scale), None
    jitter = _drawn(case, stream, label, 1 << 7, 1 << 9).to(torch.float32) / 256.0
    return encode(jitter * (factor * base), "bf16"), None


def _step(recipe: Recipe) -> float:
    """What a drawn integer of one is as a code."""
    if recipe.packed:
        return NIBBLES[recipe.weight_format].maximum / _PEAK
    return FORMATS[recipe.weight_format].maximum / 510.0


def _encode(recipe: Recipe, value: Tensor) -> Tensor:
    """``value`` [E_local, R, C] without its scales, as codes."""
    return pack(encode_nibbles(value, recipe.weight_format)) if recipe.packed else encode(value, recipe.weight_format)


def _nvfp4(case: Case, stream: Stream, label: str, factor: Tensor, base: float) -> tuple[Tensor, Tensor]:
    """e4m3 scales drawn over four binades, and the factor in the global scale.

    Scales of zero stand for a factor of zero, the global scale then being what factor 1 gives. In kind ``tiny`` one group of
    down in four has a subnormal scale, or zero; gate and up have none, so that a kernel with one global scale for both can
    shift theirs (see ``scaling.magnitudes``).
    """
    low, high = _E4M3_BYTES
    byte = _drawn(case, stream, label, low, _E4M3_LARGEST + 1 if case.scales.kind == "saturating" else high)
    if case.scales.kind == "tiny" and label == "down":
        small = _drawn(case, stream, f"{label}-small", 0, 32)
        byte = torch.where(small < 8, small, byte)
    dead = factor == 0
    byte = torch.where(dead, 0, byte).to(torch.uint8)
    whole = torch.where(dead, 1.0, factor) * (base / _E4M3_TYPICAL)
    return byte.view(torch.float8_e4m3fn), whole.reshape(-1)


def store_exact(case: Case, stream: Stream, label: str, value: Tensor) -> Operand:
    """Float32 ``value`` [E_local, R, C] of this rank as an operand with group scales that holds it exactly.

    value: in each group zeros and one magnitude, a power of two. It is stored as code 1, 2 or 4, so that the scales of
    neighbouring groups differ; global scales are 1, 2 or 4.
    """
    recipe = RECIPES[case.recipe]
    groups = value.unflatten(-1, (-1, recipe.group))
    _, exponent = torch.frexp(groups.abs().amax(-1))
    largest = (exponent - 1).clamp_min(0)
    power = (largest - _drawn(case, stream, label, 0, 3)).to(torch.int32)
    code = torch.ldexp(groups, -power[..., None]).flatten(-2)
    scale, whole = exponent_byte(power), None
    if recipe.weight_scale != "e8m0_1x32":
        scale = torch.ldexp(torch.ones(power.shape, device=power.device), power)
        if recipe.weight_scale == "e4m3_1x16":
            experts = range(case.first_expert, case.first_expert + case.experts_local)
            whole = torch.exp2(stream.integers(f"{label}-global", 1, 0, 3, rows=experts).to(torch.float32)).reshape(-1)
            scale = scale / whole.view(-1, 1, 1)
        scale = encode(scale, "bf16" if whole is None else "e4m3")
    return Operand(_encode(recipe, code), scale, whole, recipe.weight_format)


def _drawn(case: Case, stream: Stream, label: str, low: int, high: int) -> Tensor:
    """Integers in [low, high), one a group of this rank's matrix ``label``: drawn for the whole layer, then cut."""
    hidden, inter, local = case.shape.hidden_size, case.shape.intermediate_size, case.intermediate_local
    group, start = RECIPES[case.recipe].group, case.parallel.tp_rank * local
    experts = range(case.first_expert, case.first_expert + case.experts_local)
    down = label.startswith("down")
    rows, columns = (hidden, inter // group) if down else (inter, hidden // group)
    value = stream.integers(f"{label}-groups", rows * columns, low, high, rows=experts).view(len(experts), rows, columns)
    if down:
        return value[:, :, start // group:(start + local) // group].contiguous()
    return value[:, start:start + local].contiguous()
