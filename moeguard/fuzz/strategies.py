"""Hypothesis strategies: descriptors and seeds, never tensor values; each draw is a valid case within the budget.

Kinds are drawn from tables whose repetitions are their shares and whose first entry is what a failing case shrinks to.
The simplest case has T = E = K = 1, H = I = 8, the first recipe, every first kind and seed 0; T = 0 is a choice apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from moeguard.core.case import PROBES, REPEATING, Case
from moeguard.core.errors import UnknownNameError
from moeguard.core.recipe import RECIPES
from moeguard.fuzz.boundaries import TOP_K
from moeguard.fuzz.fields import (
    ANY_UNIT,
    EMPTY,
    FORMATS,
    INPUTS,
    LAYOUTS,
    METHODS,
    SEEDS,
    UNITS,
    WEIGHTS,
    draw_activation,
    draw_parallel,
    draw_routing,
    draw_scales,
)
from moeguard.fuzz.profiles import Profile
from moeguard.fuzz.sizes import MODES, Demands, Mode, draw_shape, integer, pick, possible


def cases(profile: Profile, recipes: Sequence[str], *, probes: bool = True) -> SearchStrategy[Case]:
    """Cases of ``recipes`` within ``profile``; ``probes`` admits routing that breaks the contract (about 10 %).

    Raises UnknownNameError for a recipe that does not exist, or when none is given.
    """
    known = list(RECIPES)
    for recipe in recipes or ("",):
        if recipe not in known:
            raise UnknownNameError("recipe", recipe, known)
    return _cases(profile, tuple(recipes), probes)


@st.composite
def _case(draw: DrawFn, profile: Profile, recipes: tuple[str, ...], probes: bool) -> Case:
    mode: Mode = draw(pick(MODES))
    recipe: str = draw(pick(recipes))
    routing = draw_routing(draw, probes)
    method: str = draw(pick(METHODS))
    units = UNITS.get(recipe, ANY_UNIT)
    groups = 4 if method == "grouped_topk" else 1
    parallel = draw_parallel(draw, profile, mode, units[0], groups)
    batched = routing not in PROBES and parallel["tp_size"] == 1 and draw(pick(FORMATS)) == "batched"
    least_top_k = 2 if routing in REPEATING else 1
    single = method == "llama4_sigmoid" and least_top_k == 1 and draw(integer(0, 7)) < 7
    demands = Demands(
        ep_size=parallel["ep_size"], tp_size=parallel["tp_size"], least_top_k=least_top_k,
        most_top_k=1 if single else TOP_K[-1], groups=groups, unit=draw(pick(units)), base_unit=units[0],
        batched=batched)
    if not possible(profile, demands):  # without ranks and batches the least layer is smaller
        parallel |= {"ep_size": 1, "ep_rank": 0, "tp_size": 1, "tp_rank": 0}
        batched, demands = False, replace(demands, ep_size=1, tp_size=1, batched=False)
    shape = draw_shape(draw, profile, mode, demands).model_dump()
    inputs: str = draw(pick(INPUTS))
    exact, narrow = inputs == "exact", RECIPES[recipe].narrow
    activation = draw_activation(draw, narrow=narrow if exact else None)
    scales, weights, bias = {"kind": "normal", "exponent": 0}, "normal", False
    if not exact:
        scales = draw_scales(draw, recipe, activation["kind"])
        weights, bias = draw(pick(WEIGHTS))
    layout = "contiguous" if batched else draw(pick(LAYOUTS))
    if routing not in PROBES and draw(pick(EMPTY)):
        shape["num_tokens"] = 0
    return Case.model_validate({
        "shape": shape, "recipe": recipe, "activation": activation, "routing": {"kind": routing, "method": method},
        "inputs": {"kind": inputs}, "scales": scales, "weights": {"kind": weights, "bias": bias},
        "layout": {"kind": layout}, "parallel": parallel, "activation_format": "batched" if batched else "standard",
        "seed": draw(integer(*SEEDS))})


@lru_cache(maxsize=64)
def _cases(profile: Profile, recipes: tuple[str, ...], probes: bool) -> SearchStrategy[Case]:
    return _case(profile, recipes, probes)
