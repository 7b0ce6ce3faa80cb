"""A campaign: rounds of scenarios over workers, journaled before launch, with feedback and shrinking between rounds."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from moeguard.backends import registry
from moeguard.core.case import Case
from moeguard.core.events import Event, Found, Noted, Relaunched, RunFinished, ScenarioFinished, ScenarioStarted, Usage
from moeguard.core.finding import Finding
from moeguard.engine.feedback import SUSPEND_AFTER, Feedback
from moeguard.engine.journal import Journal
from moeguard.engine.options import Options
from moeguard.engine.pool import Workers
from moeguard.engine.queue import Grouped
from moeguard.engine.rundir import RunDirectory
from moeguard.engine.shrink import settle
from moeguard.engine.worker import Job
from moeguard.engine.workers import workers_of
from moeguard.fuzz.bank import layer
from moeguard.fuzz.generation import draw_round
from moeguard.fuzz.profiles import profile
from moeguard.fuzz.steering import steer

#: Share of a budget that scenarios under way at its end may still take; then they are stopped.
GRACE = 0.03


@dataclass(frozen=True, slots=True)
class _Planned:
    draw: int
    round: int
    job: Job


class Campaign:
    """Runs, or resumes, what a run directory describes. ``listener`` receives every event as it is journaled."""

    def __init__(self, directory: RunDirectory, listener: Callable[[Event], None] = lambda event: None) -> None:
        self._directory, self._listener = directory, listener
        self._options: Options = directory.options
        self._standing = directory.standing
        self._feedback = Feedback(self._options)
        self._earlier = 0.0
        self._launched: float | None = None
        self._last = 0.0
        self._begun: set[int] = set()
        self._scenarios: defaultdict[int, list[Event]] = defaultdict(list)
        self._settled: set[str] = set()

    def run(self) -> list[Event]:
        """Run to the end, or to Ctrl-C, and return all events of the run. A complete run is returned as it is."""
        past = self._directory.events()
        if any(isinstance(event, RunFinished) and not event.interrupted for event in past):
            return past
        del past  # what counts of it is taken over while nobody else can write
        with ThreadPoolExecutor(1) as self._ahead, Journal(self._directory.journal) as self._journal:
            self._directory.tidy()
            self._replay(self._directory.events())
            interrupted = False
            try:
                with workers_of(self._directory) as workers:
                    if self._announce(workers):
                        workers.wait_ready()
                        if workers.left_out:
                            self._note_once("", "host", "; ".join(sorted(workers.left_out)))
                        self._rounds(workers)
            except KeyboardInterrupt:
                interrupted = True
            self._emit(RunFinished(seconds=self._seconds, interrupted=interrupted))
        return self._directory.events()

    def _replay(self, past: list[Event]) -> None:
        """Take over what an earlier attempt left: finished scenarios as they are, and those that were begun."""
        done = {event.scenario for event in past if isinstance(event, ScenarioFinished)}
        self._begun = {event.scenario for event in past if isinstance(event, ScenarioStarted)}
        self._noted = {(event.what, event.backend) for event in past if isinstance(event, Noted) and event.scenario == -1}
        spent = [0.0]
        for event in past:
            if isinstance(event, Found) and event.shrunk:
                self._settled.add(Finding.model_validate(event.finding).fingerprint)
            elif isinstance(event, RunFinished):
                spent.append(event.seconds)
            elif getattr(event, "scenario", -1) in done:
                self._scenarios[event.scenario].append(event)  # type: ignore[attr-defined]
                if isinstance(event, ScenarioFinished):
                    spent.append(event.elapsed or 0.0)
        self._earlier = max(spent)

    def _announce(self, workers: Workers) -> list[str]:
        """Names of backends that can run there; a note for each that cannot, and for each that is not the built-in one."""
        self._able = []
        for name, file in registry.replaced(self._options.backends).items():
            self._note_once(name, "built-in", f"{file.name} replaces the built-in backend {name!r}: nothing here is evidence "
                                              "about the built-in one")
        for name in self._options.backends:
            reason = workers.unavailable(name)
            if reason is None:
                self._able.append(name)
            else:
                self._note_once(name, "backend", reason)
        return self._able

    def _rounds(self, workers: Workers) -> None:
        number, drawn, able = 0, 0, list(self._able)
        while able:
            cases = self._cases(number)
            if not self._options.cases:
                cases = steer(cases, self._feedback.focus(), profile(self._options.profile, self._options.device),
                              self._options.seed, number)
                if self._options.max_cases is not None:
                    cases = cases[: self._options.max_cases - drawn]
            planned = list(self._plan(cases, able, number, drawn))
            if not cases or (self._spent() and not any(entry.job.scenario in self._begun for entry in planned)):
                return
            ahead = self._ahead.submit(self._cases, number + 1)  # drawn while the workers are busy
            self._run_round(workers, planned)
            self._close_round(workers, planned)
            ahead.result()
            drawn += len(cases)
            number += 1
            able = [name for name in able if name not in self._feedback.suspended]

    @property
    def _seconds(self) -> float:
        """From the first launch to the last verdict, shrinking left out; earlier attempts included."""
        return self._earlier + (0.0 if self._launched is None else self._last - self._launched)

    def _spent(self) -> bool:
        if self._options.budget is None or self._launched is None:
            return self._options.budget is not None and self._earlier >= self._options.budget
        return self._earlier + time.monotonic() - self._launched >= self._options.budget

    def _cases(self, number: int) -> tuple[Case, ...]:
        options = self._options
        if options.cases:
            given = tuple(Case.model_validate(case) for case in options.cases)
            return given if number < options.repeat else ()
        return draw_round(profile(options.profile, options.device), options.recipes, options.seed, number)

    def _plan(self, cases: tuple[Case, ...], able: list[str], number: int, drawn: int) -> Iterator[_Planned]:
        backends = self._options.backends
        for offset, case in enumerate(cases):
            for place, backend in enumerate(backends):
                if backend in able:
                    scenario = (drawn + offset) * len(backends) + place
                    yield _Planned(drawn + offset, number, Job(scenario, backend, case, tactic=self._options.tactic,
                                                               swept=frozenset() if self._options.sweep else None))

    def _run_round(self, workers: Workers, planned: list[_Planned]) -> None:
        entries = {entry.job.scenario: entry for entry in planned}
        self._finished = {number: event for number in entries for event in self._scenarios.get(number, ())
                          if isinstance(event, ScenarioFinished)}

        queue = Grouped(planned, lambda entry: layer(entry.job.case), self._launch)
        for job, event in workers.run(queue, self._remaining):
            self._last = time.monotonic()
            match event:
                case Relaunched():
                    self._start(entries[job.scenario])
                    continue
                case Usage():
                    self._emit(event)
                    continue
                case Found():
                    event = replace(event, finding=self._standing.mark(Finding.model_validate(event.finding)).to_data())
                case ScenarioFinished():
                    event = replace(event, elapsed=round(self._seconds, 6))
                    self._finished[job.scenario] = event
            self._emit(event)
            self._scenarios[job.scenario].append(event)

    def _close_round(self, workers: Workers, planned: list[_Planned]) -> None:
        """Suspend backends, fold the round into the feedback, and settle its findings; their time is not that of the run."""
        start = time.monotonic()
        for name in self._feedback.suspend(self._finished):
            self._note_once(name, "suspended", f"{SUSPEND_AFTER} scenarios ended in a crash or a hang of the worker; "
                                               "later ones were not launched")
        for entry in planned:
            number, cut = entry.job.scenario, self._feedback.suspended.get(entry.job.backend)
            if cut is not None and number > cut and len(self._scenarios.get(number, ())) > 2:
                self._start(entry)  # launched before the one that decided: void, so that workers do not matter
                self._refuse(entry)
        self._feedback.close({entry.job.scenario: self._scenarios.pop(entry.job.scenario, []) for entry in planned})
        self._journal.sync()
        for scenario, finding in self._feedback.to_shrink():
            if finding.fingerprint not in self._settled:
                found = settle(workers, finding, self._options, self._standing, self._directory.case_finder())
                for settled in reversed(found):  # its own comes last: it says that nothing is missing
                    self._emit(Found(scenario=scenario, finding=settled.to_data(), shrunk=True))
        if self._launched is not None:
            pause = time.monotonic() - start
            self._launched += pause
            self._last += pause

    def _launch(self, entry: _Planned) -> Job | None:
        """The job of an entry whose turn has come, journaled; None when it is done already or not launched."""
        number = entry.job.scenario
        if number in self._finished or (self._spent() and number not in self._begun):
            return None
        self._start(entry)
        if self._launched is None:
            self._launched = self._last = time.monotonic()
        if self._spent():
            self._refuse(entry, "budget", "the budget ended during the scenario", status="stopped")
        elif not self._feedback.may_launch(entry.job.backend, number, self._finished):
            self._refuse(entry)
        elif not self._barred(entry):
            return entry.job
        return None

    def _remaining(self) -> float | None:
        """Seconds until scenarios under way are stopped."""
        budget = self._options.budget
        if budget is None or self._launched is None:
            return None
        return budget * (1 + GRACE) - self._earlier - (time.monotonic() - self._launched)

    def _start(self, entry: _Planned) -> None:
        """Journal that a scenario begins; what an earlier launch of it left is void."""
        event = _started(entry)
        self._emit(event)
        self._scenarios[entry.job.scenario] = [event]

    def _refuse(self, entry: _Planned, what: str = "", reason: str = "", status: str = "refused") -> None:
        """End a scenario that was begun without launching it."""
        job = entry.job
        events: list[Event] = [Noted(scenario=job.scenario, backend=job.backend, recipe=job.case.recipe, what=what, reason=reason)
                               ] if what else []
        end = ScenarioFinished(scenario=job.scenario, status=status, executions=0, seconds=0.0, elapsed=round(self._seconds, 6))
        for event in (*events, end):
            self._emit(event)
            self._scenarios[job.scenario].append(event)
        self._finished[job.scenario] = end

    def _barred(self, entry: _Planned) -> bool:
        """Whether the case is known to kill or hang the process: noted, and launched only when asked for."""
        options, job = self._options, entry.job
        known = self._standing.deadly(job.backend, job.case)
        if known is None or options.strict or (options.cases and not options.sweep):
            return False
        self._refuse(entry, "known crash", f"not launched: {known.id} ({known.reference}): {known.reason}")
        return True

    def _note_once(self, backend: str, what: str, reason: str) -> None:
        """A note about the whole run, unless an earlier attempt has left it."""
        if (what, backend) not in self._noted:
            self._emit(Noted(scenario=-1, backend=backend, recipe="", what=what, reason=reason))

    def _emit(self, event: Event) -> None:
        self._journal.append(event)
        self._listener(event)


def _started(entry: _Planned) -> ScenarioStarted:
    case = entry.job.case
    return ScenarioStarted(scenario=entry.job.scenario, draw=entry.draw, round=entry.round, backend=entry.job.backend,
                           recipe=case.recipe, case=case.model_dump(mode="json", by_alias=True), fingerprint=case.fingerprint)
