"""Fields of a case: the tables that they are drawn from, whose repetitions are their shares, and the draws of several choices."""

from __future__ import annotations

from typing import Any

from hypothesis.strategies import DrawFn

from moeguard.fuzz.boundaries import DP_SIZES, EXPONENT_EDGES, EXPONENTS
from moeguard.fuzz.profiles import Profile
from moeguard.fuzz.sizes import Mode, ep_sizes, integer, pick, tp_sizes
from moeguard.tensors.identity import EDITS

#: Seeds of a case.
SEEDS = (0, 2**32)


def shares(**of: int) -> tuple[str, ...]:
    """Each name as often as its number says."""
    return tuple(name for name, share in of.items() for _ in range(share))


ROUTING = shares(uniform=20, balanced=8, skewed=13, one_expert=8, empty_experts=8)
_PROBES = shares(duplicate_ids=2, invalid_ids=2, nan_logits=2, all_negative_logits=1)
METHODS = shares(renormalize=8, softmax_topk=6, sigmoid_bias=5, grouped_topk=5, llama4_sigmoid=3)
INPUTS = shares(normal=24, heavy_tail=8, sparse=6, zeros=2, spread=8, outlier=8, exact=5)
_ACTIVATIONS = shares(swiglu=20, geglu=5, geglu_tanh=5, swiglu_oai=12, relu2=5, silu=4, gelu=4)
_EXACT_ACTIVATIONS = {True: shares(swiglu=4, geglu=2, geglu_tanh=2),
                      False: shares(swiglu=4, geglu=2, geglu_tanh=2, relu2=2, silu=2, gelu=2)}
#: By what the intermediate is quantised with: a scale that is computed from it can overflow.
_SCALES = {"dynamic": shares(normal=26, tiny=16, zero=3, bimodal=8, heterogeneous=5, saturating=6),
           "static": shares(normal=28, tiny=8, zero=3, bimodal=8, heterogeneous=8, saturating=9),
           "none": shares(normal=32, tiny=8, zero=3, bimodal=10, heterogeneous=10, saturating=1)}
_QUANTISED = {"fp8_per_tensor": "static", "int4_fp8": "static", "nvfp4": "static", "fp8_block": "dynamic", "mxfp8": "dynamic",
              "mxfp4_fp8": "dynamic"}
#: Activations whose value has the factor of gate and up twice.
_SQUARED = ("swiglu", "geglu", "geglu_tanh", "relu2")
WEIGHTS = (*[("normal", False)] * 14, *[("normal", True)] * 3, *[("zero_expert", False)] * 2, ("zero_expert", True))
LAYOUTS = shares(contiguous=12, noncontiguous=3, nan_padding=3)
_PARALLEL = shares(none=41, ep=3, tp=2, both=1, dp=1)
_LAYER_PARALLEL = shares(none=3, ep=5, tp=1, both=1)
FORMATS = shares(standard=19, batched=1)
EMPTY = (*[False] * 29, True)
_EDGE_OR = (False, True)
_NONE_OR = (*[False] * 3, *[True] * 4)
#: Divisors of H and the local I, per recipe; the first is the one that it cannot do without.
UNITS = {"fp8_block": (8, 16, 128, 128, 128), "mxfp8": (32, 32, 128), "mxfp4_bf16": (32, 32, 128),
          "mxfp4_fp8": (32, 32, 128), "int4_fp8": (128,), "nvfp4": (16, 32, 128), "nvfp4_bf16": (16, 32, 128)}
ANY_UNIT = (8, 8, 8, 16, 16, 128)


def draw_parallel(draw: DrawFn, profile: Profile, mode: Mode, unit: int, groups: int) -> dict[str, int]:
    """Ranks for layers whose local I is a multiple of ``unit`` and E one of ``groups``."""
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


def draw_activation(draw: DrawFn, *, narrow: bool | None) -> dict[str, Any]:
    """Parameters in eighths: alpha 1/8 to 4, beta -2 to 2, limit 1/8 to 16, each None in three draws of seven.

    narrow: for exact inputs, whether the recipe's intermediate is; None for other inputs.
    """
    activation: dict[str, Any] = {"kind": draw(pick(_ACTIVATIONS if narrow is None else _EXACT_ACTIVATIONS[narrow]))}
    if activation["kind"] == "swiglu_oai":
        for name, low, high in (("alpha", 1, 32), ("beta", -16, 16), ("limit", 1, 128)):
            if draw(pick(_NONE_OR)):
                activation[name] = draw(integer(low, high)) / 8
    return activation


def draw_routing(draw: DrawFn, probes: bool) -> str:
    """A kind of routing; ``probes`` admits those that break the contract."""
    return str(draw(pick(ROUTING + _PROBES if probes else ROUTING)))


def draw_scales(draw: DrawFn, recipe: str, activation: str, kinds: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Scales for ``recipe``, of one of ``kinds`` if they are given, with an exponent where it matters."""
    table = _SCALES[_QUANTISED.get(recipe, "none")]
    kind: str = draw(pick(table if kinds is None else tuple(one for one in table if one in kinds)))
    if kind not in EDITS:
        return {"kind": kind, "exponent": 0}
    near = draw(pick(_EDGE_OR))
    times = 2 if kind == "tiny" and activation in _SQUARED else 1
    return {"kind": kind, "exponent": draw(pick(EXPONENT_EDGES[times])) if near else draw(integer(*EXPONENTS))}
