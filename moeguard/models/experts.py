"""What stands in the place of a model's experts: a backend, or the same arithmetic in float32."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from moeguard.backends.protocol import Backend
from moeguard.core.case import Case
from moeguard.core.recipe import RECIPES
from moeguard.memory.digest import digest
from moeguard.oracle.activation import activate
from moeguard.quant.formats import FORMATS
from moeguard.tensors.operand import Batch, Operand, Weights
from moeguard.tensors.weights import make_weights


class Arm(ABC):
    """One way to compute the experts of every layer. name: as it is reported. broken: it has a defect on purpose. chosen: the
    tactics of its tuning, by number of tokens."""

    name: str
    broken = False

    def __init__(self) -> None:
        self.chosen: dict[int, str] = {}

    @abstractmethod
    def layer(self, case: Case, weights: Weights) -> Any:
        """What one layer needs; made once."""

    @abstractmethod
    def compute(self, layer: Any, x: Tensor, ids: Tensor, weights: Tensor, logits: Tensor) -> Tensor:
        """The weighted sum of a token's experts: x float32 [T, H], ids int64 [T, K], weights float32 [T, K], logits float32
        [T, E] to float32 [T, H]."""


class Float32(Arm):
    """The stored weights dequantised, every product and sum in float32, nothing rounded between."""

    name = "float32"

    def layer(self, case: Case, weights: Weights) -> tuple[Case, Weights]:
        return case, weights

    def compute(self, layer: tuple[Case, Weights], x: Tensor, ids: Tensor, weights: Tensor, logits: Tensor) -> Tensor:
        case, stored = layer
        total = torch.zeros_like(x)
        for expert in ids.unique().tolist():
            token, rank = (ids == expert).nonzero(as_tuple=True)
            gate = _project(x[token], stored.gate, stored.gate_bias, expert)
            up = None if stored.up is None else _project(x[token], stored.up, stored.up_bias, expert)
            answer = _project(activate(case.activation, gate, up), stored.down, stored.down_bias, expert)
            total.index_add_(0, token, answer * weights[token, rank, None])
        return total


class OfBackend(Arm):
    """A backend on its default tactic, or on the one that its own tuning chooses for each number of tokens.

    The input is rounded to the recipe's 16 bits, as an engine hands it over. An output that is not written stays NaN.
    """

    def __init__(self, backend: Backend, *, tuned: bool = False, broken: bool = False) -> None:
        super().__init__()
        self.name = f"{backend.name}:tuned" if tuned else backend.name
        self.broken = broken
        self._backend, self._tuned = backend, tuned

    def layer(self, case: Case, weights: Weights) -> Any:
        return case, self._backend.prepare(weights, case), {}

    def compute(self, layer: Any, x: Tensor, ids: Tensor, weights: Tensor, logits: Tensor) -> Tensor:
        case, prepared, tactics = layer
        form = RECIPES[case.recipe].x_format
        batch = Batch(Operand(x.to(FORMATS[form].dtype), format=form), ids.to(torch.int32), weights.clone(), logits.clone())
        out = torch.full_like(x, torch.nan, dtype=FORMATS[RECIPES[case.recipe].output].dtype)
        tactic = self._tactic(prepared, batch, tactics) if self._tuned else None
        size = self._backend.workspace_bytes(prepared, batch)
        workspace = torch.empty(size, dtype=torch.uint8, device=x.device) if size else None
        self._backend.run(prepared, batch, out, tactic=tactic, workspace=workspace)
        return out.float()

    def _tactic(self, prepared: Any, batch: Batch, tactics: dict[int, Hashable | None]) -> Hashable | None:
        tokens = batch.x.data.shape[0]
        if tokens not in tactics:
            tactics[tokens] = self._backend.tune(prepared, batch)
            self.chosen[tokens] = str(tactics[tokens])
        return tactics[tokens]


class Experts(nn.Module):
    """The experts of one layer of a model, for whichever arm has been made its own.

    follow: route as the first pass of the model did, so that what differs is what the experts answer and not whom a token
    was sent to.
    """

    def __init__(self, case: Case, device: str) -> None:
        super().__init__()
        self._case, self._device = case, device
        self._weights = make_weights(case, device)
        self._digests = self._digest()
        self._arm: Arm | None = None
        self._layer: Any = None
        self._first: tuple[Tensor, Tensor] | None = None
        self.follow = False

    def give(self, arm: Arm | None) -> None:
        """Have ``arm`` answer from now on; None frees what the last one held."""
        self._arm, self._layer = arm, None
        if arm is not None:
            self._layer = arm.layer(self._case, self._weights)

    def changed(self) -> list[str]:
        """Names of the weights that an arm has written to; they are made again."""
        now = self._digest()
        names = [name for name, value in self._digests.items() if now[name] != value]
        if names:
            self._weights = make_weights(self._case, self._device)
        return names

    def _digest(self) -> dict[str, int]:
        return {name: digest(tensor) for name, tensor in self._weights.tensors().items()}

    def forward(self, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """hidden float32 [T, H], ids int64 [T, K], weights [T, K] to float32 [T, H]."""
        assert self._arm is not None
        if self._first is None:
            self._first = ids, weights.float()
        if self.follow:
            ids, weights = self._first
        logits = torch.zeros(len(ids), self._case.shape.num_experts, device=ids.device).scatter_(1, ids, weights.float())
        return self._arm.compute(self._layer, hidden, ids, weights.float(), logits)


def install(model: nn.Module, cases: Sequence[Case], device: str) -> list[Experts]:
    """Put ``Experts`` with the weights of its case in the place of the experts of each layer of ``model``."""
    made = [Experts(case, device) for case in cases]
    for layer, experts in zip(model.model.layers, made, strict=True):  # type: ignore[union-attr, arg-type]
        layer.mlp.experts = experts
    return made


def _project(rows: Tensor, weight: Operand, bias: Operand | None, expert: int) -> Tensor:
    """rows [n, D] times the expert's matrix [N, D] transposed, plus its bias."""
    value = rows @ weight.experts(slice(expert, expert + 1)).dequantize()[0].T
    return value if bias is None else value + bias.data[expert]
