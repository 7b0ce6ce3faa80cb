"""A run directory: manifest and journal, created whole, never mixed with another run."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

from moeguard import __version__
from moeguard.core.case import Case
from moeguard.core.environment import fingerprint
from moeguard.core.errors import RunDirectoryError
from moeguard.core.events import Event, ScenarioStarted
from moeguard.engine.journal import read_journal, sync_folder
from moeguard.engine.options import Options
from moeguard.ledger.file import Ledger
from moeguard.ledger.standing import Standing

SCHEMA = 1


class RunDirectory:
    """path, with ``manifest.json`` (JSON data) and ``journal.jsonl``."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path, self.manifest = path, manifest

    @classmethod
    def create(cls, path: Path | None, command: str, options: Options,
               environment: dict[str, Any] | None = None) -> RunDirectory:
        """Make a new one at ``path``, or at ``reports/<run-id>``. Raises RunDirectoryError when that is impossible.

        environment: fingerprint of where the scenarios run, None for this machine. The manifest takes over
        what the ledger says today. Raises LedgerError when the ledger cannot be read.
        """
        started = datetime.now(timezone.utc)
        standing = Standing.of(Ledger.load(options.ledger), options.backends, started.date())
        run_id = f"{started:%Y%m%d-%H%M%S}-{command}-{secrets.token_hex(3)}"
        target = path or Path("reports") / run_id
        try:
            if target.exists() and (not target.is_dir() or any(not _leftover(file) for file in target.iterdir())):
                held = "another run" if (target / "manifest.json").exists() else "other files"
                raise RunDirectoryError(f"--out: {target} holds {held}; allowed: a new or empty folder, or --resume for a run")
            fresh = not target.exists()
            target.mkdir(parents=True, exist_ok=True)
            manifest = {"schema": SCHEMA, "run_id": run_id, "moeguard": __version__, "command": command,
                        "options": options.to_data(), "environment": environment or fingerprint(options.device),
                        "started": started.isoformat(timespec="seconds"), "ledger": standing.to_data()}
            _write_manifest(target, manifest, fresh=fresh)
        except OSError as error:
            raise RunDirectoryError(f"--out: {target} cannot be written ({error.strerror})") from None
        return cls(target, manifest)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Open an existing one. Raises RunDirectoryError when it is none, damaged, or of a newer version."""
        file = path / "manifest.json"
        try:
            manifest = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            raise RunDirectoryError(f"{path}: not a run directory (no readable manifest.json)") from None
        except (json.JSONDecodeError, RecursionError) as error:
            raise RunDirectoryError(f"{file}: not valid JSON ({error})") from None
        if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
            found = manifest.get("schema") if isinstance(manifest, dict) else None
            raise RunDirectoryError(f"{file}: schema {found!r} is not supported; allowed: {SCHEMA}")
        try:
            Options.from_data(manifest["options"])
            Standing.from_data(manifest.get("ledger"))
            manifest["run_id"], manifest["command"], manifest["environment"]["arch"]
        except (KeyError, TypeError, ValueError):
            raise RunDirectoryError(f"{file}: damaged (options, ledger, run_id, command or environment)") from None
        return cls(path, manifest)

    @property
    def options(self) -> Options:
        """The options that the run was started with."""
        return Options.from_data(self.manifest["options"])

    @property
    def standing(self) -> Standing:
        """What the ledger said when the run was started."""
        return Standing.from_data(self.manifest.get("ledger"))

    @property
    def journal(self) -> Path:
        """Path of the journal."""
        return self.path / "journal.jsonl"

    def case_finder(self) -> Callable[[int], Case | None]:
        """A function that gives the case of a scenario begun so far, or None. It reads the journal once, when first asked."""
        @cache
        def cases() -> dict[int, dict[str, Any]]:
            return {event.scenario: event.case for event in self.events() if isinstance(event, ScenarioStarted)}

        def find(scenario: int) -> Case | None:
            found = cases().get(scenario)
            return None if found is None else Case.model_validate(found)

        return find

    def tidy(self) -> None:
        """Remove what a kill left of files that were being written."""
        for file in (*self.path.glob(".*.tmp"), *self.path.glob("cases/.*.tmp")):
            file.unlink(missing_ok=True)

    def events(self) -> list[Event]:
        """Events so far. Raises RunDirectoryError on a damaged journal."""
        return read_journal(self.journal)


def _write_manifest(target: Path, manifest: dict[str, Any], *, fresh: bool) -> None:
    """Whole or not at all; a folder that was made for it goes with it."""
    temporary = target / f".manifest.{os.getpid()}.tmp"
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(json.dumps(manifest, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target / "manifest.json")
        sync_folder(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        if fresh:
            target.rmdir()
        raise


def _leftover(file: Path) -> bool:
    """Whether a process that was killed while it wrote a manifest has left ``file``."""
    return file.name.startswith(".manifest.") and file.suffix == ".tmp"
