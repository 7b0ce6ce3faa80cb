"""Every drawn case is valid and within its profile; together they cover every kind and every boundary."""

import itertools
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings

from moeguard.core.case import PROBES, Case
from moeguard.core.recipe import RECIPES
from moeguard.fuzz.boundaries import EXPERTS, HIDDEN, INTERMEDIATE, TOKENS, TOP_K
from moeguard.fuzz.generation import draw_round
from moeguard.fuzz.profiles import PROFILES, Budget, Profile, cost, profile
from moeguard.fuzz.sizes import Demands, possible
from moeguard.fuzz.strategies import cases
from moeguard.tensors.identity import EDITS
from moeguard.tensors.problem import build_problem
from moeguard.tensors.weights import WeightBank

NAMES = tuple(RECIPES)
#: Rounds within which every boundary value is drawn; a third of the cases are views of a few layers.
ROUNDS = {"smoke": 16, "ci": 39}
QUICK = settings(max_examples=150, database=None, deadline=None, phases=[Phase.generate],
                 suppress_health_check=list(HealthCheck))
#: The smallest budget that a profile may have.
TIGHT = replace(profile("smoke"), name="tight", max_experts=60, budget=Budget(1 << 19, 1 << 17, 1 << 13))


@cache
def drawn(name: str, device: str, rounds: int) -> tuple[Case, ...]:
    return tuple(itertools.chain(*(draw_round(profile(name, device), NAMES, 5, number) for number in range(rounds))))


def check(case: Case, bounds: Profile) -> None:
    shape = case.shape
    assert Case.from_json(case.to_json()) == case
    assert 0 <= shape.num_tokens <= bounds.max_tokens and shape.num_experts <= bounds.max_experts
    assert 8 <= shape.hidden_size <= bounds.max_hidden and 8 <= shape.intermediate_size <= bounds.max_intermediate
    assert shape.top_k <= 10 and bounds.budget.holds(cost(case))
    work = 3 * shape.num_tokens * shape.top_k * shape.hidden_size * shape.intermediate_size
    assert work <= bounds.budget.work
    if case.inputs.kind == "exact":
        assert case.exact and not case.weights.bias
    if case.routing.probe:
        assert shape.num_tokens and case.activation_format == "standard"
    if case.activation_format == "batched":
        assert case.parallel.tp_size == 1
    if case.routing.kind == "duplicate_ids":
        assert shape.top_k >= 2


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_any_draw_is_valid_and_within_budget(name: str, device: str) -> None:
    bounds = profile(name, device)

    @QUICK
    @given(cases(bounds, NAMES))
    def holds(case: Case) -> None:
        check(case, bounds)
    holds()


@pytest.mark.parametrize("recipes", [NAMES, ("int4_fp8",)], ids=["all", "widest_groups"])
@pytest.mark.parametrize("bounds", [TIGHT, profile("smoke")], ids=lambda bounds: bounds.name)
def test_the_tightest_profiles_and_widest_groups(bounds: Profile, recipes: tuple[str, ...]) -> None:
    """Groups of 128 columns, several ranks, groups of experts and a row for each expert add up."""
    @QUICK
    @given(cases(bounds, recipes))
    def holds(case: Case) -> None:
        check(case, bounds)
    holds()


def test_rounds_that_once_left_no_room_for_a_size() -> None:
    for number in (1, 21, 36, 51, 55):
        for case in draw_round(profile("smoke"), ("int4_fp8",), 1, number):
            check(case, profile("smoke"))


@pytest.mark.parametrize("bounds", [TIGHT, *(profile(name) for name in PROFILES)], ids=lambda bounds: bounds.name)
@pytest.mark.parametrize(("top_k", "groups"), [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_one_rank_is_possible_in_every_profile(bounds: Profile, top_k: int, groups: int) -> None:
    for unit in (8, 32, 128):
        assert possible(bounds, Demands(least_top_k=top_k, groups=groups, unit=unit, base_unit=unit))


def test_ranks_that_are_too_large_are_not_possible() -> None:
    assert not possible(profile("smoke"), Demands(tp_size=4, groups=4, unit=128, base_unit=128))
    assert not possible(TIGHT, Demands(tp_size=2, groups=4, unit=128, base_unit=128))
    assert not possible(TIGHT, Demands(batched=True, groups=4, unit=128, base_unit=128))


def test_no_probes_when_not_asked_for() -> None:
    @QUICK
    @given(cases(profile("smoke"), NAMES, probes=False))
    def ordinary(case: Case) -> None:
        assert not case.routing.probe
    ordinary()


def test_simplest_case() -> None:
    shrinking = settings(database=None, phases=[Phase.generate, Phase.shrink])
    simplest = find(cases(profile("smoke"), NAMES), lambda case: True, settings=shrinking)
    assert simplest == Case.from_json(simplest.to_json())
    assert tuple(simplest.shape.model_dump().values()) == (1, 8, 8, 1, 1)
    assert simplest == Case(shape=simplest.shape)


@pytest.mark.parametrize("name", ["smoke", "ci"])
def test_every_boundary_is_drawn(name: str) -> None:
    bounds, found = profile(name), drawn(name, "cpu", ROUNDS[name])
    for table, limit, values in (
            (TOKENS, bounds.max_tokens, {case.shape.num_tokens for case in found}),
            (EXPERTS, bounds.max_experts, {case.shape.num_experts for case in found}),
            (TOP_K, 10, {case.shape.top_k for case in found}),
            (HIDDEN, bounds.max_hidden, {case.shape.hidden_size for case in found}),
            (INTERMEDIATE, bounds.max_intermediate, {case.intermediate_local for case in found})):
        assert {value for value in table if value <= limit} <= values
    assert 0 in {case.shape.num_tokens for case in found}


def test_every_kind_is_drawn() -> None:
    found = drawn("smoke", "cpu", 8)
    shares = {name: Counter(map(str, values)) for name, values in {
        "recipe": [case.recipe for case in found], "activation": [case.activation.kind for case in found],
        "routing": [case.routing.kind for case in found], "method": [case.routing.method for case in found],
        "inputs": [case.inputs.kind for case in found], "scales": [case.scales.kind for case in found],
        "weights": [case.weights for case in found], "layout": [case.layout.kind for case in found],
        "format": [case.activation_format for case in found]}.items()}
    counts = {"recipe": len(NAMES), "activation": 7, "routing": 9, "method": 5, "inputs": 7, "scales": 6, "weights": 4,
              "layout": 3, "format": 2}
    assert {name: len(kinds) for name, kinds in shares.items()} == counts
    assert {case.activation.limit is None for case in found} == {True, False}
    assert {case.parallel.dp_size > 1 for case in found} == {True, False}


def test_shares() -> None:
    found = drawn("smoke", "cpu", 8)

    def share(*hits: bool) -> float:
        return 100 * sum(hits) / len(found)
    assert 7 < share(*(case.routing.kind in PROBES for case in found)) < 14
    assert 1.5 < share(*(case.shape.num_tokens == 0 for case in found)) < 5
    assert 5 < share(*(case.exact for case in found)) < 12
    assert 10 < share(*(case.parallel.ep_size * case.parallel.tp_size > 1 for case in found)) < 20
    assert 2.5 < share(*(case.activation_format == "batched" for case in found)) < 7
    llama = [case.shape.top_k == 1 for case in found if case.routing.method == "llama4_sigmoid"]
    assert sum(llama) > 0.7 * len(llama)


def test_exponents_are_dense() -> None:
    used = {case.scales.exponent for case in drawn("smoke", "cpu", 14) if case.scales.kind in EDITS}
    assert min(used) <= -146 and max(used) >= 124 and len(used) > 180


def test_public_layers_appear_where_they_fit() -> None:
    shapes = {(case.shape.hidden_size, case.shape.intermediate_size, case.shape.num_experts)
              for case in drawn("nightly", "cuda", 4)}
    assert {(2880, 2880, 128), (7168, 2048, 256)} & shapes


def test_half_of_a_smoke_campaign_is_cheap() -> None:
    work = sorted(cost(case).work for case in drawn("smoke", "cpu", 8))
    assert work[len(work) // 2] <= 3_000_000


def test_cases_make_tensors() -> None:
    for case in drawn("smoke", "cpu", 8)[1:1500:40]:
        problem = build_problem(case, WeightBank())
        assert problem.output_shape[-1] == case.shape.hidden_size
