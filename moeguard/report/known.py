"""What the ledger says about the findings of a run: the entry that covers each, and the entries with what they covered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from moeguard.core.finding import Finding
from moeguard.ledger.standing import Standing

HEADER = ("entry", "reference", "backend", "until", "counts", "findings")


def item(standing: Standing, finding: Finding) -> dict[str, Any] | None:
    """JSON: ``id``, ``reference``, ``reason``, ``expires`` and ``absence`` of the entry that covers ``finding``.

    absence: why the entry does not count, so that the finding is not known; None when it is known. None without an entry.
    """
    lapsed = standing.lapsed(finding)
    entry = standing.get(finding.entry) if lapsed is None else lapsed[0]
    if entry is None:
        return None if finding.entry is None else {"id": finding.entry, "absence": None}
    return {"id": entry.id, "reference": entry.reference, "reason": entry.reason, "expires": entry.expires.isoformat(),
            "absence": None if lapsed is None else lapsed[1]}


def sentence(standing: Standing, finding: Finding) -> str:
    """``item`` for people; empty without an entry."""
    entry = item(standing, finding)
    if entry is None:
        return ""
    if entry["absence"] is not None:
        return f"Not known any more: {entry['id']} ({entry['reference']}) does not count, {entry['absence']}."
    more = f" ({entry['reference']}, until {entry['expires']}): {entry['reason']}" if "reference" in entry else "."
    return f"Known as {entry['id']}{more}"


def rows(standing: Standing, findings: Iterable[Finding]) -> list[tuple[str, str, str, str, str, int]]:
    """A row for each entry about the run's backends, under HEADER."""
    entries = [finding.entry for finding in findings]
    return [(entry.id, entry.reference, entry.backend, entry.expires.isoformat(), f"no: {why}" if why else "yes",
             entries.count(entry.id)) for entry, why in standing.entries]


def to_data(standing: Standing, findings: Iterable[Finding]) -> dict[str, Any]:
    """The JSON object ``ledger`` of a run: source, sha256, and each entry with the number of findings that it covered."""
    entries = [finding.entry for finding in findings]
    return {"source": standing.source, "sha256": standing.sha256, "entries": [
        {"id": entry.id, "reference": entry.reference, "backend": entry.backend, "expires": entry.expires.isoformat(),
         "absence": why, "findings": entries.count(entry.id)} for entry, why in standing.entries]}
