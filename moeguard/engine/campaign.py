"""A campaign: rounds of scenarios over a pool of workers, journaled before launch, shrunk between rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from moeguard.backends import registry
from moeguard.core.case import Case
from moeguard.core.events import Event, Found, Noted, RunFinished, ScenarioFinished, ScenarioStarted
from moeguard.core.finding import Finding
from moeguard.engine.journal import Journal
from moeguard.engine.options import Options
from moeguard.engine.pool import Pool
from moeguard.engine.rundir import RunDirectory
from moeguard.engine.shrink import shrink_finding
from moeguard.engine.worker import Job, Settings
from moeguard.fuzz.generation import draw_round
from moeguard.fuzz.profiles import profile

#: Scenarios that a backend may lose to crashes and hangs before it is suspended (decided between rounds).
SUSPEND_AFTER = 5
#: Findings that are shrunk in one round.
SHRINKS_PER_ROUND = 4


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
        self._earlier = 0.0
        self._launched: float | None = None
        self._last = 0.0
        self._lost: dict[str, int] = {}
        self._fresh: dict[str, tuple[int, Finding]] = {}
        self._handled: set[str] = set()
        self._ahead = ThreadPoolExecutor(1)

    def run(self) -> list[Event]:
        """Run to the end, or to Ctrl-C, and return all events of the run. A complete run is returned as it is."""
        past = self._directory.events()
        if any(isinstance(event, RunFinished) and not event.interrupted for event in past):
            return past
        options = self._options
        settings = Settings(options.device, options.plugins, log=str(self._directory.path / "workers.log"))
        with Journal(self._directory.journal) as journal:
            self._journal = journal
            past = self._directory.events()
            done = self._replay(past)
            interrupted = False
            try:
                if self._announce(past):
                    with Pool(settings, options.workers, options.timeout) as pool:
                        pool.wait_ready()
                        self._rounds(pool, done)
            except KeyboardInterrupt:
                interrupted = True
            self._emit(RunFinished(seconds=self._seconds, interrupted=interrupted))
        return self._directory.events()

    def _replay(self, past: list[Event]) -> set[int]:
        """Take finished scenarios of an earlier attempt as they are; their numbers."""
        done = {event.scenario for event in past if isinstance(event, ScenarioFinished)}
        for event in past:
            if isinstance(event, Found) and event.shrunk:
                self._handled.add(Finding.model_validate(event.finding).fingerprint)
            elif getattr(event, "scenario", None) in done:
                self._absorb(event)
        self._earlier = max([event.seconds for event in past if isinstance(event, RunFinished)] + [
            sum(event.seconds for event in past if isinstance(event, ScenarioFinished)) / self._options.workers])
        return done

    def _announce(self, past: list[Event]) -> list[str]:
        """Names of backends that can run here; a note for each that cannot, and for each that is not the built-in one."""
        able = []
        noted = {(event.what, event.backend) for event in past if isinstance(event, Noted) and event.scenario == -1}
        for name, file in registry.replaced(self._options.backends).items():
            if ("built-in", name) not in noted:
                self._emit(Noted(scenario=-1, backend=name, recipe="", what="built-in", reason=(
                    f"{file.name} replaces the built-in backend {name!r}: nothing here is evidence about the built-in one")))
        for name in self._options.backends:
            reason = registry.unavailable(name)
            if reason is None:
                able.append(name)
            elif ("backend", name) not in noted:
                self._emit(Noted(scenario=-1, backend=name, recipe="", what="backend", reason=reason))
        self._able = able
        return able

    def _rounds(self, pool: Pool, done: set[int]) -> None:
        number, drawn = 0, 0
        while not self._spent():
            cases = self._cases(number)
            if self._options.max_cases is not None and not self._options.cases:
                cases = cases[: self._options.max_cases - drawn]
            if not cases:
                return
            planned = list(self._plan(cases, number, drawn))
            ahead = self._ahead.submit(self._cases, number + 1)  # drawn while the workers are busy
            self._run_round(pool, [entry for entry in planned if entry.job.scenario not in done])
            self._shrink(pool)
            ahead.result()
            drawn += len(cases)
            number += 1

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

    def _plan(self, cases: tuple[Case, ...], number: int, drawn: int) -> Iterator[_Planned]:
        backends = self._options.backends
        for offset, case in enumerate(cases):
            for place, backend in enumerate(backends):
                if backend not in self._able or self._lost.get(backend, 0) >= SUSPEND_AFTER:
                    continue
                scenario = (drawn + offset) * len(backends) + place
                yield _Planned(drawn + offset, number, Job(scenario, backend, case, tactic=self._options.tactic,
                                                                    swept=frozenset() if self._options.sweep else None))

    def _run_round(self, pool: Pool, planned: list[_Planned]) -> None:
        def launch() -> Iterator[Job]:
            for entry in planned:
                if self._spent():
                    return
                self._emit(_started(entry))
                if self._launched is None:
                    self._launched = self._last = time.monotonic()
                if self._barred(entry.job):
                    continue
                yield entry.job

        for _, event in pool.run(launch()):
            self._last = time.monotonic()
            if isinstance(event, Found):
                event = replace(event, finding=self._standing.mark(Finding.model_validate(event.finding)).to_data())
            self._emit(event)
            self._absorb(event)

    def _barred(self, job: Job) -> bool:
        """Whether the case is known to kill or hang the process: noted, and launched only when asked for."""
        options = self._options
        entry = self._standing.deadly(job.backend, job.case)
        if entry is None or options.strict or (options.cases and not options.sweep):
            return False
        self._emit(Noted(scenario=job.scenario, backend=job.backend, recipe=job.case.recipe, what="known crash",
                         reason=f"not launched: {entry.id} ({entry.reference}): {entry.reason}"))
        self._emit(ScenarioFinished(scenario=job.scenario, status="refused", executions=0, seconds=0.0))
        return True

    def _absorb(self, event: Event) -> None:
        """Remember what later rounds depend on: new findings to shrink, scenarios lost to a crash or a hang."""
        if isinstance(event, Found) and not event.shrunk:
            finding = Finding.model_validate(event.finding)
            known = self._fresh.get(finding.fingerprint)
            if known is None or event.scenario < known[0]:
                self._fresh[finding.fingerprint] = (event.scenario, finding)
        elif isinstance(event, ScenarioFinished) and event.status in ("crash", "hang") and not self._options.sweep:
            name = self._options.backends[event.scenario % len(self._options.backends)]
            self._lost[name] = self._lost.get(name, 0) + 1
            if self._lost[name] == SUSPEND_AFTER:
                self._emit(Noted(scenario=event.scenario, backend=name, recipe="", what="suspended",
                                 reason=f"{SUSPEND_AFTER} scenarios ended in a crash or a hang of the worker"))

    def _shrink(self, pool: Pool) -> None:
        """Reproduce and shrink the round's new findings that fail the run; their time is not part of its seconds.

        A known finding that does not fail the run stays on its first case: its entry holds a small one.
        """
        start = time.monotonic()
        waiting = sorted((scenario, key) for key, (scenario, finding) in self._fresh.items()
                         if key not in self._handled and (self._options.strict or not finding.known))
        for scenario, key in waiting[:SHRINKS_PER_ROUND]:
            self._handled.add(key)
            minimal = shrink_finding(pool, self._fresh[key][1], self._options, self._standing)
            self._emit(Found(scenario=scenario, finding=minimal.to_data(), shrunk=True))
        if self._launched is not None:
            pause = time.monotonic() - start
            self._launched += pause
            self._last += pause

    def _emit(self, event: Event) -> None:
        self._journal.append(event)
        self._listener(event)


def _started(entry: _Planned) -> ScenarioStarted:
    case = entry.job.case
    return ScenarioStarted(scenario=entry.job.scenario, draw=entry.draw, round=entry.round, backend=entry.job.backend,
                           recipe=case.recipe, case=case.model_dump(mode="json", by_alias=True), fingerprint=case.fingerprint)
