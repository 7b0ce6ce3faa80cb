"""Case to ``batch.x``: input distributions, storage format and memory layout."""

from __future__ import annotations

from dataclasses import replace
from types import EllipsisType

import torch
from torch import Tensor

from moeguard.core.case import Case
from moeguard.core.recipe import RECIPES
from moeguard.quant.blocks import E4M3_MAX, dynamic_scales
from moeguard.quant.formats import FORMATS, encode, round_to
from moeguard.quant.microscaling import MX_GROUP, group_maxima, quantize_nvfp4
from moeguard.tensors import exact
from moeguard.tensors.counter import NORMAL_BOUND, Stream
from moeguard.tensors.operand import Operand

#: Elements of row padding in the layouts that have some.
ROW_PADDING = 8
#: Value range that the static scale of an FP8 ``x`` covers, by input kind.
_RANGE = {"heavy_tail": 128.0, "outlier": 1024.0, "spread": 448.0, "exact": E4M3_MAX}
#: Relative distance to an edge between two codes within which a value counts as undecided.
_EDGE = 2.0**-16
#: Integer view and bits of NaN in each storage format.
_NAN = {torch.bfloat16: (torch.int16, 0x7FC0), torch.float16: (torch.int16, 0x7E00), torch.float8_e4m3fn: (torch.uint8, 0x7F),
        torch.uint8: (torch.uint8, 0x77)}


def make_inputs(case: Case, device: torch.device | str = "cpu") -> Operand:
    """``batch.x`` [T, H] in the recipe's storage format and the case's layout."""
    stream = Stream("inputs", case.seed, case.inputs.kind, case.shape.num_tokens, case.shape.hidden_size, device=device)
    value = exact.make_inputs(case, stream).to(device) if case.inputs.kind == "exact" else _values(case, stream)
    recipe = RECIPES[case.recipe]
    if recipe.x_format == "e2m1":
        return _nvfp4(case, stream, value)
    scale = None
    if recipe.x_format == "e4m3":
        static = _RANGE.get(case.inputs.kind, NORMAL_BOUND) / E4M3_MAX
        scale = torch.tensor([static], dtype=torch.float32, device=value.device)
        value = value / scale
    data = encode(value, recipe.x_format)
    if recipe.numerics.input in ("e4m3_1x128", "e4m3_per_token", "mxfp8") and case.inputs.kind != "exact":
        data = decided(data, recipe.numerics.input)
    return Operand(lay_out(data, case.layout.kind), scale=scale, format=recipe.x_format)


def _nvfp4(case: Case, stream: Stream, value: Tensor) -> Operand:
    """``value`` [T, H] in NVFP4 below one static global scale; ``scale`` is contiguous in every layout."""
    if case.inputs.kind == "exact":
        stored = exact.store_nvfp4(case, stream, value)
    else:
        static = _RANGE.get(case.inputs.kind, NORMAL_BOUND) / (FORMATS["e2m1"].maximum * E4M3_MAX)
        whole = torch.tensor([static], dtype=torch.float32, device=value.device)
        data, scale = quantize_nvfp4(value, whole)
        stored = Operand(data, scale, whole, "e2m1")
    return replace(stored, data=lay_out(stored.data, case.layout.kind))


def decided(data: Tensor, rounding: str = "e4m3_1x128") -> Tensor:
    """bf16 ``data`` [T, H] whose e4m3 codes (``rounding``: a dynamic one) no kernel can round either way.

    A value on the edge between two codes goes by the last bit of the scale, or by whether a kernel divides by it or
    multiplies by its reciprocal; both are healthy. In mxfp8 the largest value of a block is on the edge between two scales if
    it is 448 times a power of two. Such values are moved by one step of bf16.
    """
    value = data.double()
    if rounding == "mxfp8":
        on_edge = torch.frexp(value.abs())[0] == E4M3_MAX / 512
        amax = group_maxima(value, MX_GROUP).repeat_interleave(MX_GROUP, dim=-1)
        return (data.view(torch.int16) ^ (on_edge & (value.abs() == amax)).to(torch.int16)).view(torch.bfloat16)
    ratio = value / dynamic_scales(value, rounding)
    undecided = round_to(ratio * (1 - _EDGE), "e4m3") != round_to(ratio * (1 + _EDGE), "e4m3")
    return (data.view(torch.int16) ^ undecided.to(torch.int16)).view(torch.bfloat16)


def lay_out(data: Tensor, kind: str) -> Tensor:
    """The same values [T, H] as a view of wider rows: ``noncontiguous`` pads with ones, ``nan_padding`` with NaN.

    Bytes of e2m1, which has no NaN, are padded with its largest value instead.
    """
    if kind == "contiguous":
        return data
    rows, columns = data.shape
    filler = torch.ones(rows, columns + ROW_PADDING, device=data.device).to(data.dtype)
    if kind == "nan_padding":
        filler = not_a_number(filler)
    filler[:, :columns] = data
    return filler[:, :columns]


def not_a_number(data: Tensor, rows: Tensor | EllipsisType = ...) -> Tensor:
    """A copy of ``data`` with NaN in ``rows``, a mask of its first axes, or everywhere. By bits: casts of NaN differ."""
    words, pattern = _NAN[data.dtype]
    copy = data.clone()
    copy.view(words)[rows] = pattern
    return copy


def _values(case: Case, stream: Stream) -> Tensor:
    tokens, hidden, kind = case.shape.num_tokens, case.shape.hidden_size, case.inputs.kind
    value = stream.normal("x", tokens * hidden).view(tokens, hidden)
    if kind == "zeros" or tokens == 0:
        return torch.zeros_like(value)
    if kind == "sparse":
        keep = stream.integers("x-keep", tokens * hidden, 0, 4).view(tokens, hidden) == 0
        return value * keep
    not_last = torch.arange(tokens, device=value.device)[:, None] < tokens - 1
    if kind == "heavy_tail":
        value = value * value * value
        spike = _spikes(stream, tokens, hidden) & not_last
        return torch.where(spike, torch.copysign(torch.full_like(value, 112.0), value), value)
    if kind == "spread":
        power = stream.integers("x-power", tokens, -10, 8).to(torch.int32)[:, None]
        power[0] = 7
        spread = torch.ldexp(value, power)
        spike = _spikes(stream, tokens, hidden) & (power == 7)
        spread = torch.where(spike, torch.copysign(torch.full_like(value, 128.0), value), spread)
        return torch.where(not_last, spread, value)
    if kind == "outlier":
        size = stream.integers("x-outlier", tokens, 100, 1000).to(torch.float32)[:, None]
        if RECIPES[case.recipe].x_format == "e2m1":  # 100 at least also after quantisation, which may take 1/16
            size = size.clamp_min(108.0)
        spike = _spikes(stream, tokens, hidden) & not_last
        return torch.where(spike, torch.copysign(size.expand_as(value), value), value)
    return value


def _spikes(stream: Stream, tokens: int, hidden: int) -> Tensor:
    """One marked column in each row, bool [T, H]."""
    column = stream.integers("x-spike", tokens, 0, hidden)[:, None]
    return torch.arange(hidden, device=column.device)[None, :] == column
