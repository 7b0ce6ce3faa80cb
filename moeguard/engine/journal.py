"""The journal: append-only, one event a line, the source from which everything but the manifest is derived.

A line is with the operating system before ``append`` returns, so no kill of a process loses it. It is forced to the disk
at most once a second, at the end of a round and when the journal is closed: a reboot costs the last second, whose
scenarios a resume runs again. A line counts when it is whole; what a write left of one that is not is cut off at once, or
by the next process that opens the journal.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from moeguard.core.errors import RunDirectoryError
from moeguard.core.events import Event, ForeignEvent, ScenarioStarted, parse

#: Seconds between two syncs to the disk.
SYNC_EVERY = 1.0


class Journal:
    """Appends events to a file that no other process may hold. Raises RunDirectoryError when it cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._end = _whole(path)
            os.ftruncate(self._file, self._end)
            self._sync(path.parent)
        except BlockingIOError:
            self._close()
            raise RunDirectoryError(f"{path}: in use by another process; allowed: one at a time") from None
        except OSError as error:
            self._close()
            raise self._unwritable(error) from None

    def append(self, event: Event) -> None:
        """Write one event, whole or not at all. Raises RunDirectoryError when the disk is full or gone."""
        data = event.to_json().encode() + b"\n"
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._file, data[done:], self._end + done)
            self._end += done
            if time.monotonic() - self._synced >= SYNC_EVERY:
                self.sync()
        except BaseException as error:  # Ctrl-C included: the next line must not follow a part of this one
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            if isinstance(error, OSError):
                raise self._unwritable(error) from None
            raise

    def sync(self) -> None:
        """Force what was written to the disk. Raises RunDirectoryError when that fails."""
        try:
            self._sync()
        except OSError as error:
            raise self._unwritable(error) from None

    def _sync(self, folder: Path | None = None) -> None:
        os.fdatasync(self._file)
        self._synced = time.monotonic()
        if folder is not None:
            sync_folder(folder)

    def _unwritable(self, error: OSError) -> RunDirectoryError:
        return RunDirectoryError(f"{self._path}: cannot be written ({error.strerror}); what is there can be resumed")

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(OSError):  # what does not fit on the disk was reported by append
            self._sync()
        self._close()


def read_journal(path: Path) -> list[Event]:
    """All events, in order. A scenario that was started again (after a kill) keeps its last attempt only.

    A last line that is damaged or lacks its newline is ignored. Raises RunDirectoryError with the line number of any other
    bad line, also of a last one that is whole but of another version: cutting it off would lose something.
    """
    events: list[Event] = []
    last_start: dict[int, int] = {}
    try:
        for event in _events(path):
            if isinstance(event, ScenarioStarted):
                last_start[event.scenario] = len(events)
            events.append(event)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunDirectoryError(f"{path}: cannot be read ({error.strerror})") from None
    return [event for index, event in enumerate(events) if index >= last_start.get(getattr(event, "scenario", -1), -1)]


def sync_folder(folder: Path) -> None:
    """Force the names in ``folder`` to the disk. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _events(path: Path) -> Iterator[Event]:
    damage = ""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if damage:
                raise RunDirectoryError(damage)
            if not line.endswith(b"\n"):
                return
            try:
                yield parse(line.decode("utf-8"))
            except (ValueError, RecursionError) as error:
                damage = f"{path}: line {number} is damaged ({str(error)[:80]})"
                if isinstance(error, ForeignEvent):
                    raise RunDirectoryError(damage) from None


def _whole(path: Path) -> int:
    """Bytes up to the end of the last line that is an event of any version; the lines before it are taken to be whole."""
    if not path.stat().st_size:
        return 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        end = data.rfind(b"\n") + 1
        start = data.rfind(b"\n", 0, max(0, end - 1)) + 1
        try:
            parse(data[start:end].decode("utf-8"))
        except ForeignEvent:
            return end
        except (ValueError, RecursionError):
            return start
        return end
