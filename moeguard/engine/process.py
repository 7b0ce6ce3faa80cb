"""One worker process as its parent sees it: started by spawn, listened to, and told apart when it ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from moeguard.checks.lost_device import DEVICE_LOST
from moeguard.checks.session import Calling
from moeguard.core.errors import HarnessError
from moeguard.core.events import Event, Usage
from moeguard.engine.probe import exit_name
from moeguard.engine.worker import Job, Settings, WorkerError, main

#: Jobs of a process that are remembered: the last one may die of what an earlier one did.
REMEMBERED = 16
#: Starts that may be killed from outside, one after another, before the guard gives up.
STARTS = 5
#: Seconds that a worker may take to start.
START_TIMEOUT = 180.0
#: Bytes that a process may take on after its first measurement, before another one takes its place: libraries keep what they
#: compile for each shape, and a campaign meets shapes without end. Stores, problems and judges of large cases take half of it.
GROWTH = 2 << 30
#: How a worker process is started.
CONTEXT: Any = multiprocessing.get_context("spawn")
#: Signals that do not come from a fault in the process itself.
FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP)


class WorkerProcess:
    """A process that runs jobs one after another; ``place`` is its number among its kin and settles its GPU.

    calling: the call into the backend that is under way. since: when something was last heard (monotonic seconds).
    launched: the last jobs of this process, the present one at the end. ready: whether it takes jobs. grown: whether it took on
    more than ``growth`` bytes, so that another should take its place between two jobs; never with None.
    """

    def __init__(self, settings: Settings, place: int = 0, growth: int | None = GROWTH) -> None:
        self._settings = replace(settings, visible=visible_device(place, settings.gpus))
        self._context, self._growth = CONTEXT, growth
        self._killed = 0
        self.process: BaseProcess | None = None
        self.launched: deque[Job] = deque(maxlen=REMEMBERED)
        self.calling: Calling | None = None
        self.ready, self.since = False, 0.0
        self.grown, self._resident = False, 0

    def start(self) -> None:
        """Start a fresh process, in the place of one that is gone or stuck; it says when it is ready."""
        self.stop()
        self.connection: Connection
        self.connection, theirs = self._context.Pipe()
        self.process = self._context.Process(target=main, args=(theirs, self._settings), daemon=True)
        with _holding_interrupt():
            self.process.start()
        theirs.close()
        self.calling = None
        self.launched.clear()
        self.ready, self.since = False, time.monotonic()
        self.grown, self._resident = False, 0

    def leave(self) -> None:
        """Tell the process to end once it waits for a job."""
        if self.process is not None:
            self.connection.close()

    def kill(self) -> None:
        """Have the process end at once, and do not wait for it."""
        self.leave()
        if self.process is not None:
            self.process.kill()

    def stop(self) -> None:
        """End the process, whatever it does."""
        if self.process is None:
            return
        self.leave()
        self.process.join(0.2)
        if self.process.is_alive():
            self.process.kill()
        self.process.join(5)

    def send(self, job: Job) -> None:
        """Have ``job`` run. Raises EOFError when the process is gone."""
        self.launched.append(job)
        self.calling, self.since = None, time.monotonic()
        try:
            self.connection.send(job)
        except OSError as error:
            raise EOFError from error

    def receive(self) -> Event | None:
        """Take one message. Raises EOFError when the process is gone, HarnessError when the guard failed in it."""
        try:
            message = self.connection.recv()
        except OSError as error:  # also one that ended in the middle of a message
            raise EOFError from error
        self.since = time.monotonic()
        if isinstance(message, WorkerError):
            raise HarnessError(message.text)
        if message == "ready":
            self.ready, self._killed = True, 0
        elif message is None or isinstance(message, Calling):
            self.calling = message
        else:
            assert isinstance(message, Event)
            self._weigh(message)
            return message
        return None

    def _weigh(self, event: Event) -> None:
        if self._growth is not None and isinstance(event, Usage) and event.resident is not None:
            self._resident = self._resident or event.resident
            self.grown = event.resident > self._resident + self._growth

    def check_start(self) -> None:
        """Raise HarnessError when the process takes too long to become ready."""
        if time.monotonic() - self.since > START_TIMEOUT:
            raise HarnessError(f"a worker did not start within {START_TIMEOUT:.0f} s")

    def restart_early(self) -> None:
        """Replace a process that ended before it was ready. Raises HarnessError unless it was killed from outside."""
        self._killed += 1
        if not self.from_outside or self._killed >= STARTS:
            raise HarnessError(f"a worker ended at start with exit code {self._exit_code}")
        self.start()

    @property
    def alive(self) -> bool:
        """Whether the process is there."""
        return self.process is not None and self.process.is_alive()

    @property
    def ending(self) -> str:
        """How the process ended: a signal, or its exit code."""
        return exit_name(self._exit_code)

    @property
    def from_outside(self) -> bool:
        """Whether it was ended by a signal that someone else, or the system, sent."""
        return self._exit_code in FROM_OUTSIDE

    @property
    def lost_device(self) -> bool:
        """Whether it ended because its GPU context was broken for good."""
        return self._exit_code == DEVICE_LOST

    @property
    def _exit_code(self) -> int | None:
        assert self.process is not None
        self.process.join(5)
        return self.process.exitcode


def visible_device(place: int, gpus: tuple[str, ...]) -> str | None:
    """What ``CUDA_VISIBLE_DEVICES`` is to a worker: worker i gets GPU i modulo their number; None leaves it as it is."""
    return gpus[place % len(gpus)] if len(gpus) > 1 else None


def out_of_memory_kills() -> int:
    """Processes that this machine, or this container, has killed because memory ran out; 0 where nobody counts."""
    total = 0
    for file in ("/proc/vmstat", "/sys/fs/cgroup/memory.events"):
        with contextlib.suppress(OSError):
            total += sum(int(line.split()[1]) for line in Path(file).read_text().splitlines() if line.startswith("oom_kill "))
    return total


def visible_gpus(device: str) -> tuple[str, ...]:
    """The GPUs of this host that workers share, as ``CUDA_VISIBLE_DEVICES`` names them: those like the first one.

    Evidence of different GPUs is never mixed. Empty for ``cpu``.
    """
    if device != "cuda":
        return ()
    import torch

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    names = named[:count] if named else [str(number) for number in range(count)]
    models = [torch.cuda.get_device_properties(number).name for number in range(count)]
    return tuple(name for name, model in zip(names, models, strict=False) if model == models[0])


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
