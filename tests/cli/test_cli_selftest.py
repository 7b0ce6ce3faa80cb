"""``moeguard selftest``: its result and exit codes. The measurement itself is cut down to a few mutants here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
from commandline import ROOT, Called

from moeguard.core.events import Event, Executed, Relaunched, ScenarioFinished
from moeguard.engine import selftest as engine
from moeguard.engine.worker import Job
from moeguard.mutants.catalogue import CORPUS, MUTANTS
from moeguard.mutants.healthy import HEALTHY_COMPUTATIONS

Cli = Callable[..., Called]
FIELDS = {"mutants", "caught", "survivors", "healthy_executions", "false_alarms", "by_kind", "seconds"}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MUTANTS", MUTANTS[:3])
    monkeypatch.setattr(engine, "HEALTHY", HEALTHY_COMPUTATIONS[:1])
    monkeypatch.setattr(engine, "CORPUS", CORPUS[:2])
    monkeypatch.setitem(engine.HEALTHY_EXECUTIONS, "smoke", 10)


def test_all_caught_and_no_false_alarm(short: None, cli: Cli) -> None:
    done = cli("selftest", "--device", "cpu", "--json")
    assert (done.code, done.err) == (0, "")
    assert set(done.data) >= FIELDS
    assert (done.data["mutants"], done.data["caught"], done.data["survivors"], done.data["false_alarms"]) == (3, 3, [], 0)
    assert done.data["healthy_executions"] >= 10
    assert sum(done.data["by_kind"].values()) == 3


def test_a_survivor_exits_1(short: None, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    class Expected(MUTANTS[0]):  # type: ignore[misc, valid-type]
        expected = frozenset({"perf_regression"})

    monkeypatch.setattr(engine, "MUTANTS", (Expected,))
    done = cli("selftest", "--device", "cpu")
    assert done.code == 1
    assert "mutants caught: 0 of 1" in done.out
    assert f"survived: {Expected.name}" in done.out


def test_a_false_alarm_exits_1(short: None, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setattr(engine, "MUTANTS", MUTANTS[:1])
    monkeypatch.setattr(engine, "HEALTHY", MUTANTS[:1])
    done = cli("selftest", "--device", "cpu", "--json")
    assert done.code == 1
    assert done.data["caught"] == 1
    assert done.data["false_alarms"] > 0
    assert done.data["alarms"][0]["backend"] == MUTANTS[0].name


def test_what_a_relaunch_voids_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed:
        def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Event]]:
            executed = Executed(scenario=0, number=1, check="values", role="first", tactic=None, outcome="ok", seconds=0.0,
                                numbers={})
            for job in jobs:
                for event in (executed, Relaunched(scenario=0), executed,
                              ScenarioFinished(scenario=0, status="clean", executions=1, seconds=0.0)):
                    yield job, event

    result = engine.Result()
    jobs = [Job(0, "loop", case) for case in CORPUS[:3]]
    monkeypatch.setattr(engine, "_healthy_jobs", lambda *_: iter(jobs))
    engine._healthy(Killed(), result, "smoke", "cpu", 0, lambda *_: None)  # type: ignore[arg-type]
    assert result.healthy_executions == len(jobs)


def test_the_readme_tells_the_number_of_mutants() -> None:
    shown = f"mutants caught: {len(MUTANTS)} of {len(MUTANTS)}"
    assert shown in (ROOT / "README.md").read_text(encoding="utf-8")
