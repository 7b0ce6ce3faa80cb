"""The journal: append-only, one event a line, the source from which everything but the manifest is derived."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path
from types import TracebackType

from moeguard.core.errors import RunDirectoryError
from moeguard.core.events import Event, ScenarioStarted, parse


class Journal:
    """Appends events to a file; every line is handed to the operating system before ``append`` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("a", encoding="utf-8")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _cut_partial_line(path)
        except BlockingIOError:
            raise RunDirectoryError(f"{path}: in use by another process; allowed: one at a time") from None
        except OSError as error:
            raise RunDirectoryError(f"{path}: cannot be written ({error.strerror})") from None

    def append(self, event: Event) -> None:
        """Write one event. Raises RunDirectoryError when the disk is full or gone."""
        try:
            self._file.write(event.to_json() + "\n")
            self._file.flush()
        except OSError as error:
            raise RunDirectoryError(f"{self._path}: cannot be written ({error.strerror}); what is there can be resumed") from None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(OSError):  # what does not fit on the disk was reported by append
            self._file.close()


def read_journal(path: Path) -> list[Event]:
    """All events, in order. A scenario that was started again (after a kill) keeps its last attempt only.

    A last line without its newline is ignored. Raises RunDirectoryError with the line number of any other bad line.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunDirectoryError(f"{path}: cannot be read ({error.strerror})") from None
    lines = text.split(b"\n")[:-1]
    events: list[Event] = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(parse(line.decode("utf-8")))
        except (ValueError, RecursionError) as error:
            raise RunDirectoryError(f"{path}: line {number} is damaged ({str(error)[:80]})") from None
    last_start = {event.scenario: index for index, event in enumerate(events) if isinstance(event, ScenarioStarted)}
    return [event for index, event in enumerate(events) if index >= last_start.get(getattr(event, "scenario", -1), -1)]


def _cut_partial_line(path: Path) -> None:
    """Drop what a kill left of an unfinished last line."""
    if not path.exists():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)
