"""Workers on the hosts of a Ray cluster: one actor a GPU, or a CPU slot, each with a worker process of its own.

The driver alone writes the journal. It hands a scenario to an actor that asks for one, and takes all its events at its
end; when the actor's host dies before, nothing of the scenario counts and another actor gets it.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeguard.core.cell import Cell
from moeguard.core.environment import fingerprint
from moeguard.core.errors import HarnessError, MoeguardError
from moeguard.core.events import Event, Found, Relaunched, ScenarioFinished
from moeguard.core.finding import Finding
from moeguard.engine.cluster import HOST_TIMEOUT, connected, needs, slots_of
from moeguard.engine.pool import LAUNCHES, POLL, Pool, Remaining, last_launch
from moeguard.engine.queue import Queue, queue_of
from moeguard.engine.worker import Job, Settings

#: Seconds that a host gets to clean up.
CLOSE_TIMEOUT = 5.0


class Host:
    """The actor: a pool of one worker process, and what the driver asks about its host."""

    def __init__(self, settings: Settings, timeout: float, files: dict[str, bytes]) -> None:
        vars(sys.modules["__main__"]).pop("__file__", None)  # or each worker process would import Ray's main program
        self._folder = Path(tempfile.mkdtemp(prefix="moeguard-"))
        copies = tuple(_copied(name, files[name], self._folder) for name in settings.plugins)
        self._settings = replace(settings, plugins=copies)
        self._pool = Pool(self._settings, 1, timeout)
        self._stopped: int | None = None

    def environment(self) -> tuple[str, dict[str, Any]]:
        """Name and environment of this host, once its worker is ready."""
        self._pool.wait_ready()
        return socket.gethostname(), fingerprint(self._settings.device)

    def unavailable(self, backend: str) -> str | None:
        """Why ``backend`` cannot run on this host."""
        from moeguard.backends import registry

        for plugin in self._settings.plugins:
            registry.load_plugin(plugin)
        return self._pool.unavailable(backend)

    def run(self, job: Job, launch: int) -> list[Event]:
        """All events of one job, of its last launch here. launch: its number, by which it can be stopped."""
        return last_launch(event for _, event in self._pool.run([job], lambda: 0.0 if self._stopped == launch else None))

    def fresh(self, jobs: Sequence[Job]) -> list[list[Event]]:
        """See ``Workers.fresh``."""
        return self._pool.fresh(jobs)

    def stop(self, launch: int) -> None:
        """End this launch, also one that is still on its way here; none that follows it."""
        self._stopped = launch

    def close(self) -> None:
        """End the worker and remove its files."""
        self._pool.__exit__()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Seat:
    """An actor, which may still wait for a host, and the job that it holds."""

    def __init__(self, make: Callable[[], Any], place: int) -> None:
        self._make, self.place = make, place
        self.launch = 0
        self.renew()

    def renew(self) -> None:
        """Have a new actor, which begins where, and when, there is room."""
        self.actor = self._make()
        self.job: Job | None = None
        self.ready = self.stopping = False
        self.ref = self.actor.environment.remote()


class RayPool:
    """At most ``count`` actors on the cluster at ``address``. environment: of the run; hosts that differ are left out."""

    def __init__(self, address: str, settings: Settings, count: int, timeout: float, environment: dict[str, Any]) -> None:
        files = {name: Path(name).read_bytes() for name in settings.plugins}
        self._session = contextlib.ExitStack()
        self._ray = ray = self._session.enter_context(connected(address))
        self._address, self._environment = address, environment
        actor = ray.remote(Host).options(max_concurrency=2, max_restarts=0, **needs(settings.device))
        seats = max(1, min(count, slots_of(ray, settings.device)))
        self._seats = [_Seat(lambda: actor.remote(settings, timeout, files), place) for place in range(seats)]
        self.left_out: list[str] = []

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *_: object) -> None:
        with self._session:
            self._release(self._seats)

    def wait_ready(self) -> None:
        """Block until every actor that has a host is ready, and at least one is."""
        deadline = time.monotonic() + HOST_TIMEOUT
        while waiting := [seat for seat in self._seats if not seat.ready]:
            list(self._arrivals(waiting, POLL))  # no jobs are under way
            if time.monotonic() > deadline:
                if len(waiting) == len(self._seats):
                    self._no_host()
                return
        if not self._seats:
            self._no_host()

    def run(self, jobs: Iterable[Job] | Queue, remaining: Remaining = lambda: None) -> Iterator[tuple[Job, Event]]:
        """Run jobs as actors come free, see ``Workers.run``."""
        queue, again, lost = queue_of(jobs), deque[Job](), dict[int, int]()
        heard = time.monotonic()
        while True:
            for seat in self._seats:
                if not seat.ready or seat.job is not None:
                    continue
                if (job := again.popleft() if again else queue.take(seat.place)) is not None:
                    seat.launch += 1
                    seat.job, seat.stopping, seat.ref = job, False, seat.actor.run.remote(job, seat.launch)
            busy = [seat for seat in self._seats if seat.job is not None]
            if not busy and not again and any(seat.ready for seat in self._seats):
                return
            if any(seat.ready for seat in self._seats):
                heard = time.monotonic()
            elif time.monotonic() - heard > HOST_TIMEOUT:
                self._no_host()
            left = remaining()
            for seat in busy if left is not None and left <= 0 else ():
                if not seat.stopping:
                    seat.stopping = True
                    seat.actor.stop.remote(seat.launch)
            waiting = [seat for seat in self._seats if seat.job is not None or not seat.ready]
            for job, events in self._arrivals(waiting, POLL if left is None or left <= 0 else min(POLL, left)):
                if events is None:  # its host is gone
                    lost[job.scenario] = lost.get(job.scenario, 0) + 1
                    yield job, Relaunched(scenario=job.scenario)
                    if lost[job.scenario] < LAUNCHES:
                        again.append(job)
                    else:
                        for event in _took_hosts(job):
                            yield job, event
                    continue
                for event in events:
                    yield job, event

    def run_one(self, job: Job) -> list[Event]:
        """All events of one job."""
        return last_launch(event for _, event in self.run([job]))

    def fresh(self, jobs: Sequence[Job]) -> list[list[Event]]:
        """Run ``jobs`` in a process of their own, see ``Workers.fresh``."""
        done: list[list[Event]] = self._ask("fresh", list(jobs))
        return done

    def unavailable(self, backend: str) -> str | None:
        """Why ``backend`` cannot run on the hosts; None when it can."""
        self.wait_ready()
        reason: str | None = self._ask("unavailable", backend)
        return reason

    def _ask(self, method: str, *arguments: Any) -> Any:
        """The answer of any actor."""
        for _ in range(LAUNCHES):
            self.wait_ready()
            seat = next(seat for seat in self._seats if seat.ready)
            try:
                return self._ray.get(getattr(seat.actor, method).remote(*arguments))
            except self._ray.exceptions.RayTaskError as error:
                raise HarnessError(str(error)) from None
            except self._ray.exceptions.RayError:
                seat.renew()
        return self._no_host()

    def _arrivals(self, seats: list[_Seat], timeout: float) -> Iterator[tuple[Job, list[Event] | None]]:
        """What comes back within ``timeout`` seconds: jobs with their events, or with None when the host was lost."""
        by_ref = {seat.ref: seat for seat in seats}
        if not by_ref:
            self._no_host()
        self._ray.wait(list(by_ref), timeout=timeout)
        done, _ = self._ray.wait(list(by_ref), num_returns=len(by_ref), timeout=0)
        for ref in done:
            seat, job = by_ref[ref], by_ref[ref].job
            try:
                value = self._ray.get(ref)
            except self._ray.exceptions.RayTaskError as error:
                raise HarnessError(str(error)) from None
            except self._ray.exceptions.RayError:
                seat.renew()
                if job is not None:
                    yield job, None
                continue
            if job is None:
                self._welcome(seat, *value)
            else:
                seat.job = None
                yield job, value

    def _welcome(self, seat: _Seat, name: str, environment: dict[str, Any]) -> None:
        mine, its = (Cell.of("", "", one).to_data() | {"gpu": one.get("gpu"), "moeguard": one.get("packages", {}).get("moeguard")}
                     for one in (self._environment, environment))
        differing = [f"{field} {its[field]}" for field in mine if mine[field] != its[field]]
        seat.ready = True
        if not differing:
            return
        self.left_out.append(f"host {name} is left out: {', '.join(differing)}, unlike the run")
        self._seats.remove(seat)
        self._release([seat])

    def _release(self, seats: Sequence[_Seat]) -> None:
        """End actors; those that have a host clean up first."""
        with contextlib.suppress(Exception):
            if closing := [seat.actor.close.remote() for seat in seats if seat.ready]:
                self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_TIMEOUT)
        for seat in seats:
            with contextlib.suppress(Exception):
                self._ray.kill(seat.actor)

    def _no_host(self) -> Any:
        reason = f" ({self.left_out[0]})" if self.left_out else ""
        raise MoeguardError(f"--ray: the cluster at {self._address} has no host left that can run the campaign{reason}; what is "
                            "there can be resumed")


def _copied(name: str, data: bytes, folder: Path) -> str:
    """The plug-in of the driver, as a file of this host; whatever lies at its path here is none of ours."""
    place = folder / hashlib.sha256(data).hexdigest()
    place.mkdir(exist_ok=True)
    copy = place / Path(name).name
    copy.write_bytes(data)
    return str(copy)


def _took_hosts(job: Job) -> list[Event]:
    finding = Finding(kind="crash", check="values", backend=job.backend, case=job.case,
                      sentence=f"the host was lost while it ran this case, {LAUNCHES} times in a row")
    return [Found(scenario=job.scenario, finding=finding.to_data()),
            ScenarioFinished(scenario=job.scenario, status="crash", executions=0, seconds=0.0)]
