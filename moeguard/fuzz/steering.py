"""Steering: a fixed share of a round goes to what earlier rounds have left thin, to what lies near their findings, and to
what lies near right answers that came near a limit.

The rest of the round stays as it was drawn, so that a campaign never narrows to what it knows. The result depends on the
arguments alone.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from moeguard.core.case import PROBES, Case
from moeguard.core.recipe import RECIPES
from moeguard.fuzz.generation import distinct
from moeguard.fuzz.profiles import Profile, cost

#: Of every EIGHTH cases one gets a token count with little evidence, two become neighbours of targets, and one that of a finding.
EIGHTH, SCARCE_SLOT, TARGET_SLOTS, NEAR_SLOT = 8, 3, (1, 5), 7
#: The scarcest token buckets of a recipe, between which its slots rotate.
SCARCEST = 4

Changes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Focus:
    """What earlier rounds ask for. scarce: token buckets by recipe, least evidence first. near: cases of findings.

    targets: cases with large but legal errors, the largest first.
    """

    scarce: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    near: tuple[Case, ...] = ()
    targets: tuple[Case, ...] = ()


def steer(cases: Sequence[Case], focus: Focus, profile: Profile, seed: int, round_number: int) -> tuple[Case, ...]:
    """A drawn round with its reserved places filled by what ``focus`` asks for, as far as ``profile`` admits it."""
    digest = hashlib.sha256(f"moeguard|steer|{profile.name}|{seed}|{round_number}".encode()).digest()
    source = random.Random(int.from_bytes(digest[:16], "big"))
    steered = list(cases)
    turns, aimed = dict.fromkeys(focus.scarce, 0), 0
    for place, case in enumerate(cases):
        buckets = focus.scarce.get(case.recipe, ())[:SCARCEST]
        if place % EIGHTH == SCARCE_SLOT and buckets:
            steered[place] = _with_tokens(case, buckets[turns[case.recipe] % len(buckets)], profile, source)
            turns[case.recipe] += 1
        elif place % EIGHTH in TARGET_SLOTS and focus.targets:
            steered[place] = neighbour(focus.targets[aimed % len(focus.targets)], cases, profile, source)
            aimed += 1
        elif place % EIGHTH == NEAR_SLOT and focus.near:
            steered[place] = neighbour(focus.near[place // EIGHTH % len(focus.near)], cases, profile, source)
    return distinct(steered)


def neighbour(case: Case, donors: Sequence[Case], profile: Profile, source: random.Random) -> Case:
    """``case`` with one field of a donor of its recipe, within ``profile``; with another seed when none fits."""
    alike = [donor for donor in donors if donor.recipe == case.recipe and donor.parallel.tp_size == case.parallel.tp_size]
    if alike:
        changes = _changes(case, source.choice(alike))
        source.shuffle(changes)
        for change in changes:
            changed = _changed(case, change)
            if changed is not None and changed != case and _fits(changed, profile):
                return changed
    return case.with_(seed=source.randrange(2**32))


def _changes(case: Case, donor: Case) -> list[Changes]:
    """Single fields that ``donor`` can give, but for those that only go together with others."""
    mine, its = case.routing, donor.routing
    shape = donor.shape
    changes: list[Changes] = [{"seed": donor.seed}]
    changes += [{"shape": {name: getattr(shape, name)}} for name in ("hidden_size", "intermediate_size")]
    if shape.num_tokens:
        changes.append({"shape": {"num_tokens": shape.num_tokens}})
    if mine.kind not in PROBES and mine.method != "grouped_topk":
        changes += [{"shape": {name: getattr(shape, name)}} for name in ("num_experts", "top_k")]
    if case.activation_format == "standard":
        changes.append({"layout": donor.layout.model_dump()})
        if mine.kind not in PROBES and its.kind not in PROBES:
            changes.append({"routing": {"kind": its.kind}})
    if "exact" not in (case.inputs.kind, donor.inputs.kind):
        changes += [{name: getattr(donor, name).model_dump()} for name in ("inputs", "scales", "weights")]
    return changes


def _with_tokens(case: Case, bucket: int, profile: Profile, source: random.Random) -> Case:
    """``case`` with T of ``bucket``, in a smaller layer where the budget asks for it; ``case`` itself when nothing fits."""
    if bucket == 0:
        tokens = 0
    else:
        last = min(2 * bucket - 1, profile.max_tokens)
        tokens = source.choice((bucket, last, source.randint(bucket, last)))
    if not tokens and case.routing.kind in PROBES:
        return case
    group = RECIPES[case.recipe].group
    least = max(8, group)
    for factor in (1, 2, 4, 8, 16, 32):
        sizes = {name: max(least, size // factor // least * least) if factor > 1 else size for name, size in (
            ("hidden_size", case.shape.hidden_size), ("intermediate_size", case.intermediate_local))}
        sizes["intermediate_size"] *= case.parallel.tp_size
        changed = _changed(case, {"shape": {"num_tokens": tokens, **sizes}})
        if changed is not None and _fits(changed, profile):
            return changed
    return case


def _changed(case: Case, changes: Changes) -> Case | None:
    try:
        return case.with_(**changes)
    except ValidationError:
        return None


def _fits(case: Case, profile: Profile) -> bool:
    shape = case.shape
    return (shape.num_tokens <= profile.max_tokens and shape.num_experts <= profile.max_experts
            and shape.hidden_size <= profile.max_hidden and shape.intermediate_size <= profile.max_intermediate
            and profile.budget.holds(cost(case)))
