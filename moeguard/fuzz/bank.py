"""The weight bank of a few rounds: layers that several cases share, so that weights are made, and prepared, once for all of them.

A view of an entry draws tokens, routing, inputs and the rest of the seed anew. Most views keep all else, which is what prepared
weights may depend on; the others are edits: an EP shard, other scales on the same codes, another layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from moeguard.core.case import PROBES, REPEATING, Case
from moeguard.fuzz.boundaries import EP_SIZES, TOKENS, within
from moeguard.fuzz.fields import EMPTY, INPUTS, LAYOUTS, METHODS, SEEDS, draw_routing, draw_scales, shares
from moeguard.fuzz.profiles import Profile
from moeguard.fuzz.sizes import MODES, Mode, integer, most_tokens, pick
from moeguard.tensors.identity import EDITS, drawn_key, same_weights

#: Entries of a bank over all recipes, at least one of each; rounds that share them; cases of one that follow each other.
ENTRIES, ROUNDS, RUN = 8, 4, 3
_EDITED = shares(nothing=6, shard=1, scales=2, layout=1)


def entries(recipes: int) -> int:
    """Entries of each of ``recipes`` recipes."""
    return max(1, ENTRIES // recipes)


@st.composite
def banked(draw: DrawFn, fresh: SearchStrategy[Case], profile: Profile, bank: tuple[Case, ...], probes: bool) -> Case:
    """Two cases in three from ``fresh``, the others views of an entry of ``bank``; the simplest is the simplest of ``fresh``."""
    number = draw(integer(0, 3 * len(bank) - 1)) - 2 * len(bank)
    return draw(fresh) if number < 0 else _view(draw, profile, bank[number], probes)


def together(cases: Sequence[Case]) -> list[Case]:
    """The same cases with up to RUN of one entry in a row: a worker that gets them finds the weights that it made, and the first
    few of a round are still many layers.
    """
    waiting: dict[tuple[str, int], list[Case]] = {}
    for case in cases:
        waiting.setdefault(layer(case), []).append(case)
    ordered: list[Case] = []
    for case in cases:
        mine = waiting[layer(case)]
        if case in mine:
            ordered += mine[:RUN]
            del mine[:RUN]
    return ordered


def layer(case: Case) -> tuple[str, int]:
    """Identity of the weights that cases share, up to their shards and the factors of their scales."""
    return drawn_key(case), case.seed % same_weights(case)


def _view(draw: DrawFn, profile: Profile, entry: Case, probes: bool) -> Case:
    mode: Mode = draw(pick(MODES))
    changes: dict[str, Any] = _edit(draw, entry, draw(pick(_EDITED)))
    case = entry.with_(**changes)
    routing = draw_routing(draw, probes and case.activation_format == "standard")
    if routing in REPEATING and case.shape.top_k < 2:
        routing = "invalid_ids"
    grouped = case.shape.num_experts % 4 == 0 and 2 * case.shape.top_k <= case.shape.num_experts
    methods = tuple(one for one in METHODS if grouped or one != "grouped_topk")
    most = most_tokens(profile, mode.fraction, case)
    tokens = draw(integer(1, most)) if mode.grain else int(draw(pick(within(TOKENS, 1, most))))
    if routing not in PROBES and draw(pick(EMPTY)):
        tokens = 0
    inputs = "exact" if case.inputs.kind == "exact" else draw(pick(tuple(one for one in INPUTS if one != "exact")))
    apart = same_weights(case)
    return case.with_(shape={"num_tokens": tokens}, routing={"kind": routing, "method": draw(pick(methods))},
                      inputs={"kind": inputs}, seed=entry.seed % apart + apart * draw(integer(0, (SEEDS[1] - 1) // apart - 1)))


def _edit(draw: DrawFn, entry: Case, what: str) -> dict[str, Any]:
    """Changes of what is no token, routing or input; none where ``what`` does not fit the entry."""
    experts = entry.shape.num_experts
    sizes = tuple(size for size in EP_SIZES if experts % size == 0 and size >= entry.parallel.ep_size)  # no larger a rank
    if what == "shard" and sizes:
        size: int = draw(pick(sizes))
        return {"parallel": {"ep_size": size, "ep_rank": draw(integer(0, size - 1))}}
    if what == "scales" and entry.inputs.kind != "exact" and entry.scales.kind in ("normal", *EDITS):
        return {"scales": draw_scales(draw, entry.recipe, entry.activation.kind, ("normal", *EDITS))}
    if what == "layout" and entry.activation_format == "standard":
        return {"layout": {"kind": draw(pick(LAYOUTS))}}
    return {}
