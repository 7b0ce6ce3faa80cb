"""The typed event stream of a campaign. Journal, progress bar and reports are listeners of it.

Each event is one line of ``journal.jsonl``: ``{"event": <name>, ...fields}``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events; ``name`` is the value of the ``event`` key."""

    name: ClassVar[str] = ""

    def to_json(self) -> str:
        """One line of JSON, without the newline."""
        data = {name: getattr(self, name) for name in _types(self.name)}
        return json.dumps({"event": self.name, **data}, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioStarted(Event):
    """Written before anything of the scenario is launched. ``case`` is the case as JSON data.

    draw: running number of the drawn case; scenarios of several backends share it.
    """

    name: ClassVar[str] = "scenario_started"
    scenario: int
    draw: int
    round: int
    backend: str
    recipe: str
    case: dict[str, Any]
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed(Event):
    """A ``Backend.run`` that got a memory check and a verdict, or several of one call in a row.

    check: check group. role: ``base`` or the partner that was run (``permuted``, ``repeat 2``, ...).
    outcome: ``ok``, ``finding``, ``refused`` (raised as declared) or ``unjudged`` (nothing comparable in the answer).
    numbers: max_z, tau, rms_z, rho, row, tile, column, expert and the like; empty when not judged.
    count: executions of one call in a row that the line stands for, each checked; number is that of the last, seconds of all.
    """

    name: ClassVar[str] = "executed"
    scenario: int
    number: int
    check: str
    role: str
    tactic: str | None
    outcome: str
    seconds: float
    numbers: dict[str, Any] = field(default_factory=dict)
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Event):
    """A finding, as JSON data of moeguard.core.finding.Finding; ``shrunk`` marks the minimal form of an earlier one."""

    name: ClassVar[str] = "found"
    scenario: int
    finding: dict[str, Any]
    shrunk: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted(Event):
    """Something that was not verified, and why."""

    name: ClassVar[str] = "noted"
    scenario: int
    backend: str
    recipe: str
    what: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept(Event):
    """A sweep is done with one tactic, None for the default.

    witnessed: whether the backend says that this tactic ran, None when it cannot tell. outcome: of the judged execution,
    as in Executed, or ``crash`` or ``hang``. seconds: median of ``runs`` timed calls, None when none was timed.
    """

    name: ClassVar[str] = "swept"
    scenario: int
    tactic: str | None
    outcome: str
    witnessed: bool | None = None
    seconds: float | None = None
    runs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioFinished(Event):
    """status: ``clean``, ``findings``, ``refused`` (not supported, never launched), ``crash``, ``hang``, or ``stopped`` when the
    budget ended during the scenario.

    elapsed: seconds since the first launch of the run, as ``RunFinished`` counts them; None where no campaign ran it.
    """

    name: ClassVar[str] = "scenario_finished"
    scenario: int
    status: str
    executions: int
    seconds: float
    elapsed: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Event):
    """Last event of a complete run. ``interrupted``: ended by Ctrl-C. seconds: first launch to last verdict."""

    name: ClassVar[str] = "run_finished"
    seconds: float
    interrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage(Event):
    """What a worker process has used since it was ready: a measurement, like a time, on which no result depends.

    worker: a name of the process. seconds: on the clock; cpu_seconds: of its threads. resident: bytes of memory that the process
    has now. gpu_allocated, gpu_reserved: bytes of its tensors and of torch's cache, None without a GPU. bank: hits, misses and
    bytes of weight sets and prepared layouts.
    """

    name: ClassVar[str] = "usage"
    worker: str
    scenarios: int
    executions: int
    seconds: float
    cpu_seconds: float
    resident: int | None = None
    gpu_allocated: int | None = None
    gpu_reserved: int | None = None
    bank: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaunched(Event):
    """The process or node that ran the scenario was taken away from outside: it begins again, what it sent so far is void.

    Never in a journal: the campaign writes ``ScenarioStarted`` again instead.
    """

    name: ClassVar[str] = "relaunched"
    scenario: int


EVENTS: dict[str, type[Event]] = {
    kind.name: kind for kind in (ScenarioStarted, Executed, Found, Noted, Swept, ScenarioFinished, RunFinished, Usage)
}


class ForeignEvent(ValueError):
    """A line that is whole, but means nothing to this version."""


def parse(line: str) -> Event:
    """The event of one journal line. Raises ValueError when it is not one: ForeignEvent when it may be one to others."""
    data = json.loads(line)
    if not isinstance(data, dict) or not isinstance(data.get("event"), str):
        raise ValueError("not an event")
    if data["event"] not in EVENTS:
        raise ForeignEvent(f"unknown event {data['event']!r}")
    kind = EVENTS[data.pop("event")]
    types = _types(kind.name)
    if not data.keys() <= types.keys():
        raise ForeignEvent(f"unknown fields {sorted(data.keys() - types.keys())}")
    for name, value in data.items():
        if not isinstance(value, types[name]) or (isinstance(value, bool) and bool not in types[name]):
            raise ForeignEvent(f"{name} is a {type(value).__name__}")
    try:
        return kind(**data)
    except TypeError as error:
        raise ForeignEvent(str(error)) from None


@cache
def _types(name: str) -> dict[str, tuple[type, ...]]:
    """Fields of an event and what JSON may hold there."""
    kind = EVENTS[name]
    hints = get_type_hints(kind)
    return {one.name: _plain(hints[one.name]) for one in fields(kind)}


def _plain(hint: Any) -> tuple[type, ...]:
    union = get_args(hint) if get_origin(hint) not in (dict, list) else ()
    kinds = tuple(get_origin(part) or part for part in union or (hint,))
    return (*kinds, int) if float in kinds else kinds
