"""Feedback: what a round asks of the next follows from its events alone, in whatever order they came."""

from __future__ import annotations

import pytest

from moeguard.core.case import Case
from moeguard.core.events import Event, Executed, Found, ScenarioFinished, ScenarioStarted
from moeguard.core.finding import Finding
from moeguard.engine.feedback import BARREN, SUSPEND_AFTER, Feedback
from moeguard.engine.options import Options

OPTIONS = Options(backends=("a", "b"), recipes=("bf16",), profile="smoke")
CASE = Case.model_validate({"shape": dict(num_tokens=3, hidden_size=16, intermediate_size=16, num_experts=4, top_k=2)})


def scenario(number: int, tokens: int, tactics: tuple[str | None, ...] = (None,), *, status: str = "clean",
             kinds: tuple[str, ...] = ()) -> list[Event]:
    case = CASE.with_(shape={"num_tokens": tokens}, seed=number)
    found = [Finding(kind=kind, check="values", backend=OPTIONS.backends[number % 2], case=case, sentence=kind)  # type: ignore[arg-type]
             for kind in kinds]
    return [
        ScenarioStarted(scenario=number, draw=number // 2, round=0, backend=OPTIONS.backends[number % 2], recipe="bf16",
                        case=case.model_dump(mode="json", by_alias=True), fingerprint=case.fingerprint),
        *[Executed(scenario=number, number=1, check="tactics", role="base", tactic=tactic, outcome="ok", seconds=0.1)
          for tactic in tactics],
        *[Found(scenario=number, finding=one.to_data()) for one in found],
        ScenarioFinished(scenario=number, status=status, executions=len(tactics), seconds=1.0)]


def folded(*rounds: list[list[Event]]) -> Feedback:
    feedback = Feedback(OPTIONS)
    for events in rounds:
        feedback.close({event[0].scenario: event for event in events})  # type: ignore[attr-defined]
    return feedback


def test_buckets_are_sorted_by_the_tactic_that_has_least_there() -> None:
    events = [scenario(0, 1, (None, "x")), scenario(2, 1, (None,)), scenario(4, 5, (None,)), scenario(1, 9, (None,))]
    scarce = folded(events).focus().scarce["bf16"]
    assert scarce == folded(events[::-1]).focus().scarce["bf16"]
    assert scarce[-1] == 1 or scarce[-1] == 256  # T = 1 is where x of a was seen; b never ran there
    assert set(scarce) == {0, 1, 2, 4, 8, 16, 32, 64, 128, 256}
    more = folded(events, [scenario(11, 1, (None,)), scenario(10, 1, ("x",))]).focus().scarce["bf16"]
    assert more[-1] == 1 and more[0] == 0


def test_what_a_tuning_chose_is_no_evidence_that_steers() -> None:
    by_time = [Executed(scenario=0, number=2, check="tuned", role="tuned", tactic="fast", outcome="ok", seconds=0.1)]
    base = scenario(0, 1)
    assert folded([base]).focus() == folded([[*base[:-1], *by_time, base[-1]]]).focus()


def test_a_stratum_that_gives_nothing_is_given_up() -> None:
    events = [scenario(0, 1), *[scenario(2 * number + 2, 0, ()) for number in range(BARREN)]]
    assert 0 not in folded(events).focus().scarce["bf16"]
    assert 0 in folded(events[:-1]).focus().scarce["bf16"]


def test_rounds_look_near_the_first_case_of_each_finding_but_for_crashes() -> None:
    feedback = folded([scenario(5, 3, kinds=("mismatch", "crash")), scenario(2, 3, kinds=("mismatch",))],
                      [scenario(7, 3, kinds=("mismatch",)), scenario(9, 3, kinds=("nondeterministic",))])
    assert [case.seed for case in feedback.focus().near] == [2, 5, 9]
    assert [number for number, _ in feedback.to_shrink()] == [2, 5, 5, 9]
    assert feedback.to_shrink() == []


@pytest.mark.parametrize("order", [1, -1])
def test_a_backend_is_suspended_behind_its_fifth_loss(order: int) -> None:
    feedback = Feedback(OPTIONS)
    losses = [0, 2, 8, 10, 12, 20, 30]
    ends = {number: ScenarioFinished(scenario=number, status="hang" if number in losses else "clean", executions=0, seconds=1.0)
            for number in range(40)[::order]}
    assert feedback.may_launch("a", 12, ends) and not feedback.may_launch("a", 14, ends)
    assert feedback.may_launch("b", 39, ends)
    assert feedback.suspend(ends) == ["a"] and feedback.suspended == {"a": losses[SUSPEND_AFTER - 1]}
    assert feedback.may_launch("a", 12, {}) and not feedback.may_launch("a", 14, {})
    assert feedback.suspend(ends) == []
