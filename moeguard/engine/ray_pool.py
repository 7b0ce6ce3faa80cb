"""Workers on the hosts of a Ray cluster: one actor a GPU, or a CPU slot, each with a worker process of its own.

The driver alone writes the journal. It hands a scenario to an actor that asks for one, and takes all its events at its
end; when the actor's host dies before, nothing of the scenario counts and another actor gets it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moeguard.core.cell import Cell
from moeguard.core.environment import fingerprint
from moeguard.core.errors import HarnessError, MoeguardError
from moeguard.core.events import Event, Found, Relaunched, ScenarioFinished
from moeguard.core.finding import Finding
from moeguard.engine.pool import LAUNCHES, POLL, Pool, Remaining, last_launch
from moeguard.engine.worker import Job, Settings

ALLOWED = "allowed: HOST:PORT of a running cluster, or auto"
#: Seconds to reach the cluster, and those that a campaign waits for a host when it has none.
CONNECT_TIMEOUT, HOST_TIMEOUT = 5.0, 180.0


@dataclass(frozen=True, slots=True)
class Site:
    """What a cluster offers. device: ``cuda`` when it has GPUs. slots: GPUs, or CPU slots. environment: of one of its hosts."""

    device: str
    slots: int
    environment: dict[str, Any]


def survey(address: str, device: str | None) -> Site:
    """Connect to the cluster and look at it. Raises MoeguardError when there is no ray, no cluster, or no such device."""
    ray = connect(address)
    resources = ray.cluster_resources()
    device = device or ("cuda" if resources.get("GPU", 0) >= 1 else "cpu")
    slots = int(resources.get("GPU" if device == "cuda" else "CPU", 0))
    if slots < 1:
        raise MoeguardError(f"--ray: the cluster at {address} has no {'GPU' if device == 'cuda' else 'CPU slot'}; allowed: a "
                            f"cluster with hosts for device {device}")
    return Site(device, slots, ray.get(ray.remote(fingerprint).options(**_needs(device)).remote(device)))


def connect(address: str) -> Any:
    """The module ``ray``, connected. Raises MoeguardError with one sentence when that is impossible."""
    try:
        import ray
    except ImportError:
        raise MoeguardError("--ray: ray is not installed; allowed: after pip install 'moeguard[ray]'") from None
    if ray.is_initialized():
        return ray
    if address != "auto":
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
        except (OSError, ValueError, OverflowError):
            raise MoeguardError(f"--ray: no Ray cluster answers at {address}; {ALLOWED}") from None
    import ray._private.worker

    ray._private.worker.print_to_stdstream = lambda *data, **named: None  # it prints the ends of hosts on our stdout
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, namespace="moeguard")
    except Exception as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise MoeguardError(f"--ray: no Ray cluster answers at {address} ({reason}); {ALLOWED}") from None
    return ray


class Host:
    """The actor: a pool of one worker process, and what the driver asks about its host."""

    def __init__(self, settings: Settings, timeout: float, files: dict[str, bytes]) -> None:
        vars(sys.modules["__main__"]).pop("__file__", None)  # or each worker process would import Ray's main program
        folder = Path(tempfile.mkdtemp(prefix="moeguard-"))
        self._settings = replace(settings, plugins=tuple(_at_hand(name, files, folder) for name in settings.plugins))
        self._pool = Pool(self._settings, 1, timeout)
        self._stopped = False

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

    def run(self, job: Job) -> list[Event]:
        """All events of one job, of its last launch."""
        self._stopped = False
        return last_launch(event for _, event in self._pool.run([job], lambda: 0.0 if self._stopped else None))

    def fresh(self, jobs: Sequence[Job]) -> list[list[Event]]:
        """See ``Workers.fresh``."""
        return self._pool.fresh(jobs)

    def stop(self) -> None:
        """End the job that is under way."""
        self._stopped = True


class _Seat:
    """An actor, which may still wait for a host, and the job that it holds."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
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
        self._ray = ray = connect(address)
        self._address, self._environment = address, environment
        files = {name: Path(name).read_bytes() for name in settings.plugins}
        actor = ray.remote(Host).options(max_concurrency=2, max_restarts=0, **_needs(settings.device))
        slots = int(ray.cluster_resources().get("GPU" if settings.device == "cuda" else "CPU", 0))
        self._seats = [_Seat(lambda: actor.remote(settings, timeout, files)) for _ in range(max(1, min(count, slots)))]
        self.left_out: list[str] = []

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *_: object) -> None:
        for seat in self._seats:
            with contextlib.suppress(Exception):
                self._ray.kill(seat.actor)
        self._ray.shutdown()

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

    def run(self, jobs: Iterable[Job], remaining: Remaining = lambda: None) -> Iterator[tuple[Job, Event]]:
        """Run jobs as actors come free, see ``Workers.run``."""
        queue, again, lost = iter(jobs), deque[Job](), dict[int, int]()
        heard = time.monotonic()
        while True:
            for seat in self._seats:
                if seat.ready and seat.job is None and (job := again.popleft() if again else next(queue, None)) is not None:
                    seat.job, seat.stopping, seat.ref = job, False, seat.actor.run.remote(job)
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
                    seat.actor.stop.remote()
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
        mine, its = (Cell.of("", "", one).to_data() | {"moeguard": one.get("packages", {}).get("moeguard")}
                     for one in (self._environment, environment))
        differing = [f"{field} {its[field]}" for field in mine if mine[field] != its[field]]
        if not differing:
            seat.ready = True
            return
        self.left_out.append(f"host {name} is left out: {', '.join(differing)}, unlike the run")
        self._seats.remove(seat)
        self._ray.kill(seat.actor)

    def _no_host(self) -> Any:
        reason = f" ({self.left_out[0]})" if self.left_out else ""
        raise MoeguardError(f"--ray: the cluster at {self._address} has no host left that can run the campaign{reason}; what is "
                            "there can be resumed")


def _needs(device: str) -> dict[str, float]:
    return {"num_gpus": 1, "num_cpus": 0} if device == "cuda" else {"num_cpus": 1}


def _at_hand(name: str, files: dict[str, bytes], folder: Path) -> str:
    """The plug-in where it is, or its copy where this host does not have it."""
    if os.path.exists(name):
        return name
    copy = folder / Path(name).name
    copy.write_bytes(files[name])
    return str(copy)


def _took_hosts(job: Job) -> list[Event]:
    finding = Finding(kind="crash", check="values", backend=job.backend, case=job.case,
                      sentence=f"the host was lost while it ran this case, {LAUNCHES} times in a row")
    return [Found(scenario=job.scenario, finding=finding.to_data()),
            ScenarioFinished(scenario=job.scenario, status="crash", executions=0, seconds=0.0)]
