"""Activations in float64, and bounds of their sensitivity.

Sources: SwiGLU and GEGLU (arXiv:2002.05202), squared ReLU (arXiv:2109.08668); swiglu_oai is the clamped variant of the
gpt-oss model card.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from moeguard.core.case import Activation

DEFAULT_ALPHA = 1.702
DEFAULT_BETA = 1.0


def activate(activation: Activation, gate: Tensor, up: Tensor | None, *, saturated: bool = False) -> Tensor:
    """h of the same shape as ``gate`` [n, I]; ``up`` is None when the activation is not gated.

    saturated: round sigmoid and erf to float32 first, as exact mode needs (silu(32) is 32 in float32 only).
    """
    if activation.kind == "swiglu_oai":
        gate, up = _clamped(activation, gate, up)
        assert up is not None
        return _gate(activation, gate, saturated) * (up + (DEFAULT_BETA if activation.beta is None else activation.beta))
    value = _gate(activation, gate, saturated)
    return value if up is None else value * up


def sensitivity(activation: Activation, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """(bound of \\|dh/d gate\\|, bound of \\|dh/d up\\|), each of the shape of ``gate``."""
    if activation.kind == "relu2":
        return 2 * gate.clamp_min(0), torch.zeros_like(gate)
    slope = 1.13 if activation.kind in ("geglu", "geglu_tanh", "gelu") else 1.1
    if activation.kind == "swiglu_oai":
        gate, up = _clamped(activation, gate, up)
        assert up is not None
        up = up + (DEFAULT_BETA if activation.beta is None else activation.beta)
    weight = torch.ones_like(gate) if up is None else up.abs()
    return slope * weight, torch.zeros_like(gate) if up is None else _gate(activation, gate, False).abs()


def slopes(activation: Activation, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """(dh/d gate, dh/d up) themselves, each of the shape of ``gate``; zeros for ``up`` where there is none."""
    with torch.enable_grad():
        inputs = [value.detach().requires_grad_() for value in (gate, up) if value is not None]
        h = activate(activation, inputs[0], inputs[1] if up is not None else None)
        by = torch.autograd.grad(h.sum(), inputs)
    return by[0], by[1] if up is not None else torch.zeros_like(gate)


def _clamped(activation: Activation, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if activation.limit is None or up is None:
        return gate, up
    return gate.clamp(max=activation.limit), up.clamp(-activation.limit, activation.limit)


def _gate(activation: Activation, gate: Tensor, saturated: bool) -> Tensor:
    kind = activation.kind
    if kind == "relu2":
        return gate.clamp_min(0).square()
    if kind in ("geglu", "gelu"):
        factor = 0.5 * (1 + torch.erf(gate / math.sqrt(2)))
    elif kind == "geglu_tanh":
        factor = 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    else:
        alpha = 1.0 if kind != "swiglu_oai" else (DEFAULT_ALPHA if activation.alpha is None else activation.alpha)
        factor = torch.sigmoid(alpha * gate)
    if saturated:
        factor = torch.where(gate < -100, torch.zeros_like(factor), factor.float().double())
    return gate * factor
