"""What a ledger says on one machine on one day, about the backends of one run. It is kept in the run's manifest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any

from moeguard.core.case import Case
from moeguard.core.finding import Finding
from moeguard.ledger.entry import Entry
from moeguard.ledger.file import Ledger


@dataclass(frozen=True, slots=True)
class Standing:
    """source, sha256: of the ledger. entries: those of the run's backends, each with why it does not count, or None."""

    source: str = ""
    sha256: str = ""
    entries: tuple[tuple[Entry, str | None], ...] = ()

    @classmethod
    def of(cls, ledger: Ledger, backends: Iterable[str], today: date) -> Standing:
        """Decide every entry about one of ``backends`` by the installed packages and by ``today``."""
        names = set(backends)
        return cls(ledger.source, ledger.sha256, tuple(
            (entry, entry.absence(today)) for entry in ledger.entries if names & set(entry.backends)))

    def mark(self, finding: Finding) -> Finding:
        """The finding with ``entry`` set to the id of the first entry that counts and covers it, else to None."""
        entry = next((one.id for one, why in self.entries if why is None and one.covers(finding)), None)
        return finding if finding.entry == entry else finding.model_copy(update={"entry": entry})

    def deadly(self, backend: str, case: Case) -> Entry | None:
        """The entry by which ``case`` kills or hangs the process, if one counts."""
        return next((one for one, why in self.entries
                     if why is None and one.crash_class and backend in one.backends and one.applies_to(case)), None)

    def lapsed(self, finding: Finding) -> tuple[Entry, str] | None:
        """For a finding that is not known: an entry that would cover it, and why it does not count."""
        if finding.entry is not None:
            return None
        return next(((one, why) for one, why in self.entries if why is not None and one.covers(finding)), None)

    def get(self, name: str | None) -> Entry | None:
        """The entry of this id."""
        return next((entry for entry, _ in self.entries if entry.id == name), None)

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return {"source": self.source, "sha256": self.sha256,
                "entries": [entry.to_data() | {"absence": why} for entry, why in self.entries]}

    @classmethod
    def from_data(cls, data: Any) -> Standing:
        """Inverse of ``to_data``; None gives an empty one. Raises ValueError, TypeError or KeyError on anything else."""
        if data is None:
            return cls()
        rows = [dict(row) for row in data["entries"]]
        reasons = [row.pop("absence") for row in rows]
        return cls(str(data["source"]), str(data["sha256"]), tuple(
            (Entry.model_validate(row), None if why is None else str(why)) for row, why in zip(rows, reasons, strict=True)))
