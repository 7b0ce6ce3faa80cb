"""The operands that a backend receives: stored data with its scales, weights, and a batch of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moeguard.quant.blocks import expand_blocks


@dataclass(frozen=True, slots=True)
class Operand:
    """A stored tensor.

    data: values in storage dtype (float8_e4m3fn for ``e4m3``). scale: float32 or None; shape [1] for one scale, [E]
    for one an expert, [E, ceil(R/128), ceil(C/128)] for 128x128 blocks. format: ``bf16 fp16 e4m3 float32``.
    """

    data: Tensor
    scale: Tensor | None = None
    global_scale: Tensor | None = None
    format: str = "bf16"

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Real values, data * scale, in ``dtype`` and the shape of ``data``; exact in float64."""
        value = self.data.to(dtype)
        if self.scale is None:
            return value
        scale = self.scale.to(dtype)
        if scale.dim() == value.dim():
            return value * expand_blocks(scale, value.shape[-2], value.shape[-1])
        return value * scale.reshape(-1, *[1] * (value.dim() - 1))


@dataclass(frozen=True, slots=True)
class Weights:
    """Canonical weights of this rank: gate, up [E_local, I, H] (up is None when not gated), down [E_local, H, I].

    Biases are float32 operands [E_local, I], [E_local, I], [E_local, H] without scale, or None. intermediate_scale: float32
    tensor [1], the static scale of the e4m3 intermediate in recipe fp8_per_tensor (value = code * scale), else None.
    """

    gate: Operand
    up: Operand | None
    down: Operand
    gate_bias: Operand | None = None
    up_bias: Operand | None = None
    down_bias: Operand | None = None
    intermediate_scale: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by a dotted name."""
        named: dict[str, Tensor | None] = {}
        for name in ("gate", "up", "down", "gate_bias", "up_bias", "down_bias"):
            operand: Operand | None = getattr(self, name)
            if operand is not None:
                named |= {f"{name}.data": operand.data, f"{name}.scale": operand.scale,
                          f"{name}.global_scale": operand.global_scale}
        named["intermediate_scale"] = self.intermediate_scale
        return {f"weights.{name}": tensor for name, tensor in named.items() if tensor is not None}


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of one call.

    standard: x [T, H], topk_ids int32 [T, K] (global ids), topk_weights float32 [T, K], router_logits float32 [T, E].
    batched: x [E_local, max_tokens, H], expert_num_tokens int32 [E_local]; no router tensors.
    """

    x: Operand
    topk_ids: Tensor | None = None
    topk_weights: Tensor | None = None
    router_logits: Tensor | None = None
    expert_num_tokens: Tensor | None = None

    def rows(self, tokens: Tensor) -> Batch:
        """The batch (standard format) of the given tokens, in their order."""
        assert self.topk_ids is not None and self.topk_weights is not None and self.router_logits is not None
        return Batch(Operand(self.x.data[tokens], self.x.scale, format=self.x.format), self.topk_ids[tokens],
                     self.topk_weights[tokens], self.router_logits[tokens])

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by a dotted name."""
        named = {"batch.x.data": self.x.data, "batch.x.scale": self.x.scale, "batch.topk_ids": self.topk_ids,
                 "batch.topk_weights": self.topk_weights, "batch.router_logits": self.router_logits,
                 "batch.expert_num_tokens": self.expert_num_tokens}
        return {name: tensor for name, tensor in named.items() if tensor is not None}
