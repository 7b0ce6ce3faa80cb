"""The history of a run: its events gathered by scenario, in an order that does not depend on workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from moeguard.core.errors import RunDirectoryError
from moeguard.core.events import Event, Executed, Found, Noted, RunFinished, ScenarioFinished, ScenarioStarted, Swept


@dataclass(slots=True)
class Scenario:
    """All that the journal holds about one scenario number.

    started: None when the number was never drawn (notes and findings that belong to the whole run).
    executed, found, noted, swept: in journal order; only those of the last attempt when a resume began the scenario again.
    finished: None when the run ended inside the scenario.
    """

    number: int
    started: ScenarioStarted | None = None
    executed: list[Executed] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    noted: list[Noted] = field(default_factory=list)
    swept: list[Swept] = field(default_factory=list)
    finished: ScenarioFinished | None = None

    @property
    def seconds(self) -> float:
        """Seconds that the scenario took; the sum of its executions when it did not finish."""
        return self.finished.seconds if self.finished else sum(one.seconds for one in self.executed)


@dataclass(frozen=True, slots=True)
class History:
    """A run by scenario. scenarios: sorted by number. endings: every ``RunFinished``, one for each stop of the run."""

    scenarios: tuple[Scenario, ...]
    endings: tuple[RunFinished, ...]

    @property
    def drawn(self) -> tuple[Scenario, ...]:
        """The scenarios that were started."""
        return tuple(one for one in self.scenarios if one.started)

    @property
    def complete(self) -> bool:
        """Whether the run came to its own end."""
        return any(not ending.interrupted for ending in self.endings)


def gather(events: Iterable[Event]) -> History:
    """The history of a stream of events.

    A scenario that is started again (a resume after a kill) forgets its unfinished attempt, so that a resumed run
    equals one that was never stopped. Raises RunDirectoryError on an execution of a scenario that was never started.
    """
    scenarios: dict[int, Scenario] = {}
    endings: list[RunFinished] = []
    for event in events:
        match event:
            case RunFinished():
                endings.append(event)
            case ScenarioStarted():
                current = scenarios.get(event.scenario)
                if current is None or current.started:
                    current = scenarios[event.scenario] = Scenario(event.scenario)
                current.started = event
            case Executed() | Found() | Noted() | Swept() | ScenarioFinished():
                _add(scenarios.setdefault(event.scenario, Scenario(event.scenario)), event)
    return History(tuple(scenarios[number] for number in sorted(scenarios)), tuple(endings))


def _add(scenario: Scenario, event: Executed | Found | Noted | Swept | ScenarioFinished) -> None:
    match event:
        case Executed():
            if scenario.started is None:
                raise RunDirectoryError(f"journal: scenario {scenario.number} has an execution but was never started")
            scenario.executed.append(event)
        case Found():
            scenario.found.append(event)
        case Noted():
            scenario.noted.append(event)
        case Swept():
            scenario.swept.append(event)
        case ScenarioFinished():
            scenario.finished = event
