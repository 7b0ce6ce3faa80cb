"""torch's process-wide defaults: what a backend sets holds inside the backend, and nowhere else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class _State:
    dtype: torch.dtype
    device: torch.device
    threads: int

    @classmethod
    def now(cls) -> _State:
        return cls(torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads())

    def enter(self, current: _State) -> None:
        if self.dtype != current.dtype:
            torch.set_default_dtype(self.dtype)
        if self.device != current.device:
            torch.set_default_device(None if self.device == torch.device("cpu") else self.device)
        if self.threads != current.threads:
            torch.set_num_threads(self.threads)


class Defaults:
    """Default dtype, default device and number of threads: the guard's own, and those that backends have set."""

    def __init__(self) -> None:
        self._ours = _State(torch.float32, torch.device("cpu"), torch.get_num_threads())
        self._theirs = self._ours

    @contextlib.contextmanager
    def of_guard(self) -> Iterator[None]:
        """Around a scenario: inside, the guard's defaults; outside, whatever held there or was set by a backend."""
        self._theirs = _State.now()
        self._ours.enter(self._theirs)
        try:
            yield
        finally:
            self._theirs.enter(self._ours)

    @contextlib.contextmanager
    def of_backend(self) -> Iterator[None]:
        """Around a call into a backend: inside, the backends' defaults, which are remembered for the next call."""
        self._theirs.enter(self._ours)
        try:
            yield
        finally:
            self._theirs = _State.now()
            self._ours.enter(self._theirs)
