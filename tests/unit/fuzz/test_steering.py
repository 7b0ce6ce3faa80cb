"""Steering: reserved places of a round follow the evidence; the rest stays as it was drawn."""

from __future__ import annotations

from collections import Counter

import pytest

from moeguard.core.case import PROBES, Case
from moeguard.core.recipe import RECIPES
from moeguard.core.tokens import token_bucket
from moeguard.fuzz.generation import draw_round
from moeguard.fuzz.profiles import cost, profile
from moeguard.fuzz.steering import EIGHTH, NEAR_SLOT, SCARCE_SLOT, Focus, steer

NAMES = tuple(RECIPES)
SMOKE = profile("smoke")


def fields(case: Case) -> dict[str, object]:
    """Flat: each size on its own, every other part as a whole."""
    data = case.model_dump()
    return {**data.pop("shape"), **data}


def test_without_a_focus_a_round_is_as_drawn() -> None:
    cases = draw_round(SMOKE, NAMES, 3, 1)
    assert steer(cases, Focus(), SMOKE, 3, 1) == cases


@pytest.mark.parametrize("name", ["smoke", "ci"])
def test_a_share_of_a_round_gets_the_scarce_buckets(name: str) -> None:
    bounds = profile(name)
    cases = draw_round(bounds, NAMES, 3, 1)
    wanted = (bounds.max_tokens - 1, 0, 32)
    focus = Focus({recipe: tuple(token_bucket(count) for count in wanted) for recipe in NAMES})
    steered = steer(cases, focus, bounds, 3, 1)
    assert steered == steer(cases, focus, bounds, 3, 1) != steer(cases, focus, bounds, 4, 1)
    changed = [place for place, pair in enumerate(zip(cases, steered, strict=True)) if pair[0] != pair[1]]
    assert {place % EIGHTH for place in changed} == {SCARCE_SLOT}
    got = Counter(token_bucket(steered[place].shape.num_tokens) for place in range(SCARCE_SLOT, len(cases), EIGHTH))
    assert sum(got[token_bucket(count)] for count in wanted) >= 14  # of 16: a probe has no case without tokens
    for case in steered:
        assert bounds.budget.holds(cost(case)) and case.shape.num_tokens <= bounds.max_tokens
        assert case.shape.num_tokens or case.routing.kind not in PROBES
    assert len(set(steered)) == len(cases)


def test_a_share_of_a_round_looks_near_findings() -> None:
    cases = draw_round(SMOKE, NAMES, 3, 2)
    near = draw_round(SMOKE, NAMES, 5, 1)[:9]
    steered = steer(cases, Focus(near=near), SMOKE, 3, 2)
    for place, (drawn, case) in enumerate(zip(cases, steered, strict=True)):
        if place % EIGHTH == NEAR_SLOT:
            origin = near[place // EIGHTH % len(near)]
            assert case.recipe == origin.recipe and case != origin
            assert sum(value != fields(case)[name] for name, value in fields(origin).items()) == 1
            assert SMOKE.budget.holds(cost(case))
        else:
            assert case == drawn
