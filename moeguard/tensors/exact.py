"""Exact mode: operands for which every healthy kernel must agree bit for bit, whatever its order of summation.

The gate is saturated (silu(32) = 32 in float32, silu(-256) = -0), everything else is a sparse small integer or a power of
two, so float32 partial sums are exact. In recipes whose FP8 scales are dynamic (and in fp8_per_tensor) the intermediate is
{0, +-7 * 2**j}: amax / 448 is then a power of two and the scale is exact. Static scales are powers of two. In nvfp4 it is
{0, +-96, +-192, +-384}, whose amax / 6 is a power of two, in codes 1.5, 3 and 6. In mxfp8 it has at most four significant bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moeguard.core.case import Case
from moeguard.core.recipe import RECIPES
from moeguard.quant.blocks import BLOCK, expand_groups
from moeguard.quant.formats import encode
from moeguard.quant.microscaling import NVFP4_GROUP
from moeguard.quant.packed import encode_e2m1, pack
from moeguard.tensors import grouped
from moeguard.tensors.counter import Stream
from moeguard.tensors.operand import Operand, Weights

#: Gate values; the negative one switches a unit off.
GATE_VALUES = (32.0, 64.0, -256.0)
#: Routing weights.
ROUTING_WEIGHTS = (0.5, 1.0, 2.0)
#: Non-zero integers per row of X, beside column 0.
NONZEROS = 6
#: Recipes in which a row of up has one non-zero, and static scales of the others: of the input, of the intermediate.
_ONE_HOT = ("fp8_per_tensor", "fp8_block", "mxfp4_fp8", "nvfp4")
_STATIC = {"fp8_per_tensor": (None, 2.0), "int4_fp8": (0.5, 2.0), "nvfp4": (None, 0.5)}
#: Global scale of ``x`` in nvfp4.
NVFP4_GLOBAL = 0.5


def make_weights(case: Case, stream: Stream) -> Weights:
    """Exact weights of this rank; FP8 scales are one, those of groups powers of two, biases absent."""
    experts = range(case.first_expert, case.first_expert + case.experts_local)
    hidden, inter, local = case.shape.hidden_size, case.shape.intermediate_size, case.intermediate_local
    part = slice(case.parallel.tp_rank * local, (case.parallel.tp_rank + 1) * local)
    choice = stream.integers("gate", inter, 0, len(GATE_VALUES), rows=experts)
    values = torch.tensor(GATE_VALUES, device=choice.device)
    gate = torch.zeros(len(experts), inter, hidden, device=choice.device)
    gate[:, :, 0] = values[choice]
    up = _ternary(stream, "up", experts, inter, hidden, 10)
    up[:, :, 0] = 0.0
    if case.recipe in _ONE_HOT:  # one non-zero a row keeps h = +-7 * 2**j; the 7 comes from X where the kernel quantises X itself
        up = _one_hot_rows(stream, experts, inter, hidden) * (7.0 if case.recipe == "fp8_per_tensor" else 1.0)
    down = _ternary(stream, "down", experts, hidden, inter, 20)
    static = [None if value is None else torch.tensor([value], device=choice.device)
              for value in _STATIC.get(case.recipe, (None, None))]
    return Weights(
        gate=_operand(case, stream, "gate", gate[:, part].contiguous()),
        up=_operand(case, stream, "up", up[:, part].contiguous()) if case.activation.gated else None,
        down=_operand(case, stream, "down", down[:, :, part].contiguous()),
        intermediate_scale=static[1], input_scale=static[0],
    )


def make_inputs(case: Case, stream: Stream) -> Tensor:
    """Float32 X [T, H]: column 0 is one, NONZEROS other entries of a row are +-1 or +-2.

    Where the kernel quantises X with a dynamic float32 scale they are +-7 or +-14 and column 1 is one of them, so that every
    1x128 block, and every row, has amax = 7 * 2**m. In nvfp4 they are +-3 or +-6.
    """
    tokens, hidden = case.shape.num_tokens, case.shape.hidden_size
    x = torch.zeros(tokens, hidden)
    if hidden > 1:
        where = stream.integers("exact-where", tokens * NONZEROS, 1, hidden).cpu().view(tokens, NONZEROS)
        word = stream.bits("exact-value", tokens * NONZEROS).cpu().view(tokens, NONZEROS)
        where[:, 0] = 1
        x.scatter_(1, where, torch.where(word & 1 == 1, 1.0, -1.0) * torch.where(word & 2 == 2, 2.0, 1.0))
        if RECIPES[case.recipe].numerics.input in ("e4m3_1x128", "e4m3_per_token"):
            x *= 7.0
        elif case.recipe == "nvfp4":
            x *= 3.0
    x[:, 0] = 1.0
    return x


def store_nvfp4(case: Case, stream: Stream, x: Tensor) -> Operand:
    """``x`` of ``make_inputs`` [T, H] in NVFP4, exactly: codes of 1, 3 and 6, or half of them."""
    tokens, groups = x.shape[0], x.shape[1] // NVFP4_GROUP
    power = stream.integers("exact-power", tokens * groups, 1, 3).view(tokens, groups)
    scale = torch.exp2(power.to(torch.float32))
    codes = encode_e2m1(x / expand_groups(scale * NVFP4_GLOBAL, x.shape[1]))
    return Operand(pack(codes), encode(scale, "e4m3"), torch.tensor([NVFP4_GLOBAL], device=x.device), "e2m1")


def make_routing_weights(case: Case, stream: Stream) -> Tensor:
    """Float32 [T, K] of powers of two."""
    choice = stream.integers("exact-routing", case.shape.num_tokens * case.shape.top_k, 0, len(ROUTING_WEIGHTS))
    return torch.tensor(ROUTING_WEIGHTS, device=choice.device)[choice].view(case.shape.num_tokens, case.shape.top_k)


def _ternary(stream: Stream, label: str, experts: range, rows: int, columns: int, one_in: int) -> Tensor:
    word = stream.integers(label, rows * columns, 0, 2 * one_in, rows=experts)
    value = (word == 0).to(torch.float32) - (word == 1).to(torch.float32)
    return value.view(len(experts), rows, columns)


def _one_hot_rows(stream: Stream, experts: range, rows: int, columns: int) -> Tensor:
    up = torch.zeros(len(experts), rows, columns, device=stream.device)
    if columns > 1:
        where = stream.integers("up-where", rows, 1, columns, rows=experts)
        sign = (stream.bits("up-sign", rows, rows=experts) & 1).to(torch.float32) * 2.0 - 1.0
        up.scatter_(2, where.unsqueeze(2), sign.unsqueeze(2))
    return up


def _operand(case: Case, stream: Stream, label: str, value: Tensor) -> Operand:
    recipe = RECIPES[case.recipe]
    if recipe.group > 1:
        return grouped.store_exact(case, stream, label, value)
    data = encode(value, recipe.weight_format)
    experts = value.shape[0]
    if recipe.weight_scale == "per_tensor":
        return Operand(data, scale=torch.ones(experts, device=value.device), format=recipe.weight_format)
    if recipe.weight_scale == "128x128":
        blocks = (experts, -(-value.shape[1] // BLOCK), -(-value.shape[2] // BLOCK))
        return Operand(data, scale=torch.ones(blocks, device=value.device), format=recipe.weight_format)
    return Operand(data, format=recipe.weight_format)
