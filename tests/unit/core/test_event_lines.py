"""Events: one JSON line each, and lines that are none."""

from __future__ import annotations

import json

import pytest

from moeguard.core.events import (
    EVENTS,
    Event,
    Executed,
    Found,
    Noted,
    RunFinished,
    ScenarioFinished,
    ScenarioStarted,
    Swept,
    Usage,
    parse,
)

EXAMPLES = [
    ScenarioStarted(scenario=1, draw=0, round=0, backend="mine", recipe="bf16", case={"seed": 1}, fingerprint="0123"),
    Executed(scenario=1, number=1, check="values", role="base", tactic=None, outcome="ok", seconds=0.5, numbers={"max_z": 1.5}),
    Found(scenario=1, finding={"kind": "crash", "sentence": "Zeile\nzwei \u00fc \U0001f600"}, shrunk=True),
    Noted(scenario=-1, backend="mine", recipe="", what="backend", reason="no GPU"),
    Swept(scenario=1, tactic="64x128", outcome="ok", witnessed=True, seconds=0.25, runs=5),
    ScenarioFinished(scenario=1, status="clean", executions=1, seconds=0.5),
    Usage(worker="a1", scenarios=3, executions=9, seconds=10.0, cpu_seconds=8.5, resident=1 << 30, bank={"weights_hits": 2}),
    RunFinished(seconds=0.5, interrupted=True),
]


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.name)
def test_round_trip(event: Event) -> None:
    line = event.to_json()
    assert "\n" not in line
    assert json.loads(line)["event"] == event.name
    assert parse(line) == event


def test_every_event_has_an_example() -> None:
    assert {event.name for event in EXAMPLES} == set(EVENTS)


def test_defaults_may_be_left_out() -> None:
    assert parse('{"event":"run_finished","seconds":1.0}') == RunFinished(seconds=1.0)


@pytest.mark.parametrize("line", [
    "", "{", "[]", "3", "{}", '{"event":"nope"}', '{"event":"run_finished"}',
    '{"event":"run_finished","seconds":1.0,"colour":"red"}'])
def test_lines_that_are_no_events(line: str) -> None:
    with pytest.raises(ValueError):
        parse(line)
