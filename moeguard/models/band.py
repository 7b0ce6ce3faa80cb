"""The healthy-noise band, and whether an arm lies within it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from moeguard.models.distance import Distance

#: How much larger than that of the noisier healthy arm an arm's error may be, over all positions and at each: the judge's limit
#: for a tactic against the default one. Sound kernels had up to 0.99 over all and 1.07 at a position (reports/h200).
LIMIT = 2.0

Outcome = Literal["within noise", "outside noise", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Band:
    """Errors of the healthy arms: ``overall`` the larger one, ``position`` float64 [N] the larger one at each position."""

    overall: float
    position: torch.Tensor

    @classmethod
    def of(cls, healthy: Sequence[Distance]) -> Band:
        """Over the healthy arms; a position is at least as noisy as half of the whole."""
        overall = max(one.overall for one in healthy)
        position = torch.stack([one.error for one in healthy]).amax(0)
        return cls(overall, position.clamp_min(overall / 2))

    @property
    def usable(self) -> bool:
        """Whether there is noise to measure by, and it is finite."""
        return 0 < self.overall < float("inf")


@dataclass(frozen=True, slots=True)
class Placed:
    """An arm against the band. overall, position: its error as a multiple of the band's, the second at ``worst``."""

    outcome: Outcome
    overall: float
    position: float
    worst: int


def place(one: Distance, band: Band) -> Placed:
    """Whether ``one`` is noise."""
    if not band.usable:
        return Placed("cannot tell", float("nan"), float("nan"), -1)
    shares = one.error / band.position
    worst = int(shares.argmax())
    overall, position = one.overall / band.overall, float(shares[worst])
    return Placed("outside noise" if max(overall, position) > LIMIT else "within noise", overall, position, worst)
