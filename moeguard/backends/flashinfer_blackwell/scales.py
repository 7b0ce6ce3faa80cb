"""Scales of the operands as the kernels for Blackwell take them."""

from __future__ import annotations

import torch
from torch import Tensor

from moeguard.tensors.operand import Operand, Weights


def block_scales(operand: Operand) -> Tensor:
    """Block scales as bytes, uint8 [E, rows, groups]: e4m3 or e8m0 codes."""
    assert operand.scale is not None
    return operand.scale.view(torch.uint8)


def up_gate(weights: Weights, part: str = "data", *, gate_first: bool = False) -> Tensor:
    """Data or scales of GEMM1 in one tensor: the up rows, then the gate rows (or the other way); gate alone without up."""
    gate: Tensor = getattr(weights.gate, part)
    if weights.up is None:
        return gate.contiguous()
    halves = tuple(_movable(half) for half in (getattr(weights.up, part), gate))
    return torch.cat(halves[::-1] if gate_first else halves, 1).view(gate.dtype)


def _movable(value: Tensor) -> Tensor:
    return value.view(torch.uint8) if value.element_size() == 1 else value


def factor(operand: Operand, experts: int) -> Tensor:
    """What the codes and block scales of each expert are multiplied with, float32 [E]: global or per-expert scale, else 1."""
    scale = operand.global_scale if operand.global_scale is not None else operand.scale
    if scale is None or scale.dtype != torch.float32 or scale.dim() != 1:
        return torch.ones(experts, dtype=torch.float32, device=operand.data.device)
    return scale.expand(experts).contiguous()


def up_over_gate(weights: Weights, experts: int) -> Tensor:
    """float32 [E]: the factor of up over that of gate, which kernels with one factor for both must be given elsewhere.

    Up enters swiglu and its like as a factor, so that what comes after the activation is off by this much. 1 where gate is zero.
    """
    gate = factor(weights.gate, experts)
    if weights.up is None:
        return torch.ones_like(gate)
    return torch.where(gate == 0, torch.ones_like(gate), factor(weights.up, experts) / gate)


def one_factor(weights: Weights, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scales of GEMM1 with one factor an expert for gate and up: bytes [E, 2I or I, groups], the factor, and what is left for up.

    Kernels that have one global scale for both get the larger one, and the block scales of the other half take up the difference
    where e4m3 holds it without rounding; then 1 is left. Otherwise the factor is that of gate, and what is left goes behind the
    activation, which up enters as a factor. float32 [E] each.
    """
    joined, gate = up_gate(weights, "scale"), factor(weights.gate, experts)
    if weights.up is None or joined.dtype != torch.float8_e4m3fn:
        return joined.view(torch.uint8), gate, up_over_gate(weights, experts)
    up = factor(weights.up, experts)
    common = torch.maximum(gate, up)
    share = torch.where(common == 0, torch.ones_like(common), torch.stack((up, gate), 1).T / common).T.contiguous()
    wanted = joined.float() * share.repeat_interleave(joined.shape[1] // 2, 1)[..., None]
    moved = wanted.to(torch.float8_e4m3fn)
    exact = (moved.float() == wanted).flatten(1).all(1)
    kept = torch.where(exact[:, None, None], moved.view(torch.uint8), joined.view(torch.uint8))
    ratio = up_over_gate(weights, experts)
    return kept, torch.where(exact, common, gate), torch.where(exact, torch.ones_like(ratio), ratio)
