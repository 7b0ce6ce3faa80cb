"""Router case to logits and selection bias, the same bits on every device.

Values are drawn in float32 and rounded once to the case's dtype, so that a router and the reference read the same numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from moeguard.core.router import RouterCase
from moeguard.tensors.counter import Stream


class RouterInputs(NamedTuple):
    """logits [T, E] and bias [E] (None when the method has none), both of the case's dtype."""

    logits: Tensor
    bias: Tensor | None


def make_router_inputs(case: RouterCase, device: torch.device | str = "cpu") -> RouterInputs:
    """The tensors that the probe of ``case`` asks for.

    normal: N(0, 2), bias N(0, 0.1). ties: logits from {-1, 0, 1}, no bias. near_ties: the same, moved by up to 2 units in the
    last place. all_negative: in (-9, -1). dominant: one expert is 100 ahead. nan: of each token all logits, one or none.
    minus_infinity: all logits of a token, or all but K - 1 or K + 1 of them. negative_bias: every biased score is below zero.
    bias_cancellation: logits around -18, bias 12 for three experts of four, so that scores drown in the bias.
    """
    stream = Stream("router", case.seed, case.probe, case.num_experts)
    shape = (case.num_tokens, case.num_experts)
    drawn = stream.normal("logits", shape[0] * shape[1]).view(shape)
    logits = _PROBED.get(case.probe, _normal)(case, stream, drawn)
    dtype = getattr(torch, case.dtype)
    return RouterInputs(logits.to(dtype).to(device), _bias(case, stream).to(dtype).to(device) if case.biased else None)


def _bias(case: RouterCase, stream: Stream) -> Tensor:
    drawn = stream.normal("bias", case.num_experts) * 0.1
    if case.probe in ("ties", "near_ties"):
        return torch.zeros_like(drawn)
    if case.probe == "negative_bias":
        return drawn - 2.0  # a sigmoid is at most 1, and the drawn part at most 0.35
    if case.probe == "bias_cancellation":
        return torch.where(torch.arange(case.num_experts) % 4 != 3, 12.0, 0.0)
    return drawn


def _normal(case: RouterCase, stream: Stream, drawn: Tensor) -> Tensor:
    return drawn * 2.0


def _ties(case: RouterCase, stream: Stream, drawn: Tensor) -> Tensor:
    return drawn.round().clamp(-1, 1)


def _near_ties(case: RouterCase, stream: Stream, drawn: Tensor) -> Tensor:
    values = _ties(case, stream, drawn) + 1.5  # away from zero, where units in the last place are tiny
    steps = stream.integers("steps", drawn.numel(), -2, 3).view(drawn.shape)
    unit = torch.finfo(getattr(torch, case.dtype)).eps * 2.0 ** torch.floor(torch.log2(values))
    return values + steps * unit


def _all_negative(case: RouterCase, stream: Stream, drawn: Tensor) -> Tensor:
    return -5.0 + drawn.clamp(-3.9, 3.9)


def _dominant(case: RouterCase, stream: Stream, drawn: Tensor) -> Tensor:
    first = stream.integers("first", case.num_tokens, 0, case.num_experts)[:, None] == torch.arange(case.num_experts)
    return drawn + torch.where(first, 100.0, 0.0)


def _nan(case: RouterCase, stream: Stream, drawn: Tensor) -> Tensor:
    kind = stream.integers("kind", case.num_tokens, 0, 3)[:, None]
    kind[:1] = 0
    one = stream.integers("one", case.num_tokens, 0, case.num_experts)[:, None] == torch.arange(case.num_experts)
    return torch.where((kind == 0) | ((kind == 1) & one), torch.nan, drawn)


def _minus_infinity(case: RouterCase, stream: Stream, drawn: Tensor) -> Tensor:
    kind = stream.integers("kind", case.num_tokens, 0, 4)[:, None]
    kind[:1] = 0
    kept = torch.where(kind == 0, 0, torch.where(kind == 1, case.top_k - 1, case.top_k + 1))
    rank = drawn.argsort(dim=1, stable=True).argsort(dim=1)
    return torch.where((kind == 3) | (rank < kept), drawn, -torch.inf)


def _bias_cancellation(case: RouterCase, stream: Stream, drawn: Tensor) -> Tensor:
    return -18.0 + drawn * 0.5


_PROBED = {"ties": _ties, "near_ties": _near_ties, "all_negative": _all_negative, "dominant": _dominant, "nan": _nan,
           "minus_infinity": _minus_infinity, "bias_cancellation": _bias_cancellation}
