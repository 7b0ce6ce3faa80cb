"""Hypothesis strategies: descriptors and seeds, never tensor values; each draw is a valid case within the budget.

Kinds are drawn from tables whose repetitions are their shares and whose first entry is what a failing case shrinks to.
The simplest case has T = E = K = 1, H = I = 8, the first recipe, every first kind and seed 0; T = 0 is a choice apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from moeguard.core.case import PROBES, Case
from moeguard.core.errors import UnknownNameError
from moeguard.core.recipe import RECIPES
from moeguard.fuzz.boundaries import DP_SIZES, EXPONENT_EDGES, EXPONENTS, TOP_K
from moeguard.fuzz.profiles import Profile
from moeguard.fuzz.sizes import MODES, Demands, Mode, draw_shape, ep_sizes, integer, pick, possible, tp_sizes

#: Seeds of a case.
SEEDS = (0, 2**32)


def _shares(**shares: int) -> tuple[str, ...]:
    return tuple(name for name, share in shares.items() for _ in range(share))


_ROUTING = _shares(uniform=20, balanced=8, skewed=13, one_expert=8, empty_experts=8)
_PROBES = _shares(duplicate_ids=2, invalid_ids=2, nan_logits=2, all_negative_logits=1)
_METHODS = _shares(renormalize=8, softmax_topk=6, sigmoid_bias=5, grouped_topk=5, llama4_sigmoid=3)
_INPUTS = _shares(normal=24, heavy_tail=8, sparse=6, zeros=2, spread=8, outlier=8, exact=5)
_ACTIVATIONS = _shares(swiglu=20, geglu=5, geglu_tanh=5, swiglu_oai=12, relu2=5, silu=4, gelu=4)
_EXACT_ACTIVATIONS = {True: _shares(swiglu=4, geglu=2, geglu_tanh=2),
                      False: _shares(swiglu=4, geglu=2, geglu_tanh=2, relu2=2, silu=2, gelu=2)}
#: By what the intermediate is quantised with: a scale that is computed from it can overflow.
_SCALES = {"dynamic": _shares(normal=26, tiny=16, zero=3, bimodal=8, heterogeneous=5, saturating=6),
           "static": _shares(normal=28, tiny=8, zero=3, bimodal=8, heterogeneous=8, saturating=9),
           "none": _shares(normal=32, tiny=8, zero=3, bimodal=10, heterogeneous=10, saturating=1)}
_QUANTISED = {"fp8_per_tensor": "static", "int4_fp8": "static", "nvfp4": "static", "fp8_block": "dynamic", "mxfp8": "dynamic",
              "mxfp4_fp8": "dynamic"}
#: Kinds of scales that an exponent changes.
SCALED = ("tiny", "bimodal", "heterogeneous")
#: Activations whose value has the factor of gate and up twice.
_SQUARED = ("swiglu", "geglu", "geglu_tanh", "relu2")
_WEIGHTS = (*[("normal", False)] * 14, *[("normal", True)] * 3, *[("zero_expert", False)] * 2, ("zero_expert", True))
_LAYOUTS = _shares(contiguous=12, noncontiguous=3, nan_padding=3)
_PARALLEL = _shares(none=41, ep=3, tp=2, both=1, dp=1)
_LAYER_PARALLEL = _shares(none=3, ep=5, tp=1, both=1)
_FORMATS = _shares(standard=19, batched=1)
_EMPTY = (*[False] * 29, True)
_EDGE_OR = (False, True)
_NONE_OR = (*[False] * 3, *[True] * 4)
#: Divisors of H and the local I, per recipe; the first is the one that it cannot do without.
_UNITS = {"fp8_block": (8, 16, 128, 128, 128), "mxfp8": (32, 32, 128), "mxfp4_bf16": (32, 32, 128),
          "mxfp4_fp8": (32, 32, 128), "int4_fp8": (128,), "nvfp4": (16, 32, 128), "nvfp4_bf16": (16, 32, 128)}
_ANY_UNIT = (8, 8, 8, 16, 16, 128)


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
    routing: str = draw(pick(_ROUTING + _PROBES if probes else _ROUTING))
    method: str = draw(pick(_METHODS))
    units = _UNITS.get(recipe, _ANY_UNIT)
    groups = 4 if method == "grouped_topk" else 1
    parallel = _parallel(draw, profile, mode, units[0], groups)
    batched = routing not in PROBES and parallel["tp_size"] == 1 and draw(pick(_FORMATS)) == "batched"
    least_top_k = 2 if routing in ("duplicate_ids", "nan_logits") else 1
    single = method == "llama4_sigmoid" and least_top_k == 1 and draw(integer(0, 7)) < 7
    demands = Demands(
        ep_size=parallel["ep_size"], tp_size=parallel["tp_size"], least_top_k=least_top_k,
        most_top_k=1 if single else TOP_K[-1], groups=groups, unit=draw(pick(units)), base_unit=units[0],
        batched=batched)
    if not possible(profile, demands):  # without ranks and batches the least layer is smaller
        parallel |= {"ep_size": 1, "ep_rank": 0, "tp_size": 1, "tp_rank": 0}
        batched, demands = False, replace(demands, ep_size=1, tp_size=1, batched=False)
    shape = draw_shape(draw, profile, mode, demands).model_dump()
    inputs: str = draw(pick(_INPUTS))
    exact, narrow = inputs == "exact", RECIPES[recipe].narrow
    activation = _activation(draw, _EXACT_ACTIVATIONS[narrow] if exact else _ACTIVATIONS)
    scales, weights, bias = {"kind": "normal", "exponent": 0}, "normal", False
    if not exact:
        scales["kind"] = draw(pick(_SCALES[_QUANTISED.get(recipe, "none")]))
        if scales["kind"] in SCALED:
            near = draw(pick(_EDGE_OR))
            times = 2 if scales["kind"] == "tiny" and activation["kind"] in _SQUARED else 1
            scales["exponent"] = draw(pick(EXPONENT_EDGES[times])) if near else draw(integer(*EXPONENTS))
        weights, bias = draw(pick(_WEIGHTS))
    layout = "contiguous" if batched else draw(pick(_LAYOUTS))
    if routing not in PROBES and draw(pick(_EMPTY)):
        shape["num_tokens"] = 0
    return Case.model_validate({
        "shape": shape, "recipe": recipe, "activation": activation, "routing": {"kind": routing, "method": method},
        "inputs": {"kind": inputs}, "scales": scales, "weights": {"kind": weights, "bias": bias},
        "layout": {"kind": layout}, "parallel": parallel, "activation_format": "batched" if batched else "standard",
        "seed": draw(integer(*SEEDS))})


@lru_cache(maxsize=64)
def _cases(profile: Profile, recipes: tuple[str, ...], probes: bool) -> SearchStrategy[Case]:
    return _case(profile, recipes, probes)


def _parallel(draw: DrawFn, profile: Profile, mode: Mode, unit: int, groups: int) -> dict[str, int]:
    parallel = {"ep_size": 1, "ep_rank": 0, "tp_size": 1, "tp_rank": 0, "dp_size": 1}
    kind: str = draw(pick(_LAYER_PARALLEL if mode.layer else _PARALLEL))
    if kind == "dp":
        parallel["dp_size"] = draw(pick(DP_SIZES))
    for name, sizes in (("ep", ep_sizes(profile, groups)), ("tp", tp_sizes(profile, unit))):
        if kind in (name, "both") and sizes:
            size = draw(pick(sizes))
            parallel[f"{name}_size"] = size
            parallel[f"{name}_rank"] = draw(integer(0, size - 1))
    return parallel


def _activation(draw: DrawFn, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Parameters in eighths: alpha 1/8 to 4, beta -2 to 2, limit 1/8 to 16, each None in three draws of seven."""
    activation: dict[str, Any] = {"kind": draw(pick(kinds))}
    if activation["kind"] == "swiglu_oai":
        for name, low, high in (("alpha", 1, 32), ("beta", -16, 16), ("limit", 1, 128)):
            if draw(pick(_NONE_OR)):
                activation[name] = draw(integer(low, high)) / 8
    return activation
