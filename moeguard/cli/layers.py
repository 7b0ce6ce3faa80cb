"""Layers named on the command line: ``Mixtral-8x7B``, ``Mixtral-8x7B/tp2``; and numbers of tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import get_args

from pydantic import ValidationError

from moeguard.core.case import Activation, Case, describe
from moeguard.core.errors import CaseError, MoeguardError, UnknownNameError
from moeguard.core.recipe import RECIPES
from moeguard.fuzz import boundaries

#: H, I, E, K and tensor-parallel ranks by the names of the options.
Sizes = Mapping[str, int]
#: One column of a table: the layer as it was named, and the case.
Column = tuple[str, Case]


def numbers(tokens: str) -> list[int]:
    """Distinct numbers of ``1,64,8192``, in increasing order. Raises MoeguardError on anything else."""
    try:
        found = sorted({int(part) for part in tokens.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise MoeguardError(f"--tokens: {tokens!r}; allowed: numbers of 1 or more, separated by commas (1,64,8192)")
    return found


def sizes(layer: str) -> Sizes:
    """Sizes of a model's layer. Raises MoeguardError on another form, and UnknownNameError on a model that is not known."""
    name, slash, ranks = layer.partition("/")
    if slash and not re.fullmatch(r"tp[1-9]\d{0,8}", ranks):
        raise MoeguardError(f"--layer: {layer!r}; allowed: MODEL or MODEL/tpN, for example Mixtral-8x7B/tp2")
    known = (*boundaries.LAYERS, *boundaries.MORE_LAYERS)
    for one in known:
        if one.model.lower() == name.lower():
            return {"hidden": one.hidden_size, "intermediate": one.intermediate_size, "experts": one.num_experts,
                    "top_k": one.top_k, "tp": int(ranks[2:] or 1)}
    raise UnknownNameError("--layer", name, [one.model for one in known])


def case(recipe: str, given: Sizes, tokens: int, seed: int, activation: str = "swiglu") -> Case:
    """One column of a table. Raises CaseError, or MoeguardError that names the option."""
    if recipe not in RECIPES:
        raise UnknownNameError("--recipe", recipe, list(RECIPES))
    activations = get_args(Activation.model_fields["kind"].annotation)
    if activation not in activations:
        raise UnknownNameError("--activation", activation, list(activations))
    for name, value in given.items():
        if value < 1:
            raise MoeguardError(f"--{name.replace('_', '-')}: {value}; allowed: 1 or more")
    if given["top_k"] > given["experts"]:
        raise MoeguardError(f"--top-k: {given['top_k']} exceeds --experts {given['experts']}")
    shape = {"num_tokens": tokens, "hidden_size": given["hidden"], "intermediate_size": given["intermediate"],
             "num_experts": given["experts"], "top_k": given["top_k"]}
    try:
        return Case.model_validate({"shape": shape, "recipe": recipe, "activation": {"kind": activation}, "seed": seed,
                                    "parallel": {"tp_size": given.get("tp", 1)}})
    except ValidationError as error:
        what = describe(error)
        others = "--layer" if "tp" in given else "sizes"
        option = {"shape.num_tokens": "--tokens", "seed": "--seed"}.get(what.partition(":")[0], others)
        raise CaseError(f"{option}: {what}") from None


def columns(layers: Iterable[tuple[str, Sizes]], recipe: str, tokens: str, seed: int, activation: str = "swiglu") -> list[Column]:
    """Every layer at every number of tokens, with the layer's name. A layer that is named twice is there once."""
    distinct: dict[str, tuple[str, Sizes]] = {}
    for name, given in layers:
        distinct.setdefault(name.lower(), (name, given))
    return [(name, case(recipe, given, count, seed, activation))
            for name, given in distinct.values() for count in numbers(tokens)]


def named(layers: Iterable[str]) -> list[tuple[str, Sizes]]:
    """Models' layers with their sizes. Raises as ``sizes`` does."""
    return [(layer, sizes(layer)) for layer in layers]
