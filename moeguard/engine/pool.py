"""A pool of worker processes with time-outs: what happened to each job, as events, whatever the backend does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Protocol

from moeguard.backends import registry
from moeguard.checks.session import Calling
from moeguard.core.errors import HarnessError
from moeguard.core.events import Event, Executed, Found, Noted, Relaunched, ScenarioFinished, Swept
from moeguard.core.finding import Finding, Kind
from moeguard.engine.process import GROWTH, WorkerProcess, out_of_memory_kills
from moeguard.engine.queue import Queue, queue_of
from moeguard.engine.worker import Job, Settings

#: Calls in which a library may load, compile or measure many kernels, and how many times the time-out they get.
SLOW, PATIENCE = frozenset({"prepare", "foreign_layouts", "tune", "tuning_caps", "workspace_bytes", "tactics"}), 12.0
#: Seconds that a worker may think between two calls into the backend.
THINK_TIMEOUT = 600.0
#: Times that a job is launched when its process is killed from outside; the last such end counts as its own.
LAUNCHES = 3
#: Longest wait for a message, in seconds.
POLL = 0.2

Remaining = Callable[[], float | None]


class Workers(Protocol):
    """What a campaign runs its jobs on: processes of this host, or of the hosts of a cluster.

    left_out: hosts that are not used, one sentence each.
    """

    left_out: list[str]

    def wait_ready(self) -> None:
        """Block until jobs can be launched. Raises HarnessError when no worker starts."""

    def run(self, jobs: Iterable[Job] | Queue, remaining: Remaining = lambda: None) -> Iterator[tuple[Job, Event]]:
        """Run jobs as workers come free; yields events as they arrive. Each job ends with ScenarioFinished.

        After Relaunched all that came of the job before is void. remaining: seconds until jobs that are still under way
        are stopped, None for never.
        """

    def run_one(self, job: Job) -> list[Event]:
        """All events of one job."""

    def fresh(self, jobs: Sequence[Job]) -> list[list[Event]]:
        """The events of each of ``jobs``, run in order in one process that has run nothing before; up to one that is lost."""

    def unavailable(self, backend: str) -> str | None:
        """Why ``backend`` cannot run where the workers are; None when it can."""


class _Seat:
    """A worker process and the job that it holds."""

    def __init__(self, place: int, worker: WorkerProcess) -> None:
        self.place, self.worker = place, worker
        self.job: Job | None = None

    def take(self, job: Job | None) -> None:
        """Begin with ``job``, or with nothing."""
        self.job = self.first = job
        self.launches, self.kills = 0, out_of_memory_kills() if job is not None else 0
        self.begin()
        if job is not None:
            self.launch()

    def begin(self) -> None:
        """Forget what came of the job so far."""
        self.executions, self.started = 0, time.monotonic()
        self.swept: set[str | None] = set()
        self.lost, self.blamed = "", False

    def launch(self) -> None:
        """Send the job, now or when the process is ready."""
        if not self.worker.alive or self.worker.grown:
            self.worker.start()
        if self.worker.ready and self.job is not None:
            try:
                self.worker.send(self.job)
            except EOFError:  # gone between two jobs
                self.worker.start()


class Pool:
    """``count`` persistent workers of this host, started by spawn. timeout: seconds for one call into a backend.

    growth: bytes that a worker may take on before it is replaced, None for any number.
    """

    def __init__(self, settings: Settings, count: int = 1, timeout: float = 10.0, growth: int | None = GROWTH) -> None:
        self._settings, self._timeout = settings, timeout
        self._seats = [_Seat(place, WorkerProcess(settings, place, growth)) for place in range(count)]
        self.left_out: list[str] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for seat in self._seats:
            seat.worker.leave()
        for seat in self._seats:
            seat.worker.stop()

    def wait_ready(self) -> None:
        """Block until every worker has imported what it needs. Raises HarnessError when one does not start."""
        for seat in self._seats:
            if not seat.worker.alive:
                seat.worker.start()
        for seat in self._seats:
            while not seat.worker.ready:
                if seat.worker.connection.poll(POLL):
                    self._starting(seat)
                else:
                    seat.worker.check_start()

    def run(self, jobs: Iterable[Job] | Queue, remaining: Remaining = lambda: None) -> Iterator[tuple[Job, Event]]:
        """Run jobs as workers come free, see ``Workers.run``."""
        queue = queue_of(jobs)
        for seat in self._seats:
            seat.take(queue.take(seat.place))
        while busy := [seat for seat in self._seats if seat.job is not None]:
            left = remaining()
            wait([seat.worker.connection for seat in busy], POLL if left is None else max(0.0, min(POLL, left)))
            for seat in busy:
                job = seat.first
                assert job is not None
                # asked of each in its turn, since another one may have been started meanwhile
                for event in self._drain(seat) if seat.worker.connection.poll() else self._overdue(seat):
                    yield job, event
                if seat.job is None and not _over(remaining):
                    seat.take(queue.take(seat.place))
            if _over(remaining):
                yield from self._cut([seat for seat in busy if seat.job is not None])
                for seat in busy:
                    seat.take(queue.take(seat.place))

    def run_one(self, job: Job) -> list[Event]:
        """All events of one job, of its last launch."""
        return last_launch(event for _, event in self.run([job]))

    def fresh(self, jobs: Sequence[Job]) -> list[list[Event]]:
        """Run ``jobs`` in a process of their own, see ``Workers.fresh``."""
        done: list[list[Event]] = []
        with Pool(self._settings, 1, self._timeout, growth=None) as pool:
            for job in jobs:
                done.append(pool.run_one(job))
                if not pool._seats[0].worker.alive:
                    break
        return done

    def unavailable(self, backend: str) -> str | None:
        """Why ``backend`` cannot run on this host; None when it can."""
        return registry.unavailable(backend)

    def _starting(self, seat: _Seat) -> None:
        """A message, or the end, of a worker that is not ready."""
        try:
            seat.worker.receive()
        except EOFError:
            seat.worker.restart_early()
            return
        if seat.worker.ready and seat.job is not None:
            seat.launch()

    def _drain(self, seat: _Seat) -> Iterator[Event]:
        """Everything that has arrived, up to the end of the job."""
        while seat.job is not None and seat.worker.connection.poll():
            if not seat.worker.ready:
                self._starting(seat)
                continue
            try:
                event = seat.worker.receive()
            except EOFError:
                yield from self._ended(seat)
                return
            if isinstance(event, Executed):
                seat.executions += event.count
                event = replace(event, number=seat.executions)
            elif isinstance(event, Found) and event.finding["kind"] == "crash":
                seat.blamed = True
                event = replace(event, finding=event.finding | {"numbers": event.finding["numbers"] | _launched(seat)})
            elif isinstance(event, Swept):
                seat.swept.add(event.tactic)
            elif isinstance(event, ScenarioFinished):
                seat.job = None
                if seat.lost:  # a sweep that went on in another process
                    event = replace(event, status=seat.lost, executions=seat.executions,
                                    seconds=time.monotonic() - seat.started)
            if event is not None:
                yield event

    def _ended(self, seat: _Seat) -> Iterator[Event]:
        """The process of a job is gone. Killed from outside, it is no fault of the job, which begins again."""
        assert seat.job is not None
        if not seat.worker.from_outside:
            yield from self._lost(seat, "crash", f"killed the process ({seat.worker.ending})")
            return
        if out_of_memory_kills() > seat.kills:
            yield from self._give_up(seat, "memory", "the machine ran out of memory and killed the process")
            return
        seat.launches += 1
        if seat.launches >= LAUNCHES:
            yield from self._lost(seat, "crash", f"killed the process ({seat.worker.ending}), {LAUNCHES} times in a row")
            return
        yield Relaunched(scenario=seat.job.scenario)
        seat.job = seat.first
        seat.begin()
        seat.worker.start()

    def _overdue(self, seat: _Seat) -> Iterator[Event]:
        worker = seat.worker
        if not worker.ready:
            worker.check_start()
            return
        quiet = time.monotonic() - worker.since
        if worker.calling is not None:
            allowed = self._timeout * (PATIENCE if worker.calling.what in SLOW else 1)
            if quiet > allowed:
                yield from self._lost(seat, "hang", f"did not return within {allowed:g} s")
        elif quiet > THINK_TIMEOUT:
            raise HarnessError(f"a worker was silent for {THINK_TIMEOUT:.0f} s outside of the backend")

    def _cut(self, seats: Sequence[_Seat]) -> Iterator[tuple[Job, Event]]:
        """Stop the jobs that are under way; what has a verdict stays. All are killed first: the end of a process takes time."""
        for seat in seats:
            seat.worker.kill()
        for seat in seats:
            assert seat.first is not None
            call = seat.worker.calling.what if seat.worker.calling is not None else ""
            for event in self._give_up(seat, "budget", "the budget ended during the scenario"
                                       + (f", within {call}" if call else ""), "stopped"):
                yield seat.first, event

    def _give_up(self, seat: _Seat, what: str, reason: str, status: str = "") -> Iterator[Event]:
        """End a job without blame: a note says what was not verified."""
        job = seat.job
        assert job is not None
        yield Noted(scenario=job.scenario, backend=job.backend, recipe=job.case.recipe, what=what, reason=reason)
        yield ScenarioFinished(scenario=job.scenario, status=status or ("findings" if seat.blamed else "clean"),
                               executions=seat.executions, seconds=time.monotonic() - seat.started)
        seat.job = None
        seat.worker.stop()

    def _lost(self, seat: _Seat, kind: Kind, what: str) -> Iterator[Event]:
        """End a job whose worker is gone or stuck. A sweep goes on with its other tactics, in another process."""
        job, calling = seat.job, seat.worker.calling or Calling("between calls")
        assert job is not None
        explained = seat.blamed and seat.worker.lost_device  # by the crash that broke the device
        numbers = {"call": calling.what} | _launched(seat)
        seat.worker.stop()
        seat.blamed = False
        if not explained:
            finding = Finding(kind=kind, check=calling.check, backend=job.backend, case=job.case, tactic=calling.tactic,
                              sentence=f"{calling.what} {what}", numbers=numbers)
            yield Found(scenario=job.scenario, finding=finding.to_data())
        if job.swept is not None and calling.tactic not in job.swept | seat.swept:
            yield Swept(scenario=job.scenario, tactic=calling.tactic, outcome=kind)
            seat.lost, seat.job = kind, replace(job, swept=job.swept | seat.swept | {calling.tactic})
            seat.launch()
            return
        seat.job = None
        yield ScenarioFinished(scenario=job.scenario, status=kind, executions=seat.executions,
                               seconds=time.monotonic() - seat.started)


def _over(remaining: Remaining) -> bool:
    left = remaining()
    return left is not None and left <= 0


def last_launch(events: Iterable[Event]) -> list[Event]:
    """``events`` of one job without those of launches that were void."""
    kept: list[Event] = []
    for event in events:
        if isinstance(event, Relaunched):
            kept.clear()
        else:
            kept.append(event)
    return kept


def _launched(seat: _Seat) -> dict[str, object]:
    """The last jobs of the process, the present one at the end, for the numbers of a finding.

    A case that is in the journal, under the number of its scenario, is named by its fingerprint; another one is whole.
    """
    return {"launched": [{"scenario": job.scenario, "backend": job.backend,
                          "case": job.case.fingerprint if job.scenario >= 0 else job.case.model_dump(mode="json", by_alias=True)}
                         for job in seat.worker.launched]}
