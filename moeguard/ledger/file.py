"""The ledger as a TOML file, the packaged one or another."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from moeguard.core.case import Case, describe
from moeguard.core.errors import LedgerError
from moeguard.ledger.entry import Entry

SCHEMA = 1
#: Bytes of a ledger file.
LARGEST_FILE = 4 << 20
#: The name that stands for the ledger that comes with moeguard.
PACKAGED = "packaged"
_PACKAGED_FILE = Path(__file__).with_name("known.toml")


@dataclass(frozen=True, slots=True)
class Ledger:
    """source: ``packaged`` or the path. entries: in file order. sha256: of the entries with their cases."""

    source: str
    entries: tuple[Entry, ...]
    sha256: str

    @classmethod
    def load(cls, path: Path | str | None = None) -> Ledger:
        """Read a ledger; None or ``packaged`` for the packaged one. Raises LedgerError with one sentence."""
        source = PACKAGED if path is None else str(path)
        file = _PACKAGED_FILE if source == PACKAGED else Path(source)
        entries = tuple(_entries(source, file.parent, _table(source, file)))
        text = json.dumps([entry.to_data() for entry in entries], sort_keys=True)
        return cls(source, entries, hashlib.sha256(text.encode()).hexdigest())


def _table(source: str, file: Path) -> dict[str, Any]:
    try:
        if not file.is_file() or file.stat().st_size > LARGEST_FILE:
            raise LedgerError(f"{source}: cannot read the ledger; allowed: a regular file of at most {LARGEST_FILE} bytes")
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerError(f"{source}: cannot read the ledger ({type(error).__name__})") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise LedgerError(f"{source}: not valid TOML ({error})") from None
    if data.get("schema") != SCHEMA or isinstance(data["schema"], bool):
        raise LedgerError(f"{source}: schema {data.get('schema')!r} is not supported; allowed: {SCHEMA}")
    unknown = sorted(set(data) - {"schema", "entry"})
    if unknown:
        raise LedgerError(f"{source}: {unknown[0]}: unknown field; allowed: schema, entry")
    return data


def _entries(source: str, folder: Path, data: Mapping[str, Any]) -> list[Entry]:
    rows = data.get("entry", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise LedgerError(f"{source}: entry: allowed: tables [[entry]]")
    entries: list[Entry] = []
    for number, row in enumerate(rows, start=1):
        where = f"{source}: entry {number} ({row.get('id')})" if isinstance(row.get("id"), str) else f"{source}: entry {number}"
        if isinstance(row.get("case"), str):  # a case file beside the ledger
            row = row | {"case": Case.load(folder / row["case"]).model_dump(by_alias=True)}
        try:
            entry = Entry.model_validate(row)
        except ValidationError as error:
            raise LedgerError(f"{where}: {_problem(error)}") from None
        if any(entry.id == other.id for other in entries):
            raise LedgerError(f"{where}: id: used twice; allowed: an id of its own for each entry")
        entries.append(entry)
    return entries


def _problem(error: ValidationError) -> str:
    """The first problem; a field that does not exist is answered with those that do."""
    first = error.errors()[0]
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        return f"{first['loc'][0]}: unknown field; allowed: {', '.join(Entry.model_fields)}"
    return describe(error)
