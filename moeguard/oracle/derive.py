"""References of partner problems that follow from a known one without new products."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from moeguard.oracle.reference import Reference, sums_inside
from moeguard.oracle.slots import Slots, make_slots
from moeguard.quant.formats import FORMATS
from moeguard.tensors.problem import Problem


def reordered(reference: Reference, order: Tensor, problem: Problem) -> Reference:
    """The reference after the batch was gathered by ``order`` [T] (a permutation): row i is the old row order[i]."""
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    slots = replace(reference.slots, token=inverse[reference.slots.token])
    return replace(_rows(reference, order), problem=problem, slots=slots)


def scaled(reference: Reference, factor: float, problem: Problem) -> Reference:
    """The reference after ``topk_weights`` were multiplied by ``factor``, a power of two >= 1."""
    y, deviation = reference.y * factor, reference.deviation * factor
    slots = replace(reference.slots, weight=reference.slots.weight * factor)
    return replace(reference, problem=problem, slots=slots, y=y, deviation=deviation,
                   swing=None if reference.swing is None else reference.swing * factor,
                   defined=_still_defined(reference, slots, y, deviation))


def selected(reference: Reference, tokens: Tensor, problem: Problem) -> Reference:
    """The reference of the rows ``tokens`` (ascending) alone; ``problem`` holds just those rows."""
    case = problem.case
    slots = make_slots(problem.flat_ids, problem.flat_weights, case.first_expert, case.experts_local)
    kept = torch.isin(reference.slots.token, tokens)
    return _slot_values(replace(_rows(reference, tokens), problem=problem, slots=slots), reference, kept)


def without_slot(reference: Reference, rank: Tensor, problem: Problem) -> Reference:
    """The reference after ``topk_weights[t, rank[t]]`` became zero.

    S is an upper bound: it keeps the dropped part's share, and gains the rounding of an answer that may have grown.
    """
    slots = reference.slots
    gone = slots.rank == rank[slots.token]
    part = reference.expert_output * (slots.weight * gone)[:, None]
    weights = replace(slots, weight=torch.where(gone, torch.zeros_like(slots.weight), slots.weight))
    y = reference.y - slots.combine(part)
    step = reference.output.roundoff
    if reference.numerics.combine != "fp32":
        step = max(step, FORMATS["bf16"].roundoff) * (problem.flat_ids.shape[1] + 1)
    deviation = (reference.deviation.square() + y.square() * (step**2 / 3)).sqrt_()
    return replace(reference, problem=problem, slots=weights, y=y, deviation=deviation,
                   defined=_still_defined(reference, weights, y, deviation))


def _still_defined(reference: Reference, slots: Slots, y: Tensor, deviation: Tensor) -> Tensor | None:
    """Where the reference was defined and the new sums stay inside their formats; None when everywhere."""
    inside = sums_inside(slots, reference.expert_output, y, deviation, reference.numerics, reference.output)
    defined = inside if reference.defined is None else inside & reference.defined
    return None if bool(defined.all()) else defined


def _rows(reference: Reference, order: Tensor) -> Reference:
    return replace(
        reference, y=reference.y[order], deviation=reference.deviation[order], row_freedom=reference.row_freedom[order],
        tied=reference.tied[order], x=reference.x[order],
        defined=None if reference.defined is None else reference.defined[order],
        valid=None if reference.valid is None else reference.valid[order])


def _slot_values(target: Reference, reference: Reference, kept: Tensor) -> Reference:
    scale = reference.hidden_scale
    if scale is not None and scale.dim() == 2 and scale.shape[0] == reference.slots.count:
        scale = scale[kept]
    return replace(
        target, gate=reference.gate[kept], up=None if reference.up is None else reference.up[kept], raw=reference.raw[kept],
        noise=reference.noise[kept], swing=None if reference.swing is None else reference.swing[kept],
        edges=None if reference.edges is None else reference.edges.of_slots(kept),
        hidden=reference.hidden[kept], hidden_scale=scale,
        expert_output=reference.expert_output[kept])
