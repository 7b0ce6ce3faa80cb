"""The directory of a spot check: a manifest, a journal of answers without any text, and logs; all else follows from them."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from moeguard import __version__
from moeguard.core.errors import RunDirectoryError
from moeguard.evals.options import Options

SCHEMA, KIND = 1, "eval"
MANIFEST, JOURNAL = "manifest.json", "answers.jsonl"
Event = dict[str, Any]
#: Fields that an event has beside its name, by that.
FIELDS: dict[str, dict[str, type]] = {
    "answers": {"arm": str, "chunk": int, "repeat": int, "retries": dict, "answers": list}, "lost": {"reason": str},
    "void": {"reason": str}, "server": {"arm": str, "tokens": list}}


@dataclass(frozen=True, slots=True)
class Record:
    """path, manifest (JSON data)."""

    path: Path
    manifest: Mapping[str, Any]

    @classmethod
    def create(cls, path: Path | None, options: Options, environment: Mapping[str, Any]) -> Record:
        """A new one at ``path``, or at ``reports/<id>``. Raises RunDirectoryError when that is impossible."""
        started = datetime.now(timezone.utc)
        run_id = f"{started:%Y%m%d-%H%M%S}-eval-{options.task}-{secrets.token_hex(3)}"
        target = path or Path("reports") / run_id
        manifest = {"schema": SCHEMA, "kind": KIND, "run_id": run_id, "moeguard": __version__,
                    "started": started.isoformat(timespec="seconds"), "environment": dict(environment),
                    "options": options.model_dump(mode="json")}
        try:
            if target.exists() and (not target.is_dir() or any(target.iterdir())):
                raise RunDirectoryError(f"--out: {target} is not empty; allowed: a new or empty folder, or --resume")
            target.mkdir(parents=True, exist_ok=True)
            temporary = target / f".manifest.{os.getpid()}.tmp"
            temporary.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
            os.replace(temporary, target / MANIFEST)
        except OSError as error:
            raise RunDirectoryError(f"--out: {target} cannot be written ({error.strerror})") from None
        return cls(target, manifest)

    @classmethod
    def open(cls, path: Path) -> Record:
        """An existing one. Raises RunDirectoryError when it is none."""
        try:
            text = (path / MANIFEST).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise RunDirectoryError(f"{path}: no spot check (no readable {MANIFEST})") from None
        return cls(path, parse_manifest(text, str(path)))

    @property
    def options(self) -> Options:
        """The options that it was started with."""
        return Options.model_validate(self.manifest["options"])

    def events(self) -> list[Event]:
        """What the journal holds. A last line that is not whole is cut off. Raises RunDirectoryError about any other."""
        file = self.path / JOURNAL
        if not file.exists():
            return []
        data = file.read_bytes()
        whole = data[:data.rfind(b"\n") + 1]
        if whole != data:
            file.write_bytes(whole)
        return parse_journal(whole, str(file))

    def add(self, event: Event) -> None:
        """Append one event, whole, and on the disk when this returns."""
        with (self.path / JOURNAL).open("ab") as file:
            file.write(json.dumps(event).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def log(self, name: str) -> Path:
        """The file for the output of a process."""
        folder = self.path / "logs"
        folder.mkdir(exist_ok=True)
        return folder / f"{name}.log"


def parse_manifest(text: str, where: str) -> dict[str, Any]:
    """The manifest. Raises RunDirectoryError when it is none of a spot check of this version."""
    try:
        manifest = json.loads(text)
        if manifest["schema"] != SCHEMA or manifest["kind"] != KIND:
            raise ValueError
        Options.model_validate(manifest["options"])
        environment = manifest["environment"]
        told = [manifest["run_id"], environment["arch"]]
        known = [environment.get(name) for name in ("gpu", "cuda", "driver")] + [*environment.get("packages", {}).values()]
        if not all(isinstance(one, str) and one for one in told) or not all(one is None or isinstance(one, str) for one in known):
            raise TypeError
        datetime.fromisoformat(manifest["started"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RunDirectoryError(f"{where}: {MANIFEST} is none of a spot check, damaged, or of another version") from None
    assert isinstance(manifest, dict)
    return manifest


def parse_journal(data: bytes, where: str) -> list[Event]:
    """The events. Raises RunDirectoryError that names the first bad line."""
    events = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            event = json.loads(line)
            if not isinstance(event, dict) or not isinstance(event["event"], str):
                raise ValueError
            if not all(isinstance(event[name], kind) for name, kind in FIELDS.get(event["event"], {}).items()):
                raise ValueError
        except (ValueError, KeyError, RecursionError):
            raise RunDirectoryError(f"{where}: line {number} is damaged") from None
        events.append(event)
    return events
