"""Kernels that route inside: the selected expert sets against the scores, before any number is compared.

Two correct routers may differ where the k-th and the (k+1)-th score are closer than the rounding of the scores. Such tokens
are skipped and counted; a case that skips too many says little.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Share of skipped tokens beyond which a comparison is uninformative.
MOST_SKIPPED = 0.5


@dataclass(frozen=True, slots=True)
class RoutingComparison:
    """tokens compared and skipped (near ties, undefined scores); wrong: tokens with another set, in order.

    expected, got: sorted experts of the first wrong token (empty when there is none).
    """

    tokens: int
    skipped: int
    wrong: tuple[int, ...] = ()
    expected: tuple[int, ...] = ()
    got: tuple[int, ...] = ()

    @property
    def passed(self) -> bool:
        """No token has a wrong set."""
        return not self.wrong

    @property
    def informative(self) -> bool:
        """Enough tokens were compared."""
        return self.tokens > self.skipped and self.skipped <= MOST_SKIPPED * self.tokens


def compare_routing(ids: Tensor, scores: Tensor, roundoff: float = 2.0**-24) -> RoutingComparison:
    """Compare ``ids`` [T, K] with the K best of ``scores`` [T, E] as sets.

    scores: what the router ranks (logits, or sigmoid plus selection bias; -inf for excluded experts). roundoff: unit
    roundoff of the scores; a token is skipped when its gap is below 4 * roundoff * max\\|score\\|, or its scores are NaN.
    Ids outside [0, E) or repeated within a token are wrong sets even for a skipped gap, unless the scores are NaN.
    """
    tokens, top_k = ids.shape
    experts = scores.shape[1]
    value = scores.double()
    undefined = torch.isnan(value).any(1)
    ordered, order = torch.sort(value.nan_to_num(nan=0.0), dim=1, descending=True, stable=True)
    size = torch.where(torch.isfinite(value), value.abs(), torch.zeros_like(value)).amax(1)
    if top_k < experts:
        near = ordered[:, top_k - 1] - ordered[:, top_k] <= 4 * roundoff * size
        near |= torch.isinf(ordered[:, top_k - 1])  # fewer than K experts allowed: the rest is free
    else:
        near = torch.zeros(tokens, dtype=torch.bool, device=ids.device)
    chosen = torch.sort(ids.to(torch.int64), dim=1).values
    wanted = torch.sort(order[:, :top_k], dim=1).values
    illegal = ((chosen < 0) | (chosen >= experts)).any(1) | (chosen.diff(dim=1) == 0).any(1)
    skipped = undefined | (near & ~illegal)
    wrong = ((chosen != wanted).any(1) & ~skipped).nonzero()[:, 0].tolist()
    first = wrong[0] if wrong else None
    return RoutingComparison(tokens, int(skipped.sum()), tuple(wrong), () if first is None else tuple(wanted[first].tolist()),
                             () if first is None else tuple(chosen[first].tolist()))
