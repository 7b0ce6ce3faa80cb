"""The queue of a round. Workers pull; what scenarios share (the tensors of a case and its oracle, the weights of a layer and what
a backend prepared of them) stays with one worker while the others have work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import groupby
from typing import Generic, Protocol, TypeVar

from moeguard.engine.worker import Job

Entry = TypeVar("Entry")


class Queue(Protocol):
    """Where workers get their jobs."""

    def take(self, worker: int) -> Job | None:
        """The next job of ``worker``, one of 0, 1, ...; None when there is none left."""


class Listed:
    """Jobs in their order, whoever asks."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = iter(jobs)

    def take(self, worker: int) -> Job | None:
        """The next one."""
        return next(self._jobs, None)


class Grouped(Generic[Entry]):
    """Entries in groups, those in a row with one ``key``. A worker ends its group before it begins the next one in order; when
    all are begun it takes from the end of the longest.

    launch: makes the job of an entry when its turn has come, or None where it is not launched.
    """

    def __init__(self, entries: Iterable[Entry], key: Callable[[Entry], Hashable], launch: Callable[[Entry], Job | None]) -> None:
        self._groups = deque(deque(group) for _, group in groupby(entries, key))
        self._begun: dict[int, deque[Entry]] = {}
        self._launch = launch

    def take(self, worker: int) -> Job | None:
        """The job of the next entry that is launched."""
        return next((job for entry in self._entries(worker) if (job := self._launch(entry)) is not None), None)

    def _entries(self, worker: int) -> Iterator[Entry]:
        while True:
            if not self._begun.get(worker) and self._groups:
                self._begun[worker] = self._groups.popleft()
            mine = self._begun.get(worker)
            longest = max(self._begun.values(), key=len, default=None)
            if mine:
                yield mine.popleft()
            elif longest:
                yield longest.pop()
            else:
                return


def queue_of(jobs: Iterable[Job] | Queue) -> Queue:
    """``jobs`` as a queue."""
    return Listed(jobs) if isinstance(jobs, Iterable) else jobs
