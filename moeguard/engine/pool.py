"""A pool of worker processes with time-outs: what happened to each job, as events, whatever the backend does."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait

from moeguard.checks.lost_device import DEVICE_LOST
from moeguard.checks.session import Calling
from moeguard.core.errors import HarnessError
from moeguard.core.events import Event, Executed, Found, ScenarioFinished, Swept
from moeguard.core.finding import Finding, Kind
from moeguard.engine.probe import exit_name
from moeguard.engine.worker import Job, Settings, WorkerError, main

#: Calls in which a library may load, compile or measure many kernels, and how many times the time-out they get.
SLOW, PATIENCE = frozenset({"prepare", "foreign_layouts", "tune", "tuning_caps", "workspace_bytes", "tactics"}), 12.0
#: Seconds that a worker may take to start, and to think between two calls into the backend.
START_TIMEOUT, THINK_TIMEOUT = 180.0, 600.0


@dataclass
class _Worker:
    connection: Connection
    process: multiprocessing.process.BaseProcess
    job: Job | None = None
    calling: Calling | None = None
    since: float = field(default_factory=time.monotonic)
    ready: bool = False
    executions: int = 0
    started: float = 0.0
    swept: set[str | None] = field(default_factory=set)
    lost: str = ""
    blamed: bool = False


class Pool:
    """``count`` persistent workers, started by spawn. timeout: seconds for one call into a backend."""

    def __init__(self, settings: Settings, count: int = 1, timeout: float = 10.0) -> None:
        self._settings, self._timeout = settings, timeout
        self._context = multiprocessing.get_context("spawn")
        self._workers = [self._start() for _ in range(count)]

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            self._stop(worker)

    def wait_ready(self) -> None:
        """Block until every worker has imported what it needs. Raises HarnessError when one does not start."""
        for worker in self._workers:
            self._until_ready(worker)

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Event]]:
        """Run jobs as workers come free; yields events as they arrive. Each job ends with ScenarioFinished."""
        queue = iter(jobs)
        self.wait_ready()
        for worker in self._workers:
            self._submit(worker, next(queue, None))
        while busy := [worker for worker in self._workers if worker.job is not None]:
            ready = wait([worker.connection for worker in busy], timeout=0.2)
            for worker in busy:
                job = worker.job
                assert job is not None
                events = self._drain(worker) if worker.connection in ready else self._overdue(worker)
                for event in events:
                    yield job, event
                if worker.job is None:
                    self._submit(worker, next(queue, None))

    def run_one(self, job: Job) -> list[Event]:
        """All events of one job."""
        return [event for _, event in self.run([job])]

    def _start(self) -> _Worker:
        mine, theirs = self._context.Pipe()
        process = self._context.Process(target=main, args=(theirs, self._settings), daemon=True)
        with _holding_interrupt():
            process.start()
        theirs.close()
        return _Worker(mine, process)

    def _until_ready(self, worker: _Worker) -> None:
        while not worker.ready:
            if not worker.connection.poll(START_TIMEOUT):
                raise HarnessError(f"a worker did not start within {START_TIMEOUT:.0f} s")
            try:
                self._receive(worker)
            except EOFError:
                raise HarnessError(f"a worker ended at start with exit code {worker.process.exitcode}") from None

    def _replace(self, worker: _Worker) -> None:
        """Put a fresh process in the place of one that is gone or stuck."""
        self._stop(worker)
        fresh = self._start()
        self._until_ready(fresh)
        worker.connection, worker.process = fresh.connection, fresh.process

    def _stop(self, worker: _Worker) -> None:
        worker.connection.close()
        worker.process.join(0.2)
        if worker.process.is_alive():
            worker.process.kill()
        worker.process.join(5)

    def _submit(self, worker: _Worker, job: Job | None) -> None:
        worker.job, worker.calling, worker.executions = job, None, 0
        worker.since = worker.started = time.monotonic()
        worker.swept, worker.lost, worker.blamed = set(), "", False
        if job is not None:
            if not worker.process.is_alive():  # gone between two jobs
                self._replace(worker)
            worker.connection.send(job)

    def _receive(self, worker: _Worker) -> Event | None:
        message = worker.connection.recv()
        worker.since = time.monotonic()
        if isinstance(message, WorkerError):
            raise HarnessError(message.text)
        if message == "ready":
            worker.ready = True
        elif message is None or isinstance(message, Calling):
            worker.calling = message
        else:
            assert isinstance(message, Event)
            return message
        return None

    def _drain(self, worker: _Worker) -> Iterator[Event]:
        """Everything that has arrived, up to the end of the job."""
        try:
            while worker.job is not None and worker.connection.poll():
                event = self._receive(worker)
                if isinstance(event, Executed):
                    worker.executions += event.count
                    event = replace(event, number=worker.executions)
                elif isinstance(event, Found):
                    worker.blamed = worker.blamed or event.finding["kind"] == "crash"
                elif isinstance(event, Swept):
                    worker.swept.add(event.tactic)
                elif isinstance(event, ScenarioFinished):
                    worker.job = None
                    if worker.lost:  # a sweep that went on in another process
                        event = replace(event, status=worker.lost, executions=worker.executions,
                                        seconds=time.monotonic() - worker.started)
                if event is not None:
                    yield event
        except (EOFError, ConnectionResetError):
            worker.process.join(5)
            yield from self._lost(worker, "crash", f"killed the process ({exit_name(worker.process.exitcode)})")

    def _overdue(self, worker: _Worker) -> Iterator[Event]:
        quiet = time.monotonic() - worker.since
        if worker.calling is not None:
            allowed = self._timeout * (PATIENCE if worker.calling.what in SLOW else 1)
            if quiet > allowed:
                yield from self._lost(worker, "hang", f"did not return within {allowed:g} s")
        elif quiet > THINK_TIMEOUT:
            raise HarnessError(f"a worker was silent for {THINK_TIMEOUT:.0f} s outside of the backend")

    def _lost(self, worker: _Worker, kind: Kind, what: str) -> Iterator[Event]:
        """End a job whose worker is gone or stuck, and replace the worker. A sweep goes on with its other tactics."""
        job, calling = worker.job, worker.calling or Calling("between calls")
        assert job is not None
        explained = worker.blamed and worker.process.exitcode == DEVICE_LOST  # by the crash that broke the device
        self._replace(worker)
        seconds = time.monotonic() - worker.started
        worker.job, worker.blamed = None, False
        if not explained:
            finding = Finding(kind=kind, check=calling.check, backend=job.backend, case=job.case, tactic=calling.tactic,
                              sentence=f"{calling.what} {what}", numbers={"call": calling.what})
            yield Found(scenario=job.scenario, finding=finding.to_data())
        if job.swept is not None and calling.tactic not in job.swept | worker.swept:
            yield Swept(scenario=job.scenario, tactic=calling.tactic, outcome=kind)
            worker.lost, worker.calling, worker.since = kind, None, time.monotonic()
            worker.job = replace(job, swept=job.swept | worker.swept | {calling.tactic})
            worker.connection.send(worker.job)
            return
        yield ScenarioFinished(scenario=job.scenario, status=kind, executions=worker.executions, seconds=seconds)


@contextlib.contextmanager
def _holding_interrupt() -> Iterator[None]:
    """Children inherit a blocked SIGINT, so that Ctrl-C reaches the parent alone, where it waits for the end of the block.

    multiprocessing's own tracker is started before: its start would end the block.
    """
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
