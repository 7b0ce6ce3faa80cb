"""Evidence: what a run directory proves about its cells, bound to its bytes by their sha256."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

from moeguard.core.case import Case
from moeguard.core.cell import Cell
from moeguard.core.errors import MoeguardError
from moeguard.core.events import Event, Executed, Found, Noted, RunFinished, ScenarioFinished, ScenarioStarted, parse
from moeguard.core.finding import Finding
from moeguard.gate.snapshot import Snapshot, Stale, take
from moeguard.gate.tally import Tally

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """One complete run. path: as it was given. started: the day, UTC. sha256: see moeguard.gate.snapshot. gpu: its name, None
    on a CPU. cells: those that were executed."""

    path: str
    run_id: str
    started: date
    sha256: str
    gpu: str | None
    cells: dict[Cell, Tally]


def read(path: Path | str) -> RunEvidence | Stale:
    """The evidence of a run directory, from manifest, journal and cases alone; ``Stale`` when it is none."""
    snapshot = take(path)
    if isinstance(snapshot, Stale):
        return snapshot
    try:
        manifest = _manifest(snapshot)
        events = _events(snapshot)
        _check_cases(snapshot, events)
        return RunEvidence(str(path), str(manifest["run_id"]), _started(manifest), snapshot.sha256,
                           manifest["environment"].get("gpu"), _cells(manifest, events))
    except (_Broken, MoeguardError) as error:
        return Stale(str(path), str(error))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return Stale(str(path), f"damaged ({type(error).__name__})")


class _Broken(Exception):
    """Why a run directory is no evidence."""


def _manifest(snapshot: Snapshot) -> dict[str, Any]:
    try:
        manifest = json.loads(snapshot.manifest.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _Broken("manifest.json is not valid JSON") from None
    if not isinstance(manifest, dict) or type(manifest.get("schema")) is not int or manifest["schema"] != SCHEMA:
        raise _Broken(f"manifest.json has another schema than {SCHEMA}")
    if not isinstance(manifest.get("run_id"), str) or not manifest["run_id"]:
        raise _Broken("manifest.json names no run_id")
    environment = manifest.get("environment")
    if not isinstance(environment, dict) or not isinstance(environment.get("arch"), str):
        raise _Broken("manifest.json has no environment")
    if not isinstance(manifest.get("options"), dict):
        raise _Broken("manifest.json has no options")
    return manifest


def _started(manifest: dict[str, Any]) -> date:
    try:
        started = datetime.fromisoformat(manifest["started"])
    except (KeyError, TypeError, ValueError):
        raise _Broken("manifest.json does not say when the run was started") from None
    return (started if started.tzinfo is None else started.astimezone(timezone.utc)).date()


def _events(snapshot: Snapshot) -> list[Event]:
    """The events in order. A scenario that was started again keeps its last attempt only."""
    if not snapshot.journal:
        raise _Broken("journal.jsonl is empty")
    if not snapshot.journal.endswith(b"\n"):
        raise _Broken("journal.jsonl is truncated: its last line is not complete")
    events: list[Event] = []
    for number, line in enumerate(snapshot.journal.split(b"\n")[:-1], start=1):
        try:
            events.append(parse(line.decode("utf-8")))
        except (ValueError, RecursionError):
            raise _Broken(f"journal.jsonl: line {number} is damaged") from None
    if not isinstance(events[-1], RunFinished) or events[-1].interrupted:
        raise _Broken("the run did not come to its end; finish it with moeguard run --resume")
    last = {event.scenario: place for place, event in enumerate(events) if isinstance(event, ScenarioStarted)}
    return [event for place, event in enumerate(events) if place >= last.get(getattr(event, "scenario", -1), -1)]


def _check_cases(snapshot: Snapshot, events: Iterable[Event]) -> None:
    """Each case file is the case that it is named after, and each finding has one."""
    stored = set()
    for name, data in snapshot.cases.items():
        try:
            stored.add(Case.from_json(data.decode("utf-8")).fingerprint)
        except (UnicodeDecodeError, MoeguardError):
            raise _Broken(f"cases/{name} is not a case") from None
        if name.removesuffix(".json") not in stored:
            raise _Broken(f"cases/{name} holds another case than its name says")
    cases: defaultdict[str, set[str]] = defaultdict(set)
    for event in events:
        if isinstance(event, Found):
            finding = Finding.model_validate(event.finding)
            cases[finding.fingerprint].add(finding.case.fingerprint)
    missing = sorted(fingerprint for fingerprint, those in cases.items() if not those & stored)
    if missing:
        raise _Broken(f"the case of finding {missing[0]} is missing from cases/; write it with moeguard report")


def _cells(manifest: dict[str, Any], events: Iterable[Event]) -> dict[Cell, Tally]:
    started: dict[int, ScenarioStarted] = {}
    inside: defaultdict[int, list[Event]] = defaultdict(list)
    finished: set[int] = set()
    for event in events:
        match event:
            case ScenarioStarted():
                started[event.scenario] = event
            case ScenarioFinished():
                finished.add(event.scenario)
            case RunFinished():
                pass
            case _:
                number: int = getattr(event, "scenario", -1)
                if isinstance(event, Executed) and number not in started:
                    raise _Broken(f"journal.jsonl: scenario {number} has an execution but was never started")
                inside[number].append(event)
    open_ends = sorted(set(started) - finished)
    if open_ends:
        raise _Broken(f"journal.jsonl: scenario {open_ends[0]} was started and never finished")
    taken = next((event.backend for event in inside[-1] if isinstance(event, Noted) and event.what == "built-in"), None)
    if taken is not None:
        raise _Broken(f"a plug-in took the place of the built-in backend {taken}, so the run is not about that backend")
    drawn = not manifest["options"].get("cases")
    cells: dict[Cell, Tally] = {}
    for number, first in sorted(started.items()):
        tally = cells.setdefault(Cell.of(first.backend, first.recipe, manifest["environment"]), Tally())
        tally.count(first, inside[number], drawn=drawn)
    return {cell: tally for cell, tally in sorted(cells.items(), key=lambda item: _order(item[0])) if not tally.empty}


def _order(cell: Cell) -> tuple[str, ...]:
    return tuple(str(value) for value in cell.to_data().values())
