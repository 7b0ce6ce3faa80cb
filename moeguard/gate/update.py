"""Editing an allowlist from evidence: values change, what people wrote around them stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import tomlkit
from tomlkit.items import AoT, Table

from moeguard.core.cell import Cell
from moeguard.core.errors import AllowlistError
from moeguard.gate.allowlist import Allowlist
from moeguard.gate.blocklist import obstacle
from moeguard.gate.entry import ABSENT, Entry
from moeguard.gate.policy import WRONG_ANSWERS, Policy
from moeguard.gate.pool import Gathered
from moeguard.gate.quarantine import Offer, listed, offer
from moeguard.gate.requirement import failures
from moeguard.gate.waiver import Waiver

HEADER = "Which backend may be tuned for which recipe, with the evidence. Edited by: moeguard allow update"
TUNED_LEVELS = ("O1", "O2", "O3")


@dataclass(frozen=True, slots=True)
class Change:
    """cell: whose entry was written. before, after: its levels with autotuning; before is None for a new entry. quarantined:
    tactics that the entry keeps the tuner from. offer: tactics whose quarantine would be enough, None when there are none."""

    cell: Cell
    before: tuple[str, ...] | None
    after: tuple[str, ...]
    backend_use: str
    reason: str
    quarantined: tuple[str, ...] = ()
    offer: Offer | None = None

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return {"cell": self.cell.to_data(), "before": None if self.before is None else list(self.before),
                "after": list(self.after), "backend_use": self.backend_use, "reason": self.reason,
                "quarantined": list(self.quarantined), "quarantine_offer": self.offer and self.offer.to_data()}


def update(text: str | None, source: str, cells: Mapping[Cell, Gathered], policy: Policy, today: date, expires: date,
           reason: str | None = None, quarantine: Sequence[str] = ()) -> tuple[str, tuple[Change, ...]]:
    """The text of the allowlist with an entry for each of ``cells``, and what changed.

    An entry gets the levels whose requirements its evidence meets; the evidence recorded before is replaced, waivers,
    quarantined tactics and comments are kept. text: None for a new file. reason: for all entries, None to make one from the
    evidence. quarantine: tactics to keep the tuner from, besides those of the entries, in each cell that has them.
    Raises AllowlistError when the text is no allowlist, or a tactic cannot be quarantined.
    """
    unknown = [tactic for tactic in quarantine if not any(tactic in one.tally.tactics for one in cells.values())]
    if unknown:
        raise AllowlistError(f"--quarantine: {unknown[0]!r}; allowed: a tactic that the evidence has, such as '(3, -1)'")
    before = Allowlist.parse(text, source) if text is not None else Allowlist(source, ())
    document = tomlkit.parse(text) if text is not None else _fresh()
    if "cell" not in document:
        document.append("cell", tomlkit.aot())
    rows = document["cell"]
    if not isinstance(rows, AoT):
        raise AllowlistError(f"{source}: cell: an inline array cannot be edited; allowed: tables [[cell]]")
    places = {entry.cell: place for place, entry in enumerate(before.entries)}
    changes = []
    for cell, gathered in cells.items():
        entry = before.get(cell)
        values, change = _values(cell, gathered, policy, today, expires, reason, entry, quarantine, source)
        changes.append(change)
        if entry is None:
            rows.append(_table(values))
        else:
            _merge(rows[places[cell]], values)
    done = tomlkit.dumps(document)
    Allowlist.parse(done, source)
    return done, tuple(changes)


def _fresh() -> tomlkit.TOMLDocument:
    document = tomlkit.document()
    document.add(tomlkit.comment(HEADER))
    document.add("schema", tomlkit.item(1))
    return document


def _values(cell: Cell, gathered: Gathered, policy: Policy, today: date, expires: date, reason: str | None,
            entry: Entry | None, quarantine: Sequence[str], source: str) -> tuple[dict[str, Any], Change]:
    quarantined = _quarantined(cell, gathered, entry, quarantine)
    summary = gathered.summary(quarantined)
    failed = {level: [one for one in failures(cell, summary, level, policy)
                      if not _waived(one.name, entry.waiver if entry else (), today)] for level in TUNED_LEVELS}
    if any(one.name == "open_findings" for one in failed["O2"]):
        failed["O3"] += failed["O2"]  # O3 does what O2 does
    levels = [level for level in TUNED_LEVELS if not failed[level]]
    avoid = any(one.tactic == "default" and one.kind in WRONG_ANSWERS for one in summary.open_findings)
    levels = [] if avoid else levels
    without = f"; quarantined: {listed(quarantined)}" if quarantined else ""
    why = reason or (f"{summary.failures} failures in {summary.cases} distinct cases{without}" if levels
                     else "; ".join(one.sentence for one in failed["O2"] or failed["O1"] or failed["O3"]))
    use = "avoid" if avoid else "ok"
    identity = {name: value or ABSENT for name, value in cell.to_data().items()}
    kept = {"quarantined": quarantined} if quarantined or (entry and entry.quarantined) else {}
    data = {**identity, "autotune": "on" if levels else "off", "backend_use": use, "levels": levels, **kept,
            "expires": expires, "reason": why, "evidence": summary.to_table()}
    offered = None if levels else offer(cell, summary, source)
    return data, Change(cell, tuple(entry.levels) if entry else None, tuple(levels), use, why, tuple(quarantined), offered)


def _quarantined(cell: Cell, gathered: Gathered, entry: Entry | None, more: Sequence[str]) -> list[str]:
    """Tactics of the entry, and those of ``more`` that the evidence has. Raises AllowlistError when one cannot be blocked."""
    here = [tactic for tactic in more if tactic in gathered.tally.tactics]
    every = list(dict.fromkeys([*(entry.quarantined if entry else ()), *here]))
    for tactic in here:
        found = obstacle(cell.backend, tactic, every)
        if found is not None:
            raise AllowlistError(f"--quarantine: {found}")
    return every


def _waived(name: str, waivers: list[Waiver] | tuple[()], today: date) -> bool:
    return any(waiver.requirement == name and waiver.expires >= today for waiver in waivers)


def _table(values: Mapping[str, Any]) -> Table:
    table = tomlkit.table()
    for name, value in values.items():
        table.append(name, _item(value))
    return table


def _item(value: Any) -> Any:
    if isinstance(value, dict):
        return _table(value)
    if isinstance(value, list):
        array = tomlkit.array()
        for one in value:
            if isinstance(one, dict):
                inline = tomlkit.inline_table()
                inline.update(one)
                array.append(inline)
            else:
                array.append(one)
        return array.multiline(bool(value) and isinstance(value[0], dict))
    return tomlkit.item(value)


def _merge(table: Any, values: Mapping[str, Any]) -> None:
    """Set ``values`` in ``table``; a table keeps its comments, values that are equal are left as they are written."""
    for name, value in values.items():
        if name not in table:
            table[name] = _item(value)
        elif isinstance(value, dict):
            for gone in [key for key in table[name] if key not in value]:
                del table[name][gone]
            _merge(table[name], value)
        elif table[name] != value:
            table[name] = _item(value)
