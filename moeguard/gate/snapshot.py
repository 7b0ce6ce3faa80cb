"""The bytes that evidence is made of, read once: manifest, journal and cases of a run directory, and their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: Bytes of all files together.
LARGEST = 8 << 30
MANIFEST, JOURNAL, CASES = "manifest.json", "journal.jsonl", "cases"


@dataclass(frozen=True, slots=True)
class Stale:
    """A run directory that is no evidence: incomplete, unreadable, truncated, changed, or of an unknown version.

    path: as it was given. reason: one clause.
    """

    path: str
    reason: str

    @property
    def sentence(self) -> str:
        """One sentence for people."""
        return f"{self.path}: stale or tampered evidence: {self.reason}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """path: as it was given. files: content by name, ``manifest.json``, ``journal.jsonl`` and ``cases/<name>``."""

    path: str
    files: Mapping[str, bytes]

    @property
    def manifest(self) -> bytes:
        """Content of the manifest."""
        return self.files[MANIFEST]

    @property
    def journal(self) -> bytes:
        """Content of the journal."""
        return self.files[JOURNAL]

    @property
    def cases(self) -> dict[str, bytes]:
        """Content of the case files by name within ``cases/``."""
        return {name.partition("/")[2]: data for name, data in self.files.items() if "/" in name}

    @property
    def sha256(self) -> str:
        """The digest, see ``digest``."""
        return digest(self.files)


def digest(files: Mapping[str, bytes]) -> str:
    """sha256 over all files, sorted by name: for each ``NAME NUL LENGTH NUL CONTENT``, the name in UTF-8, the length in
    decimal digits. Neither the folder's own name nor times count."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(b"%s\0%d\0" % (name.encode("utf-8", "surrogateescape"), len(files[name])))
        total.update(files[name])
    return total.hexdigest()


def take(path: Path | str) -> Snapshot | Stale:
    """Read manifest, journal and cases of a run directory; other files in it do not count.

    ``cases/`` may be absent, as in a run without findings. Whatever is missing, unreadable, no plain file or too large
    gives ``Stale``.
    """
    folder = Path(path)
    names = [MANIFEST, JOURNAL]
    try:
        if (folder / CASES).is_symlink() or ((folder / CASES).exists() and not (folder / CASES).is_dir()):
            return Stale(str(path), f"{CASES} is not a folder")
        if (folder / CASES).is_dir():
            names += [f"{CASES}/{file.name}" for file in (folder / CASES).iterdir()]
        files, left = {}, LARGEST
        for name in names:
            file = folder / name
            if file.is_symlink() or not file.is_file():
                return Stale(str(path), f"{name} is missing" if not file.exists() else f"{name} is no plain file")
            left -= file.stat().st_size
            if left < 0:
                return Stale(str(path), f"more than {LARGEST} bytes")
            files[name] = file.read_bytes()
    except OSError as error:
        return Stale(str(path), f"cannot be read ({error.strerror})")
    return Snapshot(str(path), files)
