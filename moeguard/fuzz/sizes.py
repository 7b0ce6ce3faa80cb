"""Shapes under a budget: every size is drawn from its table up to what the sizes drawn before it leave.

Nothing is drawn and then rejected, so a draw never fails and shrinks size by size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from moeguard.core.case import Case, Shape
from moeguard.fuzz.boundaries import (
    EP_SIZES,
    EXPERTS,
    HIDDEN,
    INTERMEDIATE,
    LAYERS,
    TOKENS,
    TOP_K,
    TP_SIZES,
    Layer,
    within,
)
from moeguard.fuzz.profiles import Profile, measure


class Mode(NamedTuple):
    """How a shape is drawn.

    fraction: share of the budget. order: which sizes come first. grain: values from tables (0), any multiple of the
    unit (1), any integer (2). layer: a public model's layer is taken where one fits.
    """

    fraction: float
    order: str
    grain: int = 0
    layer: bool = False


#: Most cases are small, for throughput; the last sizes of an order get what the first ones leave.
MODES = (
    *[Mode(0.08, order) for order in ("tekhi", "hiekt", "ekith", "tkihe") for _ in range(6)],
    *[Mode(0.08, order, 1) for order in ("hiekt", "tekhi")],
    Mode(0.08, "ihtek", 2),
    *[Mode(0.35, order, grain) for order in ("tekhi", "hiekt", "ihekt", "tkeih") for grain in (0, 0, 1)],
    *[Mode(1.0, order) for order in ("tekhi", "hiekt", "ekith", "ihtek")],
    Mode(1.0, "tekhi", layer=True),
    Mode(1.0, "tekhi", layer=True),
)


@dataclass(frozen=True, slots=True)
class Demands:
    """What the other fields of a case ask of its shape.

    least_top_k, most_top_k: bounds of K. groups: E is a multiple of it, and K <= E / 2 where it is above 1.
    unit: divisor that H and the local I should have; base_unit: the one that they must have. batched: a token takes up
    to max(K, E_local) rows.
    """

    ep_size: int = 1
    tp_size: int = 1
    least_top_k: int = 1
    most_top_k: int = TOP_K[-1]
    groups: int = 1
    unit: int = 8
    base_unit: int = 8
    batched: bool = False

    @property
    def experts(self) -> int:
        """Divisor of E."""
        return math.lcm(self.ep_size, self.groups)

    def slots(self, top_k: int, experts_local: int) -> int:
        """Rows that a token may take."""
        return max(top_k, experts_local) if self.batched else top_k

    @property
    def least_experts(self) -> int:
        """Lower bound of E."""
        return max(self.least_top_k, 2 * self.groups if self.groups > 1 else 1)


@lru_cache(maxsize=4096)
def pick(values: tuple[Any, ...]) -> SearchStrategy[Any]:
    """``sampled_from``, made once a table."""
    return st.sampled_from(values)


@lru_cache(maxsize=4096)
def integer(low: int, high: int) -> SearchStrategy[int]:
    """``integers``, made once a range."""
    return st.integers(low, high)


def ep_sizes(profile: Profile, groups: int) -> tuple[int, ...]:
    """EP sizes that divide a number of experts within ``profile`` (and a multiple of ``groups``)."""
    return tuple(ep for ep in EP_SIZES if any(
        e <= profile.max_experts and e % math.lcm(ep, groups) == 0 and e >= 2 * groups for e in EXPERTS))


def tp_sizes(profile: Profile, base_unit: int) -> tuple[int, ...]:
    """TP sizes for which every rank can hold ``base_unit`` rows, and two slots of the smallest such layer fit the budget."""
    return tuple(tp for tp in TP_SIZES if tp * base_unit <= profile.max_intermediate
                 and measure(2, 1, base_unit, tp * base_unit).work <= profile.budget.work)


def possible(profile: Profile, demands: Demands) -> bool:
    """Whether the least shape that ``demands`` admit is within ``profile`` and its budget."""
    return _Room(profile, 1.0, demands, demands.base_unit).fits()


def draw_shape(draw: DrawFn, profile: Profile, mode: Mode, demands: Demands) -> Shape:
    """A shape within ``profile`` and its budget, with T >= 1. The demands must be ``possible``."""
    if mode.layer:
        layers = _layers(profile, demands)
        if layers:
            return _draw_layer(draw, profile, demands, draw(pick(layers)))
    room = _room(profile, mode.fraction, demands)
    for name in mode.order:
        room.size[name] = _draw_size(draw, room, name, mode.grain)
    size = room.size
    return Shape(num_tokens=size["t"], hidden_size=size["h"], intermediate_size=size["i"] * demands.tp_size,
                 num_experts=size["e"], top_k=size["k"])


def most_tokens(profile: Profile, fraction: float, case: Case) -> int:
    """The largest T, and at least 1, with which ``case`` is within ``profile`` and that share of its budget."""
    parallel, shape = case.parallel, case.shape
    demands = Demands(ep_size=parallel.ep_size, tp_size=parallel.tp_size, batched=case.activation_format == "batched")
    room = _Room(profile, fraction, demands, demands.base_unit)
    room.size = {"t": 1, "e": shape.num_experts, "k": shape.top_k, "h": shape.hidden_size, "i": case.intermediate_local}
    return max(1, room.largest("t"))


class _Room:
    """Sizes so far (the least possible where none was drawn; I of one rank) and what each may still grow to."""

    def __init__(self, profile: Profile, fraction: float, demands: Demands, unit: int) -> None:
        self.profile, self.demands, self.unit = profile, demands, unit
        self.budget = profile.budget.scaled(fraction)
        experts = within(EXPERTS, demands.least_experts, profile.max_experts, demands.experts)[0]
        self.size = {"t": 1, "e": experts, "k": demands.least_top_k, "h": unit, "i": unit}

    def fits(self) -> bool:
        """Whether the least sizes are within the profile and the budget."""
        size, profile, inter = self.size, self.profile, self.size["i"] * self.demands.tp_size
        local = size["e"] // self.demands.ep_size
        rows = size["t"] * self.demands.slots(size["k"], local)
        return (size["h"] <= profile.max_hidden and inter <= profile.max_intermediate
                and self.budget.holds(measure(rows, local, size["h"], inter)))

    def largest(self, name: str) -> int:
        """The most that ``name`` may be with the other sizes as they are."""
        size, demands, budget, profile = self.size, self.demands, self.budget, self.profile
        t, h, i, local = size["t"], size["h"], size["i"] * demands.tp_size, size["e"] // demands.ep_size
        slots = demands.slots(size["k"], local)
        rows = min(budget.work // (3 * h * i), budget.activations // (h + i))
        if name == "t":
            return min(profile.max_tokens, rows // slots)
        if name == "k":
            return min(demands.most_top_k, rows // t, size["e"] // (1 if demands.groups == 1 else 2))
        if name == "e":
            most = min(budget.weights // (3 * h * i), rows // t if demands.batched else profile.max_experts)
            return min(profile.max_experts, most * demands.ep_size)
        other, limit = (i, profile.max_hidden) if name == "h" else (h, profile.max_intermediate)
        most = min(limit, budget.weights // (3 * local * other), budget.work // (3 * t * slots * other),
                   budget.activations // (t * slots) - other)
        return most if name == "h" else most // demands.tp_size


def _room(profile: Profile, fraction: float, demands: Demands) -> _Room:
    """The first of: the mode's budget, the whole budget, the whole budget with the smallest unit."""
    for share, unit in ((fraction, demands.unit), (1.0, demands.unit)):
        room = _Room(profile, share, demands, unit)
        if room.fits():
            return room
    return _Room(profile, 1.0, demands, demands.base_unit)


def _draw_size(draw: DrawFn, room: _Room, name: str, grain: int) -> int:
    least, most = room.size[name], room.largest(name)
    if name == "e":
        return int(draw(pick(within(EXPERTS, least, most, room.demands.experts))))
    if name == "k":
        return int(draw(pick(within(TOP_K, least, most))))
    if name == "t":
        return draw(integer(1, most)) if grain else int(draw(pick(within(TOKENS, 1, most))))
    if grain == 0:
        return int(draw(pick(within(HIDDEN if name == "h" else INTERMEDIATE, least, most, room.unit))))
    step = room.unit if grain == 1 or room.demands.base_unit > 8 else 1
    return draw(integer(-(-least // step), most // step)) * step


@lru_cache(maxsize=1024)
def _layers(profile: Profile, demands: Demands) -> Sequence[Layer]:
    """Public models' layers whose rank fits with a few tokens."""
    return tuple(layer for layer in LAYERS if _layer_fits(profile, demands, layer))


def _layer_fits(profile: Profile, demands: Demands, layer: Layer) -> bool:
    _, hidden, inter, experts, top_k = layer
    local = experts // demands.ep_size
    rows = demands.slots(max(top_k, demands.least_top_k), local)
    return (hidden <= profile.max_hidden and inter <= profile.max_intermediate and experts <= profile.max_experts
            and experts % demands.experts == 0 and inter % demands.tp_size == 0
            and (demands.base_unit <= 8 or hidden % demands.base_unit == inter // demands.tp_size % demands.base_unit == 0)
            and profile.budget.holds(measure(rows, local, hidden, inter)))


def _draw_layer(draw: DrawFn, profile: Profile, demands: Demands, layer: Layer) -> Shape:
    room = _Room(profile, 1.0, demands, demands.base_unit)
    top_k = max(demands.least_top_k, min(layer.top_k, demands.most_top_k))
    room.size |= {"e": layer.num_experts, "k": top_k, "h": layer.hidden_size,
                  "i": layer.intermediate_size // demands.tp_size}
    return Shape(num_tokens=draw(pick(within(TOKENS, 1, room.largest("t")))), hidden_size=layer.hidden_size,
                 intermediate_size=layer.intermediate_size, num_experts=layer.num_experts, top_k=top_k)
