"""The design grid: healthy draws pass the final rule, eleven defects are caught, by the right rule, at the right place."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from spec_grid import BLOCK_SCALED, DEFECTS, SETTINGS, Draw, defect, draws, with_noise

from moeguard.oracle.blocks import sums
from moeguard.oracle.cap import cap
from moeguard.oracle.judge import Judge, Judgement
from moeguard.oracle.limits import Limits

#: Draws of each of the 12 settings in the ordinary suite; the soak has 16.
DRAWS = 2


def place_is_right(name: str, judgement: Judgement) -> bool:
    numbers = judgement.numbers
    if name in ("D2", "D5"):
        return bool(numbers["worst_row"] == 7)
    if name == "D3":
        return bool(numbers["worst_tile"] == [1, 2])
    if name == "D4":
        return bool(numbers["worst_column"] >= 256 - 8)
    if name == "D11":
        return (numbers["max_z_row"], numbers["max_z_column"]) == (100, 100)
    return True


def rank_of_expert(judge: Judge, answer: torch.Tensor, expert: int) -> int:
    energy = sums(judge.normalised(answer.double()).square(), judge.plan)["expert"] / judge.plan.count["expert"]
    order = torch.argsort(energy, descending=True)
    return judge.plan.experts[order].tolist().index(expert)


def run_grid(count: int, geometry: str, seed: int, limits: Limits,
             settings: list[tuple[str, float, str]] = SETTINGS) -> tuple[Counter[tuple[str, str]], int, int]:
    """(rule counts by defect, healthy first-look candidates, healthy alarms after confirmation)."""
    rules: Counter[tuple[str, str]] = Counter()
    candidates = alarms = 0
    for (recipe, _, _), draw in draws(count, geometry, seed, settings):
        judge = Judge(draw.reference, limits)
        healthy = judge.judge(draw.healthy)
        candidates += not healthy.passed
        alarms += not healthy.passed and (not healthy.soft or judge.confirms(draw.healthy, healthy))
        for name in DEFECTS:
            answer = defect(name, draw)
            judgement = judge.judge(answer)
            rules[name, "caught"] += not judgement.passed
            rules[name, "placed"] += place_is_right(name, judgement)
            for rule in judgement.failed:
                rules[name, rule] += 1
            if name in ("D7", "D8", "D9"):
                rules[name, "expert among worst three"] += rank_of_expert(judge, answer, 5) < 3
            if name == "D10" and recipe != "bf16":
                rules[name, "scale alone"] += set(judgement.failed) == {"gain", "global"}
    return rules, candidates, alarms


def assert_grid(rules: Counter[tuple[str, str]], total: int, narrow: int) -> None:
    """narrow: draws of recipes in which a scale error shows in the rules for it alone."""
    for name in DEFECTS:
        assert rules[name, "caught"] == total, name
    assert rules["D5", "row"] == total
    assert rules["D11", "element"] == total
    assert rules["D10", "global"] == total
    assert rules["D10", "scale alone"] == narrow
    for name in ("D2", "D3", "D4", "D5", "D11"):
        assert rules[name, "placed"] == total, name
    assert sum(rules[name, "expert among worst three"] for name in ("D7", "D8", "D9")) >= 3 * total - max(1, total // 24)


def test_the_grid_passes_healthy_draws_and_catches_every_defect() -> None:
    rules, candidates, alarms = run_grid(DRAWS, "G2", 0, Limits())
    assert (candidates, alarms) == (0, 0)
    assert_grid(rules, 12 * DRAWS, 8 * DRAWS)


def test_the_grid_of_block_scaled_recipes() -> None:
    rules, candidates, alarms = run_grid(1, "G2", 0, Limits(), BLOCK_SCALED)
    assert (candidates, alarms) == (0, 0)
    assert_grid(rules, 8, 8)


@pytest.mark.soak
@pytest.mark.parametrize(("count", "geometry", "seed"), [(16, "G2", 1), (3, "G1", 0), (3, "G3", 0)])
def test_many_draws_of_block_scaled_recipes(count: int, geometry: str, seed: int) -> None:
    rules, candidates, alarms = run_grid(count, geometry, seed, Limits(), BLOCK_SCALED)
    assert alarms == 0
    assert candidates <= 2
    for name in DEFECTS:
        assert rules[name, "caught"] == 8 * count, name


@pytest.mark.soak
@pytest.mark.parametrize("block", [1.25, 1.5, 2.0])
def test_sixteen_draws_at_several_block_floors(block: float) -> None:
    rules, candidates, alarms = run_grid(16, "G2", 0, Limits(block=block))
    assert alarms == 0
    assert candidates <= 2
    for name in DEFECTS:
        assert rules[name, "caught"] >= (192 if block < 2 else 190), name


@pytest.mark.soak
@pytest.mark.parametrize("geometry", ["G1", "G3"])
def test_other_geometries(geometry: str) -> None:
    rules, candidates, alarms = run_grid(3, geometry, 0, Limits())
    assert alarms == 0
    assert candidates <= 1
    for name in DEFECTS:
        assert rules[name, "caught"] == 36, name


@pytest.mark.soak
def test_another_seed_has_few_candidates_and_no_alarm() -> None:
    _, candidates, alarms = run_grid(16, "G2", 1, Limits())
    assert candidates <= 3
    assert alarms == 0


def first_draw(recipe: str, noise: float, kind: str = "normal", seed: int = 0) -> Draw:
    return next(draw for _, draw in draws(1, "G2", seed, [(recipe, noise, kind)]))


@pytest.mark.parametrize("name", ["D5", "D10"])
def test_a_soft_defect_is_confirmed_by_more_twins_and_by_a_second_seed(name: str) -> None:
    for seed in (3, 4):
        draw = first_draw("fp8", 3e-6, seed=seed)
        judge = Judge(draw.reference)
        answer = defect(name, draw)
        judgement = judge.judge(answer)
        assert not judgement.passed
        assert judge.confirms(answer, judgement) or not judgement.soft


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s[0]}-{s[1]:.0e}-{s[2]}")
def test_cap_holds_for_healthy_draws_and_proves_a_tenfold_answer(setting: tuple[str, float, str]) -> None:
    recipe, noise, kind = setting
    draw = first_draw(recipe, noise, kind)
    if noise > 1e-5:
        from dataclasses import replace

        draw = replace(draw, reference=with_noise(draw.problem, replace(draw.reference.numerics, accumulate="fp8_hopper"), noise))
    bound = cap(draw.reference)
    assert not isinstance(bound, str)
    wanted = draw.reference.y
    if noise > 1e-5:  # the simulated noise is multiplicative and Gaussian, six standard deviations must stay inside
        assert bool(((draw.healthy.double() - wanted).abs() <= bound).all())
    judgement = Judge(draw.reference).judge((10 * wanted).to(torch.bfloat16))
    assert judgement.numbers["label"] == "proven"


@pytest.mark.parametrize("name", ["D8", "D10", "D11"])
def test_a_larger_defect_is_never_missed_where_a_smaller_one_is_caught(name: str) -> None:
    draw = first_draw("fp8", 3e-6)
    judge = Judge(draw.reference)
    sizes = [0.5, 1, 2, 4, 8, 16, 64] if name == "D11" else [1 + 0.001 * 2.0**n for n in range(12)]
    caught = [not judge.judge(defect(name, draw, size)).passed for size in sizes]
    assert caught == sorted(caught)
    assert caught[-1]
