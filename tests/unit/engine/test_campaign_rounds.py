"""Rounds of a campaign on workers without processes: neither their number nor a kill changes what comes of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from moeguard.core.events import Event, Executed, Found, Noted, Relaunched, RunFinished, ScenarioFinished, ScenarioStarted
from moeguard.core.finding import Finding
from moeguard.engine.campaign import Campaign
from moeguard.engine.feedback import SUSPEND_AFTER
from moeguard.engine.options import Options
from moeguard.engine.pool import Remaining
from moeguard.engine.queue import Queue, queue_of
from moeguard.engine.rundir import RunDirectory
from moeguard.engine.worker import Job

OPTIONS = Options(backends=("sound", "fragile"), recipes=("bf16",), profile="smoke", max_cases=300, seed=3)


class Simulated:
    """``width`` workers that take turns at random. ``fragile`` hangs for many tokens, is wrong for some H, and refuses T = 0."""

    def __init__(self, width: int = 1, seed: int = 0, interrupt: int | None = None) -> None:
        self.width, self.source, self.left = width, random.Random(seed), interrupt
        self.launched: Counter[int] = Counter()
        self.left_out: list[str] = []

    def wait_ready(self) -> None:
        pass

    def unavailable(self, backend: str) -> str | None:
        return None

    def run(self, jobs: Iterable[Job] | Queue, remaining: Remaining = lambda: None) -> Iterator[tuple[Job, Event]]:
        queue, active = queue_of(jobs), dict[int, tuple[Job, Iterator[Event]]]()
        while True:
            for worker in range(self.width):
                if worker not in active and (job := queue.take(worker)) is not None:
                    self.launched[job.scenario] += 1
                    active[worker] = job, self.events(job, self.source.random() < 0.02)
            if not active:
                return
            worker = self.source.choice(list(active))
            turn = active[worker]
            event = next(turn[1], None)
            if event is None:
                del active[worker]
                continue
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise KeyboardInterrupt
            yield turn[0], event

    def run_one(self, job: Job) -> list[Event]:
        return list(self.events(job))

    def fresh(self, jobs: Sequence[Job]) -> list[list[Event]]:
        return [self.run_one(job) for job in jobs]

    def events(self, job: Job, taken_away: bool = False) -> Iterator[Event]:
        number, shape = job.scenario, job.case.shape
        done = ScenarioFinished(scenario=number, status="clean", executions=2, seconds=self.source.random())
        executed = Executed(scenario=number, number=1, check="values", role="base", tactic=None, outcome="ok",
                            seconds=self.source.random())
        if taken_away:
            yield from (executed, Relaunched(scenario=number))
        if job.backend == "fragile" and shape.num_tokens == 0:
            yield Noted(scenario=number, backend=job.backend, recipe="bf16", what="case", reason="no tokens")
            yield ScenarioFinished(scenario=number, status="refused", executions=0, seconds=0.0)
            return
        yield executed
        kind = "hang" if shape.num_tokens > 128 else "mismatch" if shape.hidden_size % 16 else None
        if job.backend == "sound":
            kind = None
        if kind is not None:
            yield Found(scenario=number, finding=Finding.model_validate(dict(
                kind=kind, check="values", backend=job.backend, case=job.case, sentence=kind,
                numbers={"launched": []} if kind == "hang" else {})).to_data())
        status = {"hang": "hang", "mismatch": "findings"}.get(kind or "", "clean")
        yield Executed(scenario=number, number=2, check="memory", role="base", tactic="x", outcome="ok", seconds=0.1)
        yield ScenarioFinished(**asdict(done) | {"status": status})


def campaign(path: Path, workers: Simulated, monkeypatch: pytest.MonkeyPatch, options: Options = OPTIONS) -> list[Event]:
    monkeypatch.setattr("moeguard.engine.campaign.workers_of", lambda directory: nullcontext(workers))
    directory = RunDirectory.open(path) if path.exists() else RunDirectory.create(path, "run", options)
    return Campaign(directory).run()


def results(events: list[Event]) -> dict[int, list[dict[str, Any]]]:
    """What counts of each scenario, without times; -1 is the run itself."""
    found: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if not isinstance(event, RunFinished):
            data = {name: value for name, value in asdict(event).items() if name not in ("seconds", "elapsed")}
            found.setdefault(data["scenario"], []).append(data)
    return {number: found[number] for number in sorted(found)}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    """One worker, nothing in between."""
    path = tmp_path_factory.mktemp("alone") / "run"
    with pytest.MonkeyPatch.context() as patch:
        return path, campaign(path, Simulated(), patch)


def test_the_campaign_that_the_others_are_compared_with(alone: tuple[Path, list[Event]]) -> None:
    """Three rounds, a backend that is suspended within one of them, findings that are shrunk, and a steered round."""
    events = alone[1]
    assert {event.round for event in events if isinstance(event, ScenarioStarted)} == {0, 1, 2}
    assert [(event.backend, event.what) for event in events if isinstance(event, Noted) and event.scenario == -1] == [
        ("fragile", "suspended")]
    lost = [event.scenario for event in events if isinstance(event, ScenarioFinished) and event.status == "hang"]
    assert len(lost) == SUSPEND_AFTER
    assert {event.finding["kind"] for event in events if isinstance(event, Found) and event.shrunk} == {"mismatch", "hang"}
    starts = [event for event in events if isinstance(event, ScenarioStarted)]
    assert len({event.draw for event in starts}) == 300 and not any(
        event.backend == "fragile" and event.round > starts[lost[-1]].round for event in starts)


@pytest.mark.parametrize("width", [2, 7, 16])
def test_the_number_of_workers_does_not_matter(width: int, alone: tuple[Path, list[Event]], tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    assert results(campaign(tmp_path / "run", Simulated(width, width), monkeypatch)) == results(alone[1])


def test_a_journal_cut_anywhere_resumes_to_the_same(alone: tuple[Path, list[Event]], tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(1)
    whole = (alone[0] / "journal.jsonl").read_bytes()
    for number in range(12):
        path = tmp_path / str(number)
        path.mkdir()
        (path / "manifest.json").write_bytes((alone[0] / "manifest.json").read_bytes())
        cut = whole[: source.randrange(len(whole))]
        (path / "journal.jsonl").write_bytes(cut)
        workers = Simulated(4, number)
        assert results(campaign(path, workers, monkeypatch)) == results(alone[1])
        ended = {int(line.split(b'"scenario":')[1].split(b",")[0]) for line in cut.splitlines(keepends=True)
                 if b'"scenario_finished"' in line and line.endswith(b"\n")}
        assert not ended & set(workers.launched)  # nothing is run again that had come to its end
        assert campaign(path, workers, monkeypatch)[-1] == campaign(path, workers, monkeypatch)[-1]


def test_ctrl_c_again_and_again(alone: tuple[Path, list[Event]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, events = tmp_path / "run", []
    for attempt in range(100):
        events = campaign(path, Simulated(3, attempt, interrupt=150 + 37 * attempt), monkeypatch)
        last = events[-1]
        assert isinstance(last, RunFinished)
        if not last.interrupted:
            break
    assert attempt > 3
    assert results(events) == results(alone[1])


def test_a_campaign_ends_when_every_backend_is_suspended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(backends=("fragile",), recipes=("bf16",), profile="smoke", budget=600.0, seed=3)
    events = campaign(tmp_path / "run", Simulated(2), monkeypatch, options)
    assert isinstance(events[-1], RunFinished) and not events[-1].interrupted


def test_a_spent_budget_is_not_spent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed behind the end of its budget: what was under way is closed without a launch, findings are shrunk."""
    options = Options(backends=("fragile",), recipes=("bf16",), profile="smoke", budget=10.0, seed=3)
    path = tmp_path / "run"
    events = campaign(path, Simulated(2, interrupt=100), monkeypatch, options)
    lines = [event for event in events if not isinstance(event, RunFinished)]
    late = max(place for place, event in enumerate(lines) if isinstance(event, ScenarioFinished))
    lines[late] = ScenarioFinished(**asdict(lines[late]) | {"elapsed": 10.1})
    (path / "journal.jsonl").write_text("".join(event.to_json() + "\n" for event in lines))
    workers = Simulated()
    events = campaign(path, workers, monkeypatch)
    assert not workers.launched and isinstance(events[-1], RunFinished) and 10.1 <= events[-1].seconds < 10.2
    started = {event.scenario for event in events if isinstance(event, ScenarioStarted)}
    assert started == {event.scenario for event in events if isinstance(event, ScenarioFinished)}
    assert "stopped" in {event.status for event in events if isinstance(event, ScenarioFinished)}
