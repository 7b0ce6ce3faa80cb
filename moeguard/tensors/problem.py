"""A problem: the tensors of one case on one device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moeguard.core.case import Case
from moeguard.core.recipe import RECIPES
from moeguard.quant.formats import FORMATS
from moeguard.tensors.inputs import ROW_PADDING, make_inputs, not_a_number
from moeguard.tensors.operand import Batch, Operand, Weights
from moeguard.tensors.routing import make_routing
from moeguard.tensors.weights import WeightBank


@dataclass(frozen=True, slots=True)
class Problem:
    """case, its weights and its batch. ``flat_x``, ``flat_ids``, ``flat_weights``: the batch as T independent rows.

    In the batched format a row is one slot [E_local * max_tokens], routed to its own expert with weight one;
    ``valid`` (bool, or None for all) marks the rows whose output is defined.
    """

    case: Case
    weights: Weights
    batch: Batch
    flat_x: Operand
    flat_ids: Tensor
    flat_weights: Tensor
    valid: Tensor | None = None

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of ``out``: that of ``batch.x``."""
        return self.batch.x.shape

    @property
    def output_dtype(self) -> torch.dtype:
        """Dtype of ``out``."""
        return FORMATS[RECIPES[self.case.recipe].output].dtype

    @property
    def row_padding(self) -> int:
        """Elements of gap after each row of ``out``."""
        return ROW_PADDING if self.case.layout.kind != "contiguous" else 0

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.flat_ids.device


def build_problem(case: Case, bank: WeightBank, device: torch.device | str = "cpu") -> Problem:
    """All tensors of ``case`` on ``device``, the same bits on every device."""
    weights = bank.get(case, device)
    x = make_inputs(case, device)
    routing = make_routing(case, device)
    if case.activation_format == "batched":
        return _batched(case, weights, x, routing.ids)
    batch = Batch(x, routing.ids, routing.weights, routing.logits)
    return Problem(case, weights, batch, x, routing.ids, routing.weights)


def with_batch(problem: Problem, batch: Batch, case: Case | None = None, weights: Weights | None = None) -> Problem:
    """A standard-format problem with another batch (a partner of a metamorphic relation)."""
    assert batch.topk_ids is not None and batch.topk_weights is not None
    return Problem(case or problem.case, weights or problem.weights, batch, batch.x, batch.topk_ids, batch.topk_weights)


def _batched(case: Case, weights: Weights, x: Operand, ids: Tensor) -> Problem:
    """Gather the slots of each local expert into [E_local, max_tokens, H].

    Rows beyond the count are NaN in ``batch.x``, where an engine leaves what was there, and zero in ``flat_x``.
    """
    local, first = case.experts_local, case.first_expert
    counts = torch.stack([(ids == first + e).sum() for e in range(local)]) if local else ids.new_zeros(0)
    most = max(1, int(counts.max())) if ids.numel() else 1

    def gathered(value: Tensor) -> Tensor:
        slots = torch.zeros(local, most, value.shape[-1], device=ids.device).to(value.dtype)
        for expert in range(local):
            tokens = (ids == first + expert).nonzero()[:, 0]
            slots[expert, : len(tokens)] = value[tokens]
        return slots

    data = gathered(x.data)
    scale = gathered(x.scale) if x.scale is not None and x.grouped else x.scale
    rows = torch.arange(most, device=ids.device)
    valid = (rows[None, :] < counts[:, None]).reshape(-1)
    flat_scale = scale.flatten(0, 1) if scale is not None and x.grouped else scale
    flat = Operand(data.flatten(0, 1), flat_scale, x.global_scale, x.format)
    beyond = ~valid.view(local, most)
    operand = Operand(not_a_number(data, beyond), not_a_number(scale, beyond) if scale is not None and x.grouped else scale,
                      x.global_scale, x.format)
    flat_ids = (torch.arange(local, dtype=torch.int32, device=ids.device) + first).repeat_interleave(most)[:, None]
    return Problem(case, weights, Batch(operand, expert_num_tokens=counts.to(torch.int32)), flat, flat_ids,
                   torch.ones(local * most, 1, device=ids.device), valid)
