"""Targets: large but legal errors lead a campaign to where they become findings, the same way every time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from moeguard.checks.subject import Resources
from moeguard.core.case import Case
from moeguard.core.events import Event, Executed, Noted, ScenarioFinished, ScenarioStarted
from moeguard.engine.feedback import STALE, TARGETS, Feedback
from moeguard.engine.margins import margins
from moeguard.engine.options import Options
from moeguard.engine.scenario import run_scenario
from moeguard.fuzz.generation import draw_round
from moeguard.fuzz.profiles import profile
from moeguard.fuzz.steering import TARGET_SLOTS, Focus, steer
from moeguard.mutants.base import Call, Pipeline

OPTIONS = Options(backends=("growing",), recipes=("bf16",), profile="smoke")
CASE = Case.model_validate({"shape": dict(num_tokens=3, hidden_size=16, intermediate_size=16, num_experts=4, top_k=2)})
SMOKE = profile("smoke")


def started(number: int, case: Case) -> ScenarioStarted:
    return ScenarioStarted(scenario=number, draw=number, round=0, backend="growing", recipe=case.recipe,
                           fingerprint=case.fingerprint, case=case.model_dump(mode="json", by_alias=True))


def scenario(number: int, share: float, rule: str = "max_z", *notes: Event, check: str = "values",
             outcome: str = "ok") -> list[Event]:
    limit = {"max_z": "tau", "row_rms": "row_limit"}[rule]
    return [started(number, CASE.with_(seed=number)), *notes,
            Executed(scenario=number, number=1, check=check, role="base", tactic=None, outcome=outcome, seconds=0.1,
                     numbers={rule: share * 6.0, limit: 6.0}),
            ScenarioFinished(scenario=number, status="clean", executions=1, seconds=1.0)]


def targets(*rounds: list[list[Event]]) -> list[int]:
    """Seeds of the targets after rounds of scenarios."""
    feedback = Feedback(OPTIONS)
    for events in rounds:
        feedback.close({event[0].scenario: event for event in events})  # type: ignore[attr-defined]
    return [case.seed for case in feedback.focus().targets]


def test_margins_are_shares_of_limits_and_an_answer_beyond_one_has_none() -> None:
    numbers = {"max_z": 3.5, "tau": 7.0, "rho": 1.0, "row_rms": 0.75, "row_limit": 1.5, "tile_rms": 0.3,
               "tile_limit": float("inf"), "gain": -0.001, "gain_limit": 0.004, "worst_row": 4}
    assert margins(numbers) == {"element": 0.5, "global": 0.5, "row": 0.5, "gain": 0.25}
    assert margins(numbers | {"row_rms": 1.6}) == {}  # excused, so not legal by itself
    assert margins({"elements": 9, "exact": True}) == margins({"rho": None}) == {}


def test_the_case_nearest_to_each_limit_is_the_target() -> None:
    drawn = [scenario(0, 0.5), scenario(1, 0.7), scenario(2, 0.6, "row_rms"), scenario(3, 0.7), scenario(4, 0.1, "row_rms")]
    assert targets(drawn) == targets(drawn[::-1]) == [1, 2]
    assert targets(drawn, [scenario(5, 0.65, "row_rms")]) == [5, 1]  # what has moved last comes first


def test_only_right_answers_to_the_case_itself_that_are_no_matter_of_chance_count() -> None:
    racy = Noted(scenario=1, backend="growing", recipe="bf16", what="determinism", reason="may give different bits")
    assert targets([scenario(0, 0.5), scenario(1, 0.9, "max_z", racy), scenario(2, 0.9, check="tuned"),
                    scenario(3, 0.9, check="metamorphic"), scenario(4, 0.9, outcome="finding"), scenario(5, 1.1)]) == [0]


def test_a_target_that_nothing_surpasses_is_left_after_some_rounds() -> None:
    idle: list[list[list[Event]]] = [[] for _ in range(STALE)]
    assert targets([scenario(0, 0.5)], *idle[1:]) == [0]
    assert targets([scenario(0, 0.5)], *idle) == []
    assert targets([scenario(0, 0.5)], *idle, [scenario(1, 0.4), scenario(2, 0.6)]) == [2]


def test_a_share_of_a_round_goes_to_neighbours_of_targets() -> None:
    cases, near = draw_round(SMOKE, ("bf16",), 3, 2), draw_round(SMOKE, ("bf16",), 5, 1)[:TARGETS]
    steered = steer(cases, Focus(targets=near), SMOKE, 3, 2)
    changed = [place for place, pair in enumerate(zip(cases, steered, strict=True)) if pair[0] != pair[1]]
    assert {place % 8 for place in changed} == set(TARGET_SLOTS) and len(changed) == len(cases) // 4


class Growing(Pipeline):
    """Each of six properties of a case adds to the error of one element; all together are beyond the limit."""

    name = "growing"

    def write(self, call: Call, value: Tensor) -> None:
        case, shape = call.case, call.case.shape
        if case.inputs.kind != "exact":
            held = (case.layout.kind == "nan_padding", case.weights.bias, case.routing.kind == "skewed", shape.top_k >= 4,
                    shape.num_experts >= 16, value.shape[0] >= 64)
            row = value.abs().amax(1).argmax()
            place = value[row].abs().argmax()
            value[row, place] *= 1 + 0.0025 * sum(held)
        super().write(call, value)


def reached(seed: int, most: int, *, targeted: bool) -> int:
    """Cases until the first finding, or ``most``."""
    feedback, resources, backend, number = Feedback(replace(OPTIONS, seed=seed)), Resources(), Growing(), 0
    for place in range(most):
        focus = feedback.focus() if targeted else replace(feedback.focus(), targets=())
        events: dict[int, list[Event]] = {}
        for case in steer(draw_round(SMOKE, ("bf16",), seed, place), focus, SMOKE, seed, place):
            if number == most:
                return most
            events[number] = [started(number, case)]
            done = run_scenario(backend, case, resources, scenario=number, emit=events[number].append, only=frozenset({"values"}))
            number += 1
            if done.findings:
                return number
        feedback.close(events)
    return most


@pytest.mark.soak
@pytest.mark.parametrize("seed", [3, 4])
def test_targets_lead_to_an_error_that_grows_in_fewer_cases(seed: int) -> None:
    torch.set_num_threads(1)
    first = reached(seed, 1000, targeted=True)
    assert first < 1000
    assert reached(seed, first + 50, targeted=False) == first + 50
