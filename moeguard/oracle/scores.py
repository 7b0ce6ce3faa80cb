"""What a router ranks and weighs, in float64, with bounds on what a correct router may have computed instead.

With u the unit roundoff of the router's arithmetic and one unit in the last place at most 2u:

- exp(x): (4 + 4 \\|x\\|) u relative. CUDA's ``__expf`` has at most 2 + 1.173 \\|x\\| units in the last place (CUDA C++
  Programming Guide, intrinsic functions), which is (4 + 2.35 \\|x\\|) u, and the rounding of x = l - max adds \\|x\\| u.
- n(e) = exp(l(e) - max), what softmax methods rank: 4 u more, for the division by the common sum.
- sigmoid(l) = 1 / (1 + exp(-l)): the error of exp times 1 - sigmoid(l), for that is how it enters, and 8 u for sum and division.
- sigmoid(l) + b: one rounding, u \\|sigmoid(l) + b\\|.
- Numbers below 2**-126 may be flushed to zero; after the division by a sum of at most E, below E 2**-126.

Logits and bias are exact: they are inputs. The top-1 of Llama 4 ranks logits, so it has no error at all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from moeguard.core.router import Precision, RouterCase

#: Smallest normal number of float32 and bfloat16.
TINY = 2.0**-126
#: exp() of less is zero in float64.
_LEAST = 1000.0


class Interval(NamedTuple):
    """Bounds, float64 of one shape."""

    low: Tensor
    high: Tensor


class Scores(NamedTuple):
    """choice: what is ranked [T, E]. value: what weights are made of [T, E], n(e) or sigmoid. defined: bool [T].

    exact_choice, exact_value: the same without any error. A row is undefined when it holds a NaN, or nothing but -inf.
    """

    choice: Interval
    value: Interval
    exact_choice: Tensor
    exact_value: Tensor
    defined: Tensor


def scores(case: RouterCase, logits: Tensor, bias: Tensor | None, precision: Precision) -> Scores:
    """Scores of ``logits`` [T, E] with ``bias`` [E] or None, and what ``precision`` makes of them."""
    exact, u = logits.double(), precision.roundoff
    defined = ~torch.isnan(exact).any(1) & (exact > -torch.inf).any(1)
    exact = torch.where(defined[:, None], exact, torch.zeros_like(exact))
    if case.method in ("softmax_topk", "renormalize"):
        value, error = _exponential(exact, u)
        return Scores(_around(value, error), _around(value, error), value, value, defined)
    value, error = _sigmoid(exact, u)
    error = error + precision.sigmoid_error
    values = _around(value, error)
    if case.method == "llama4_sigmoid":
        return Scores(Interval(exact, exact), values, exact, value, defined)
    assert bias is not None
    choice = value + bias.double()
    spread = error + u * choice.abs()
    return Scores(Interval(choice - spread, choice + spread), values, choice, value, defined)


def group_scores(choice: Tensor, case: RouterCase) -> Tensor:
    """The score of each group [T, G]: the sum of its two best ``choice`` [T, E] (DeepSeek-V3, arXiv:2412.19437)."""
    if case.num_groups == 1:
        return choice.new_zeros(choice.shape[0], 1)
    return choice.view(-1, case.num_groups, case.group_size).topk(2, dim=2).values.sum(2)


def best(choice: Tensor, case: RouterCase) -> Tensor:
    """The K best experts, int64 [T, K] in the order of their ``choice`` [T, E]; ties go to the lower id."""
    kept = torch.sort(group_scores(choice, case), dim=1, descending=True, stable=True).indices[:, : case.topk_groups]
    allowed = torch.zeros(choice.shape[0], case.num_groups, dtype=torch.bool, device=choice.device).scatter_(1, kept, True)
    masked = choice.masked_fill(~allowed.repeat_interleave(case.group_size, 1), -torch.inf)
    # -inf inside the kept groups ranks before -inf outside of them
    rank = torch.sort(masked, dim=1, descending=True, stable=True).indices
    inside = allowed.repeat_interleave(case.group_size, 1).gather(1, rank)
    order = torch.sort(inside.to(torch.int8), dim=1, descending=True, stable=True).indices
    return rank.gather(1, order)[:, : case.top_k]


def _exponential(logits: Tensor, u: float) -> tuple[Tensor, Tensor]:
    """n(e), and its absolute error."""
    below = (logits - logits.amax(1, keepdim=True)).clamp_min(-_LEAST) if logits.numel() else logits
    value = torch.exp(below)
    return value, value * u * (8 + 4 * below.abs()) + TINY * logits.shape[1]


def _sigmoid(logits: Tensor, u: float) -> tuple[Tensor, Tensor]:
    """sigmoid(l), and its absolute error."""
    bounded = logits.clamp(-_LEAST, _LEAST)
    value, rest = torch.sigmoid(bounded), torch.sigmoid(-bounded)
    return value, value * u * ((4 + 4 * bounded.abs()) * rest + 8) + TINY


def _around(value: Tensor, error: Tensor) -> Interval:
    return Interval((value - error).clamp_min(0.0), value + error)

