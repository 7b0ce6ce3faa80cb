"""The protocol of a router: from logits to the experts of each token and their weights."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from moeguard.backends.protocol import Availability, Support
from moeguard.core.router import Precision, RouterCase


class Router(ABC):
    """One routing kernel, or one way to call a library. Names are made of a-z, 0-9 and _."""

    name: str

    def availability(self) -> Availability:
        """Whether this machine can run the router: import, device, version."""
        return Availability.yes()

    def supports(self, case: RouterCase) -> Support:
        """Whether the router has the method and the sizes of ``case``; decided without trying."""
        return Support.yes()

    def precision(self, case: RouterCase) -> Precision:
        """How exactly scores are computed; by default in float32, whatever the dtype of the logits."""
        return Precision()

    def weights_dtype(self, case: RouterCase) -> torch.dtype:
        """Dtype of the weights that ``route`` is to write."""
        return torch.float32

    @abstractmethod
    def route(self, case: RouterCase, logits: Tensor, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        """Write ``ids`` int32 [T, K] and ``weights`` [T, K], in any order within a token, and return None.

        logits [T, E] and bias [E] (None unless ``case.biased``) have the case's dtype and stay unchanged. Only numbers of
        ``case`` that describe the method may be used, not its probe or seed. The weights hold ``case.scaling_factor``.
        """
