"""The worker process: backends run here, and here alone, so that a crash or a hang costs one process."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from moeguard.checks.lost_device import DEVICE_LOST, device_lost
from moeguard.checks.session import Calling
from moeguard.core.case import Case
from moeguard.core.events import Event, ScenarioFinished
from moeguard.engine.probe import end_with_parent

if TYPE_CHECKING:
    from moeguard.engine.meter import Meter


@dataclass(frozen=True, slots=True)
class Settings:
    """device ``cpu`` or ``cuda``; plugins: files to import; mutants: whether the selftest's backends are registered.

    log: file that takes what backends print, or None to discard it. gpus: the GPUs that the workers of this host share, as
    CUDA_VISIBLE_DEVICES names them; visible: the one of this worker, None to leave all.
    """

    device: str
    plugins: tuple[str, ...] = ()
    mutants: bool = False
    log: str | None = None
    gpus: tuple[str, ...] = ()
    visible: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One scenario to run. only: check groups, None for all. tactic: force this one.

    swept: of a sweep, the tactics (by ``str``, None for the default) that are done already; None when it is no sweep.
    """

    scenario: int
    backend: str
    case: Case
    only: frozenset[str] | None = None
    tactic: str | None = None
    swept: frozenset[str | None] | None = None


@dataclass(frozen=True, slots=True)
class WorkerError:
    """The guard itself failed inside the worker; text is the traceback."""

    text: str


def main(connection: Connection, settings: Settings) -> None:
    """Serve jobs until the other side closes. Sends Calling, None, events and, at the end of each job, ScenarioFinished."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    _redirect(settings.log)
    if settings.visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = settings.visible  # read when CUDA is first used, below
    try:
        import torch

        if settings.device == "cpu":
            torch.set_num_threads(1)
        from moeguard.backends import registry
        from moeguard.checks.subject import Resources
        from moeguard.engine.meter import Meter
        from moeguard.engine.scenario import run_scenario

        for plugin in settings.plugins:
            registry.load_plugin(plugin)
        if settings.mutants:
            from moeguard.mutants.catalogue import HEALTHY, MUTANTS

            for kind in (*MUTANTS, *HEALTHY):
                registry.register(kind())
        resources = Resources(settings.device)
        link = _Link(connection, settings.device, Meter(settings.device, resources))
        gc.collect()
        gc.freeze()  # what was imported stays, and need not be looked through each time
        connection.send("ready")
        while True:
            job: Job = connection.recv()
            try:
                run_scenario(registry.get(job.backend), job.case, resources, scenario=job.scenario, emit=link.send,
                             entering=link.entering, only=job.only, tactic=job.tactic, swept=job.swept)
            except KeyboardInterrupt:  # Ctrl-C does not reach this process: a backend raised it
                os._exit(1)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except BaseException:
        connection.send(WorkerError(traceback.format_exc()))
        raise


class _Link:
    """The way to the parent. A process that a backend forked is not the worker, and ends here."""

    def __init__(self, connection: Connection, device: str, meter: Meter) -> None:
        self._connection, self._process, self._device, self._meter = connection, os.getpid(), device, meter

    def send(self, event: Event) -> None:
        """Pass an event on. A worker that has lost its device ends instead of ending its job, so that no other is blamed."""
        self._mine()
        if isinstance(event, ScenarioFinished) and device_lost(self._device):
            os._exit(DEVICE_LOST)
        for one in self._meter.with_usage(event):
            self._connection.send(one)

    def entering(self, call: Calling | None) -> None:
        """Tell which call into the backend is under way."""
        self._mine()
        self._connection.send(call)

    def _mine(self) -> None:
        if os.getpid() != self._process:
            os._exit(0)


class _Unfailing(io.RawIOBase):
    """Writes to a file descriptor and reports success: a full disk is no fault of a backend that prints."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._handle

    def write(self, data: Any, /) -> int:
        with contextlib.suppress(OSError):
            os.write(self._handle, data)
        return len(data)


def _redirect(log: str | None) -> None:
    """Send stdout and stderr, also those of native code, away from the terminal."""
    try:
        target = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        target = os.open(os.devnull, os.O_WRONLY)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedWriter(_Unfailing(handle)), errors="replace", line_buffering=True) for handle in (1, 2))
