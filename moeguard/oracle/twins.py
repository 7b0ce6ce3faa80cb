"""Twins: emulations of the same recipe on the same problem with another accumulation order.

A twin differs from the oracle where accumulation noise moves a value over a rounding edge, and by the roundings that the
oracle leaves out (expert output, combine, output). Only values close to an edge are drawn, and only what moved is
multiplied again, so many twins cost little.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from moeguard.core.numerics import UNSCALED, Numerics
from moeguard.oracle.noise import FAST_MATH, QUOTIENT, REACH, preactivation_noise
from moeguard.oracle.reference import Reference
from moeguard.oracle.scale_edges import scale_edges, scales_of
from moeguard.oracle.slots import Slots, grouped_product, operand_columns
from moeguard.quant.blocks import fake_quantize, power_of_two, through_codes
from moeguard.quant.formats import round_to

#: Moved values that are multiplied at a time, and output elements of the twins that are made at a time.
_CHUNK = 4096
_BATCH = 1 << 19


def twin_outputs(reference: Reference, count: int, seed: int = 0, numerics: Numerics | None = None,
                 noise: float | None = None) -> Tensor:
    """``count`` healthy answers, float64 [count, T, H], rounded to the output format; see ``each_twin``."""
    twins = list(each_twin(reference, count, seed, numerics, noise))
    return torch.stack(twins) if twins else reference.y.new_zeros(0, *reference.y.shape)


def each_twin(reference: Reference, count: int, seed: int = 0, numerics: Numerics | None = None,
              noise: float | None = None) -> Iterator[Tensor]:
    """``count`` healthy answers [T, H], float64 on the grid of the output format, one at a time.

    numerics: rounding points other than the reference's own. noise: relative standard deviation of the
    pre-activations, in place of the accumulator's estimate.
    """
    recipe = numerics or reference.numerics
    generator = torch.Generator(device=reference.y.device).manual_seed(seed * 1000 + 17)
    spread = reference.noise if noise is None else preactivation_noise(
        reference.problem, recipe, reference.slots, reference.x, reference.gate, reference.up, noise)[0]
    moves = _Moves(reference, recipe, torch.hypot(spread, FAST_MATH * reference.raw.abs()))
    rows = max(reference.slots.count, reference.y.shape[0])
    batch = max(1, _BATCH // max(1, rows * max(reference.y.shape[1], reference.raw.shape[1])))
    for start in range(0, count, batch):
        yield from _answers(reference, recipe, moves, generator, min(batch, count - start))


class _Moves:
    """The elements of the intermediate that noise can move, with their distribution; the others are fixed."""

    def __init__(self, reference: Reference, recipe: Numerics, spread: Tensor) -> None:
        self.rounding, self.static = recipe.intermediate, reference.problem.weights.intermediate_scale
        scale = reference.hidden_scale
        last = self.rounding.rsplit("+", 1)[-1]
        if last not in UNSCALED and last != reference.numerics.intermediate.rsplit("+", 1)[-1]:
            _, scale = fake_quantize(reference.raw, self.rounding, self.static)
        self.edges = scale_edges(self.rounding, reference.raw, spread, self.static)
        centre = self._round(reference.raw, scale)
        low = self._round(reference.raw - REACH * spread, scale, -QUOTIENT)
        high = self._round(reference.raw + REACH * spread, scale, QUOTIENT)
        self.fixed = torch.where(torch.isfinite(centre), centre - reference.hidden, 0.0)
        movable = low != high
        if self.edges is not None:
            movable |= self.edges.fill(self.edges.high, reference.raw) > 0
        where = movable.nonzero()
        self.slot, self.unit = where[:, 0], where[:, 1]
        self.raw, self.spread = reference.raw[self.slot, self.unit], spread[self.slot, self.unit]
        self.hidden = reference.hidden[self.slot, self.unit]
        self.scale = None if scale is None else scale.expand_as(reference.raw)[self.slot, self.unit]
        leaders = reference.slots.leaders()
        self.same = None if leaders is None else torch.unique(
            leaders[self.slot] * reference.raw.shape[1] + self.unit, return_inverse=True)[1]
        self.edge = self._edge_of_elements(reference, leaders)
        self.fixed[self.slot, self.unit] = 0.0
        self.has_fixed = bool((self.fixed != 0).any())

    def _edge_of_elements(self, reference: Reference, leaders: Tensor | None) -> Tensor | None:
        """Number of the undecided group of each movable element, -1 for none, int64 [n]; copies of an expert share theirs."""
        if self.edges is None:
            return None
        rows, columns = reference.raw.shape
        groups = columns // self.edges.width
        number = torch.full((rows * groups,), -1, device=self.slot.device)
        number[self.edges.slot * groups + self.edges.group] = torch.arange(len(self.edges.slot), device=self.slot.device)
        first = self.slot if leaders is None else leaders[self.slot]
        return number[first * groups + self.unit // self.edges.width]

    def _scales(self, generator: torch.Generator, twins: int) -> Tensor | None:
        """Scales of the movable elements, [n] or, where groups are undecided, drawn for each twin [twins, n]."""
        if self.edges is None or self.edge is None or self.scale is None:
            return self.scale
        drawn = torch.randn(twins, len(self.edges.amax), dtype=torch.float64, device=self.raw.device, generator=generator)
        tilt = torch.rand(twins, len(self.edges.amax), dtype=torch.float64, device=self.raw.device, generator=generator)
        amax = self.edges.amax + drawn.clamp_(-REACH, REACH) * self.edges.spread
        group = amax.clamp_min_(0)[:, :, None].expand(-1, -1, self.edges.width)
        scale = scales_of(self.rounding, group, self.static, tilt.sub_(0.5).mul_(QUOTIENT)[:, :, None])[:, :, 0]
        return torch.where(self.edge >= 0, scale[:, self.edge.clamp_min(0)], self.scale)

    def _round(self, value: Tensor, scale: Tensor | None, tilt: Tensor | float = 0.0) -> Tensor:
        return round_intermediate(self.rounding, value, scale, tilt)

    def draw(self, generator: torch.Generator, twins: int) -> Tensor:
        """The difference to the oracle's rounded intermediate, one value per twin and movable element, [twins, n]."""
        count = self.raw.shape[0] if self.same is None or not len(self.same) else int(self.same.max()) + 1
        jitter = torch.randn(twins, count, dtype=torch.float64, device=self.raw.device, generator=generator)
        tilt = torch.rand(twins, count, dtype=torch.float64, device=self.raw.device, generator=generator).sub_(0.5)
        if self.same is not None:  # an expert that a token has twice computes the same value twice
            jitter, tilt = jitter[:, self.same], tilt[:, self.same]
        scale = self._scales(generator, twins)
        value = self._round(self.raw + jitter.clamp_(-REACH, REACH).mul_(self.spread), scale, tilt.mul_(QUOTIENT))
        return value - self.hidden


def round_intermediate(rounding: str, value: Tensor, scale: Tensor | None, tilt: Tensor | float = 0.0) -> Tensor:
    """The declared rounding of ``value`` with known scales.

    tilt: relative error of the quotient by the scale; an 8-bit value is often a tie of e4m3, which this decides. A scale that
    is a power of two by its format, or a static one that happens to be, has none.
    """
    for part in rounding.split("+"):
        if part not in UNSCALED:
            assert scale is not None
            if part != "mxfp8" and (part != "e4m3_per_tensor" or not power_of_two(scale)):
                value = value + value.abs() * tilt
            value = through_codes(value, scale, part)
        elif part != "none":
            value = round_to(value, part)
    return value


def _answers(reference: Reference, recipe: Numerics, moves: _Moves, generator: torch.Generator, twins: int) -> Tensor:
    """Answers of ``twins`` twins at once, [twins, T, H]."""
    change = moves.draw(generator, twins)
    slots, down = reference.slots, reference.problem.weights.down
    by_slot = recipe.expert_output != "none" or recipe.combine != "fp32"
    base = reference.expert_output if by_slot else reference.y
    rows, columns = base.shape
    value = base.expand(twins, rows, columns).clone()
    if moves.has_fixed or change.shape[1] * 8 > reference.hidden.numel():
        full = moves.fixed.expand(twins, *moves.fixed.shape).clone()
        full[:, moves.slot, moves.unit] = change
        difference = grouped_product(full, down, slots)
        if by_slot:
            value += difference
        else:
            value.index_add_(1, slots.token, difference.mul_(slots.weight[:, None]))
    else:
        twin, element = change.nonzero(as_tuple=True)
        flat = value.view(twins * rows, columns)
        for part in torch.arange(twin.shape[0], device=twin.device).split(_CHUNK):
            hit, which = element[part], twin[part]
            slot = moves.slot[hit]
            column = operand_columns(down, slots.expert[slot], moves.unit[hit]) * change[which, hit][:, None]
            if by_slot:
                flat.index_add_(0, which * rows + slot, column)
            else:
                flat.index_add_(0, which * rows + slots.token[slot], column * slots.weight[slot][:, None])
    return finish(value, slots, recipe, reference, generator) if by_slot else round_to(value, reference.output.name)


def finish(output: Tensor, slots: Slots, numerics: Numerics, reference: Reference, generator: torch.Generator) -> Tensor:
    """Expert outputs [n, S, H] to rounded answers [n, T, H] by the declared expert-output, combine and output rounding.

    An expert's output is rounded before or behind its routing weight, half of the twins each. A combine in low precision adds the
    experts of a token in a random order.
    """
    form = reference.output.name
    weighted = output * slots.weight[:, None]
    if numerics.expert_output != "none":
        early = torch.rand(output.shape[0], 1, 1, device=output.device, generator=generator) < 0.5
        rounded, _ = fake_quantize(torch.where(early, output, weighted), numerics.expert_output)
        weighted = torch.where(early, rounded * slots.weight[:, None], rounded)
    total = output.new_zeros(output.shape[0], *reference.y.shape)
    if numerics.combine == "fp32":
        return round_to(total.index_add_(1, slots.token, weighted), form)
    narrow = form if numerics.combine == "output" else "bf16"
    top_k = reference.problem.flat_ids.shape[1]
    for rank in torch.randperm(top_k, device=output.device, generator=generator).tolist():
        mine = slots.rank == rank
        token = slots.token[mine]
        total[:, token] = round_to(total[:, token] + weighted[:, mine], narrow)
    return round_to(total, form)
