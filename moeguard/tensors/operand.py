"""The operands that a backend receives: stored data with its scales, weights, and a batch of tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from moeguard.quant.blocks import expand_blocks, expand_groups
from moeguard.quant.e8m0 import decode_e8m0
from moeguard.quant.formats import FORMATS
from moeguard.quant.packed import NIBBLES, decode_packed


@dataclass(frozen=True, slots=True)
class Operand:
    """A stored tensor.

    data: values in storage dtype (float8_e4m3fn for ``e4m3``); four-bit formats: uint8 [E, R, C/2], the even column in the low
    nibble. scale: None, or float32 [1] for one scale, [E] for one an expert, [E, ceil(R/128), ceil(C/128)] for 128x128 blocks;
    or one a group of the row: e8m0 as uint8 [E, R, C/32] (MX), float8_e4m3fn [E, R, C/16] (NVFP4), bf16 [E, R, C/128] (int4).
    global_scale: NVFP4 alone, float32 [E] (``batch.x``: [1]); a value is code * scale * global_scale.
    format: ``bf16 fp16 e4m3 float32 e2m1 int4``. The ``batch.x`` of NVFP4 has no axis E: data [T, H/2], scale [T, H/16].
    """

    data: Tensor
    scale: Tensor | None = None
    global_scale: Tensor | None = None
    format: str = "bf16"

    @property
    def packed(self) -> bool:
        """Whether ``data`` holds two codes a byte."""
        return self.format in NIBBLES

    @property
    def grouped(self) -> bool:
        """Whether each row has scales of its own, one for each of equal groups of its columns."""
        return self.scale is not None and (self.packed or self.scale.dtype in (torch.uint8, torch.float8_e4m3fn))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values: that of ``data``, with twice the columns where it is packed."""
        return (*self.data.shape[:-1], self.data.shape[-1] * 2) if self.packed else tuple(self.data.shape)

    @property
    def maximum(self) -> float:
        """Largest magnitude of a code."""
        return NIBBLES[self.format].maximum if self.packed else FORMATS[self.format].maximum

    def codes(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Values without their scale, in ``dtype`` and the operand's ``shape``."""
        return decode_packed(self.data, self.format, dtype) if self.packed else self.data.to(dtype)

    def scales(self, dtype: torch.dtype = torch.float32) -> Tensor | None:
        """The scale as real numbers in ``dtype``, shaped as it is stored."""
        if self.scale is None:
            return None
        return decode_e8m0(self.scale, dtype) if self.scale.dtype == torch.uint8 else self.scale.to(dtype)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Real values in ``dtype`` and the operand's ``shape``; exact in float64, for groups without a global scale in float32
        as well.
        """
        value, scale = self.codes(dtype), self.scales(dtype)
        if scale is None:
            return value
        if self.grouped:
            value = value * expand_groups(scale, value.shape[-1])
            if self.global_scale is None:
                return value
            return value * self.global_scale.to(dtype).reshape(-1, *[1] * (value.dim() - 1))
        if scale.dim() == value.dim():
            return value * expand_blocks(scale, value.shape[-2], value.shape[-1])
        return value * scale.reshape(-1, *[1] * (value.dim() - 1))

    def experts(self, index: Tensor | slice) -> Operand:
        """The operand of some of its experts; one scale for all stays one."""
        def part(scale: Tensor | None) -> Tensor | None:
            return scale[index] if scale is not None and scale.shape[0] > 1 else scale

        return Operand(self.data[index], part(self.scale), part(self.global_scale), self.format)

    def rows(self, index: Tensor | slice) -> Operand:
        """Some rows of a ``batch.x``."""
        scale = self.scale[index] if self.scale is not None and self.grouped else self.scale
        return Operand(self.data[index], scale, self.global_scale, self.format)

    def columns(self, expert: Tensor, column: Tensor) -> Tensor:
        """Real values of column ``column`` [n] of expert ``expert`` [n], float64 [n, R]."""
        if self.packed:
            byte = self.data[expert, :, column // 2]
            value = decode_packed(byte, self.format, torch.float64).view(*byte.shape, 2)
            value = value[torch.arange(len(column), device=column.device), :, column % 2]
        else:
            value = self.data[expert, :, column].double()
        scale = self.scales(torch.float64)
        if scale is None:
            return value
        if self.grouped:
            value = value * scale[expert, :, column // (self.shape[-1] // scale.shape[-1])]
            if self.global_scale is None:
                return value
            return value * self.global_scale.double().expand(self.shape[0])[expert][:, None]
        if scale.dim() == 1:
            return value * (scale[expert][:, None] if scale.shape[0] > 1 else scale)
        rows = scale[expert, :, column // 128].repeat_interleave(128, dim=1)
        return value * rows[:, : value.shape[1]]


@dataclass(frozen=True, slots=True)
class Weights:
    """Canonical weights of this rank: gate, up [E_local, I, H] (up is None when not gated), down [E_local, H, I].

    Biases are float32 operands [E_local, I], [E_local, I], [E_local, H] without scale, or None. intermediate_scale: float32
    tensor [1], the static scale of the e4m3 intermediate in recipes fp8_per_tensor and int4_fp8 (value = code * scale) and the
    static global scale of the intermediate in nvfp4 (value = code * block scale * it), else None. input_scale: the static scale
    of ``batch.x``, which the kernel quantises itself, in int4_fp8.
    """

    gate: Operand
    up: Operand | None
    down: Operand
    gate_bias: Operand | None = None
    up_bias: Operand | None = None
    down_bias: Operand | None = None
    intermediate_scale: Tensor | None = None
    input_scale: Tensor | None = None

    def shard(self, first: int, count: int) -> Weights:
        """Copies of ``count`` experts from ``first`` on: a rank's own tensors, aligned as any other."""
        def part(operand: Operand | None) -> Operand | None:
            if operand is None:
                return None
            mine = operand.experts(slice(first, first + count))
            scale, whole = (None if value is None else value.clone() for value in (mine.scale, mine.global_scale))
            return replace(mine, data=mine.data.clone(), scale=scale, global_scale=whole)

        gate, down = part(self.gate), part(self.down)
        assert gate is not None and down is not None
        return replace(self, gate=gate, up=part(self.up), down=down, gate_bias=part(self.gate_bias), up_bias=part(self.up_bias),
                       down_bias=part(self.down_bias))

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by a dotted name."""
        named: dict[str, Tensor | None] = {}
        for name in ("gate", "up", "down", "gate_bias", "up_bias", "down_bias"):
            operand: Operand | None = getattr(self, name)
            if operand is not None:
                named |= {f"{name}.data": operand.data, f"{name}.scale": operand.scale,
                          f"{name}.global_scale": operand.global_scale}
        named |= {"intermediate_scale": self.intermediate_scale, "input_scale": self.input_scale}
        return {f"weights.{name}": tensor for name, tensor in named.items() if tensor is not None}


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of one call.

    standard: x of shape [T, H], topk_ids int32 [T, K] (global ids), topk_weights float32 [T, K], router_logits float32 [T, E].
    batched: x of shape [E_local, max_tokens, H], expert_num_tokens int32 [E_local]; no router tensors.
    """

    x: Operand
    topk_ids: Tensor | None = None
    topk_weights: Tensor | None = None
    router_logits: Tensor | None = None
    expert_num_tokens: Tensor | None = None

    def rows(self, tokens: Tensor) -> Batch:
        """The batch (standard format) of the given tokens, in their order."""
        assert self.topk_ids is not None and self.topk_weights is not None and self.router_logits is not None
        return Batch(self.x.rows(tokens), self.topk_ids[tokens], self.topk_weights[tokens], self.router_logits[tokens])

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by a dotted name."""
        named = {"batch.x.data": self.x.data, "batch.x.scale": self.x.scale, "batch.x.global_scale": self.x.global_scale,
                 "batch.topk_ids": self.topk_ids, "batch.topk_weights": self.topk_weights,
                 "batch.router_logits": self.router_logits, "batch.expert_num_tokens": self.expert_num_tokens}
        return {name: tensor for name, tensor in named.items() if tensor is not None}
