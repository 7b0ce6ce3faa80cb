"""Exact mode: operands for which every healthy kernel must agree bit for bit, whatever its order of summation.

The gate is saturated (silu(32) = 32 in float32, silu(-256) = -0), everything else is a sparse small integer or a power of
two, so float32 partial sums are exact. In FP8 recipes the up projection uses {0, +-7 * 2**j}: amax / 448 is then a power of
two and the dynamic scale is exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moeguard.core.case import Case
from moeguard.core.recipe import RECIPES
from moeguard.quant.blocks import BLOCK
from moeguard.quant.formats import encode
from moeguard.tensors.counter import Stream
from moeguard.tensors.operand import Operand, Weights

#: Gate values; the negative one switches a unit off.
GATE_VALUES = (32.0, 64.0, -256.0)
#: Routing weights.
ROUTING_WEIGHTS = (0.5, 1.0, 2.0)
#: Non-zero integers per row of X, beside column 0.
NONZEROS = 6


def make_weights(case: Case, stream: Stream) -> Weights:
    """Exact weights of this rank; scales are one, biases absent."""
    experts = range(case.first_expert, case.first_expert + case.experts_local)
    hidden, inter, local = case.shape.hidden_size, case.shape.intermediate_size, case.intermediate_local
    part = slice(case.parallel.tp_rank * local, (case.parallel.tp_rank + 1) * local)
    fp8 = RECIPES[case.recipe].weight_format == "e4m3"
    choice = stream.integers("gate", inter, 0, len(GATE_VALUES), rows=experts)
    values = torch.tensor(GATE_VALUES, device=choice.device)
    gate = torch.zeros(len(experts), inter, hidden, device=choice.device)
    gate[:, :, 0] = values[choice]
    up = _ternary(stream, "up", experts, inter, hidden, 10)
    up[:, :, 0] = 0.0
    if fp8:  # one non-zero a row keeps h = +-7 * 2**j; the 7 comes from X where the kernel quantises X itself
        up = _one_hot_rows(stream, experts, inter, hidden) * (1.0 if case.recipe == "fp8_block" else 7.0)
    down = _ternary(stream, "down", experts, hidden, inter, 20)
    return Weights(
        gate=_operand(case, gate[:, part].contiguous()),
        up=_operand(case, up[:, part].contiguous()) if case.activation.gated else None,
        down=_operand(case, down[:, :, part].contiguous()),
        intermediate_scale=torch.tensor([2.0], device=choice.device) if case.recipe == "fp8_per_tensor" else None,
    )


def make_inputs(case: Case, stream: Stream) -> Tensor:
    """Float32 X [T, H]: column 0 is one, NONZEROS other entries of a row are +-1 or +-2.

    In fp8_block they are +-7 or +-14 and column 1 is one of them, so that every 1x128 block has amax = 7 * 2**m.
    """
    tokens, hidden = case.shape.num_tokens, case.shape.hidden_size
    x = torch.zeros(tokens, hidden)
    if hidden > 1:
        where = stream.integers("exact-where", tokens * NONZEROS, 1, hidden).cpu().view(tokens, NONZEROS)
        word = stream.bits("exact-value", tokens * NONZEROS).cpu().view(tokens, NONZEROS)
        where[:, 0] = 1
        x.scatter_(1, where, torch.where(word & 1 == 1, 1.0, -1.0) * torch.where(word & 2 == 2, 2.0, 1.0))
        if case.recipe == "fp8_block":
            x *= 7.0
    x[:, 0] = 1.0
    return x


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


def _operand(case: Case, value: Tensor) -> Operand:
    recipe = RECIPES[case.recipe]
    data = encode(value, recipe.weight_format)
    experts = value.shape[0]
    if recipe.weight_scale == "per_tensor":
        return Operand(data, scale=torch.ones(experts, device=value.device), format=recipe.weight_format)
    if recipe.weight_scale == "128x128":
        blocks = (experts, -(-value.shape[1] // BLOCK), -(-value.shape[2] // BLOCK))
        return Operand(data, scale=torch.ones(blocks, device=value.device), format=recipe.weight_format)
    return Operand(data, format=recipe.weight_format)
