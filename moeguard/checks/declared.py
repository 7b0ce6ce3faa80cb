"""Which declared trait decides about a case."""

from __future__ import annotations

from moeguard.backends.protocol import Traits
from moeguard.core.case import REPEATING, Case

#: Trait that speaks of each routing probe.
_TRAIT = dict.fromkeys(REPEATING, "duplicate_ids") | {"invalid_ids": "invalid_ids"}


def trait_of(case: Case) -> str | None:
    """``zero_tokens``, ``duplicate_ids`` or ``invalid_ids``; None for an ordinary case."""
    if case.shape.num_tokens == 0:
        return "zero_tokens"
    if case.activation_format == "batched":
        return None
    if case.shape.top_k == 1 and case.routing.kind in REPEATING:
        return None
    return _TRAIT.get(case.routing.kind)


def unsupported(traits: Traits, case: Case) -> str | None:
    """The trait by which a backend declares ``case`` unsupported: a layout first, then what ``trait_of`` names; else None."""
    if case.layout.kind != "contiguous" and case.shape.num_tokens and traits.noncontiguous == "unsupported":
        return "noncontiguous"
    name = trait_of(case)
    return name if name is not None and getattr(traits, name) == "unsupported" else None
