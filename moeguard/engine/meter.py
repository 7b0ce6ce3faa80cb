"""What a worker process uses: memory, time and executions, told every few seconds at the end of a scenario."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from moeguard.checks.subject import Resources
from moeguard.core.events import Event, Executed, ScenarioFinished, Usage

#: Seconds between two measurements.
EVERY = 10.0


class Meter:
    """Counts what passes from the worker to its parent, and adds Usage to it. device: ``cpu`` or ``cuda``."""

    def __init__(self, device: str, resources: Resources) -> None:
        self._device, self._resources = device, resources
        self._worker = secrets.token_hex(4)
        self._scenarios = self._executions = 0
        self._start = self._told = time.monotonic()
        self._cpu = time.process_time()

    def with_usage(self, event: Event) -> Iterator[Event]:
        """``event``; before the end of a scenario a Usage, when the last one is EVERY seconds old."""
        if isinstance(event, Executed):
            self._executions += event.count
        elif isinstance(event, ScenarioFinished):
            self._scenarios += 1
            now = time.monotonic()
            if now - self._told >= EVERY:
                self._told = now
                give_back()
                yield self._usage(now)
        yield event

    def _usage(self, now: float) -> Usage:
        gpu = self._device == "cuda"
        return Usage(worker=self._worker, scenarios=self._scenarios, executions=self._executions,
                     seconds=round(now - self._start, 3), cpu_seconds=round(time.process_time() - self._cpu, 3),
                     resident=resident_bytes(), gpu_allocated=torch.cuda.memory_allocated() if gpu else None,
                     gpu_reserved=torch.cuda.memory_reserved() if gpu else None, bank=self._resources.counters())


def give_back() -> None:
    """Free what only cycles of references hold, and return free memory to the system, and what torch's cache holds of a GPU.

    Python looks for old cycles seldom, however many bytes of tensors hang on them; a backend may leave some in every call. What
    lies between tensors of many sizes would pile up (glibc's malloc_trim).
    """
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int | None:
    """Bytes of memory that this process has now; None where the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None
