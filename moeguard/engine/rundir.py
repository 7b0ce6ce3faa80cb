"""A run directory: manifest and journal, created whole, never mixed with another run."""

from __future__ import annotations

import json
import os
import secrets
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from moeguard import __version__
from moeguard.core.environment import fingerprint
from moeguard.core.errors import RunDirectoryError
from moeguard.core.events import Event
from moeguard.engine.journal import read_journal
from moeguard.engine.options import Options
from moeguard.ledger.file import Ledger
from moeguard.ledger.standing import Standing

SCHEMA = 1


class RunDirectory:
    """path, with ``manifest.json`` (JSON data) and ``journal.jsonl``."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path, self.manifest = path, manifest

    @classmethod
    def create(cls, path: Path | None, command: str, options: Options) -> RunDirectory:
        """Make a new one at ``path``, or at ``reports/<run-id>``. Raises RunDirectoryError when that is impossible.

        The manifest takes over what the ledger says today. Raises LedgerError when the ledger cannot be read.
        """
        started = datetime.now(timezone.utc)
        standing = Standing.of(Ledger.load(options.ledger), options.backends, started.date())
        run_id = f"{started:%Y%m%d-%H%M%S}-{command}-{secrets.token_hex(3)}"
        target = path or Path("reports") / run_id
        try:
            if target.exists() and (not target.is_dir() or any(target.iterdir())):
                held = "another run" if (target / "manifest.json").exists() else "other files"
                raise RunDirectoryError(f"--out: {target} holds {held}; allowed: a new or empty folder, or --resume for a run")
            fresh = not target.exists()
            target.mkdir(parents=True, exist_ok=True)
            manifest = {"schema": SCHEMA, "run_id": run_id, "moeguard": __version__, "command": command,
                        "options": options.to_data(), "environment": fingerprint(options.device),
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

    def events(self) -> list[Event]:
        """Events so far. Raises RunDirectoryError on a damaged journal."""
        return read_journal(self.journal)


def _write_manifest(target: Path, manifest: dict[str, Any], *, fresh: bool) -> None:
    """Whole or not at all; a folder that was made for it goes with it."""
    temporary = target / f".manifest.{os.getpid()}.tmp"
    try:
        temporary.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        os.replace(temporary, target / "manifest.json")
    except BaseException:
        temporary.unlink(missing_ok=True)
        if fresh:
            target.rmdir()
        raise
