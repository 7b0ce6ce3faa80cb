"""The bank of a round: layers that several cases share, and views of them that weights, and mostly preparations, serve."""

from collections import Counter

import pytest

from moeguard.core.case import Case
from moeguard.core.recipe import RECIPES
from moeguard.fuzz.bank import ROUNDS, RUN, entries, layer, together
from moeguard.fuzz.generation import draw_bank, draw_round
from moeguard.fuzz.profiles import cost, profile
from moeguard.tensors.identity import EDITS, drawn_key, same_weights, weight_key

SMOKE = profile("smoke")
NAMES = tuple(RECIPES)
SHAPE = {"num_tokens": 2, "hidden_size": 8, "intermediate_size": 8, "num_experts": 2, "top_k": 1}
FREE = {"routing": True, "inputs": True, "seed": True, "shape": {"num_tokens"}}


def prepared(case: Case) -> str:
    """All that a preparation may depend on."""
    return f"{case.model_dump(exclude=FREE)}{weight_key(case)}"


def entry_of(case: Case) -> tuple[object, ...]:
    """What all views of an entry share, and hardly another case."""
    return *layer(case), case.activation, case.shape.top_k


@pytest.mark.parametrize("recipes", [NAMES, ("bf16",), ("bf16", "fp8_block")], ids=len)
def test_every_recipe_has_entries_which_some_rounds_share(recipes: tuple[str, ...]) -> None:
    bank = draw_bank(SMOKE, recipes, 3, 0)
    assert Counter(case.recipe for case in bank) == dict.fromkeys(recipes, entries(len(recipes)))
    assert len(bank) >= 8 and not any(case.routing.probe for case in bank)
    assert all(draw_bank(SMOKE, recipes, 3, number) == bank for number in range(ROUNDS))
    assert draw_bank(SMOKE, recipes, 3, ROUNDS) != bank != draw_bank(SMOKE, recipes, 4, 0)


@pytest.mark.parametrize("recipes", [NAMES, ("fp8_block",)], ids=len)
@pytest.mark.parametrize(("name", "device"), [("smoke", "cpu"), ("ci", "cpu"), ("ci", "cuda")])
def test_a_third_of_a_round_are_views_and_most_need_no_preparation(recipes: tuple[str, ...], name: str, device: str) -> None:
    bounds = profile(name, device)
    known = {entry_of(case): case for case in draw_bank(bounds, recipes, 5, 1)}
    drawn = [case for number in range(ROUNDS) for case in draw_round(bounds, recipes, 5, number)]
    views = [case for case in drawn if entry_of(case) in known]
    assert 0.25 < len(views) / len(drawn) < 0.42
    alike = [prepared(case) == prepared(known[entry_of(case)]) for case in views]
    assert 0.5 < sum(alike) / len(alike) < 0.9
    assert all(bounds.budget.holds(cost(case)) for case in views)
    assert {case.exact == known[entry_of(case)].exact for case in views} == {True}
    assert len({case.shape.num_tokens for case in views}) > 20 and len({case.routing.kind for case in views}) >= 7


def test_views_edit_shards_scales_and_layouts() -> None:
    known = {entry_of(case): case for case in draw_bank(SMOKE, NAMES, 6, 0)}
    edits: Counter[str] = Counter()
    for number in range(ROUNDS):
        for case in draw_round(SMOKE, NAMES, 6, number):
            entry = known.get(entry_of(case))
            if entry is None:
                continue
            edits["shard"] += case.parallel != entry.parallel
            edits["layout"] += case.layout != entry.layout
            if case.scales != entry.scales:
                edits["scales"] += 1
                assert {case.scales.kind, entry.scales.kind} <= {"normal", *EDITS} and drawn_key(case) == drawn_key(entry)
    assert min(edits[name] for name in ("shard", "layout", "scales")) >= 3


def test_cases_of_a_layer_come_three_in_a_row() -> None:
    for number in range(3):
        drawn = draw_round(SMOKE, NAMES, 7, number)
        layers = [layer(case) for case in drawn]
        begins = [one for place, one in enumerate(layers) if place == 0 or layers[place - 1] != one]
        assert len(layers) > len(begins) <= sum(-(-count // RUN) for count in Counter(layers).values())
    one, other = Case.model_validate({"shape": SHAPE, "seed": 3}), Case.model_validate({"shape": SHAPE, "seed": 4})
    mine = [one.with_(seed=one.seed + number * same_weights(one)) for number in range(5)]
    assert together([mine[0], other, *mine[1:]]) == [*mine[:3], other, *mine[3:]]
