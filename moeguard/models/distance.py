"""How far an arm's logits and texts are from those of another."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Distance:
    """Of one arm from the float32 reference, over N positions.

    error: float64 [N], root mean square over the vocabulary of the difference of logits, each centred on its mean, since a
    constant changes no probability; infinite where a logit is not finite. kl: mean and largest Kullback-Leibler divergence of
    the next token's distribution from the reference's, in nats. flips: positions whose most likely token is another one.
    diverged: for each greedy text the step at which it leaves the reference's, None where it does not.
    """

    error: Tensor
    kl: tuple[float, float]
    flips: int
    diverged: tuple[int | None, ...]

    @property
    def overall(self) -> float:
        """Root mean square of ``error`` over the positions."""
        return float(self.error.square().mean().sqrt())


def distance(logits: Tensor, reference: Tensor, text: Tensor | None, other: Tensor | None) -> Distance:
    """logits, reference: [N, V]; text, other: greedy tokens [P, G] of the arm and of the reference."""
    parts = [_part(one.double(), base.double()) for one, base in zip(logits.split(PART), reference.split(PART), strict=True)]
    error, kl, flipped = (torch.cat(part) for part in zip(*parts, strict=True))
    return Distance(error.cpu(), (float(kl.mean()), float(kl.max())), int(flipped.sum()), _diverged(text, other))


#: Positions that are compared at a time.
PART = 64


def _part(logits: Tensor, base: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    finite = torch.isfinite(logits).all(1)
    difference = logits - base
    error = (difference - difference.mean(1, keepdim=True)).square().mean(1).sqrt()
    log_p = base.log_softmax(1)
    kl = (log_p.exp() * (log_p - logits.log_softmax(1))).sum(1).clamp_min(0)
    inf = torch.full_like(error, torch.inf)
    return torch.where(finite, error, inf), torch.where(finite, kl, inf), ~finite | (logits.argmax(1) != base.argmax(1))


def _diverged(text: Tensor | None, other: Tensor | None) -> tuple[int | None, ...]:
    if other is None:
        return ()
    if text is None:
        return (0,) * len(other)
    steps = [(one != base).nonzero() for one, base in zip(text, other, strict=True)]
    return tuple(int(step[0, 0]) if len(step) else None for step in steps)
