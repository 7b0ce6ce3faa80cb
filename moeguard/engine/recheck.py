"""The ledger checked against this machine: whether each known finding still occurs on its own case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from moeguard.backends import registry
from moeguard.core.events import Found, Noted, ScenarioFinished
from moeguard.core.finding import Finding
from moeguard.engine.pool import Pool
from moeguard.engine.worker import Job, Settings
from moeguard.ledger.entry import Entry
from moeguard.ledger.standing import Standing

#: Times that an entry's case is run before the finding counts as gone: some depend on what memory held before.
TRIES = 3
OCCURRED, GONE, NOT_APPLICABLE = "occurred", "no longer occurs", "not applicable"


@dataclass(frozen=True, slots=True)
class Recheck:
    """What became of one entry. status: OCCURRED, GONE or NOT_APPLICABLE, with its reason.

    findings: those that the entry covers. others: those that it does not, on the same case.
    """

    entry: Entry
    status: str
    reason: str
    findings: tuple[Finding, ...] = ()
    others: tuple[Finding, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return {"id": self.entry.id, "backend": self.entry.backend, "recipe": self.entry.case.recipe,
                "reference": self.entry.reference, "expires": self.entry.expires.isoformat(),
                "status": self.status.replace(" ", "_"), "reason": self.reason,
                "findings": [_brief(one) for one in self.findings], "others": [_brief(one) for one in self.others]}


def recheck(standing: Standing, settings: Settings, *, timeout: float = 10.0, tries: int = TRIES,
            progress: Callable[[str, int, int], None] = lambda name, done, total: None) -> list[Recheck]:
    """Run every entry that counts, in a worker. timeout: seconds of one backend call. progress: told (id, done, total)."""
    results = {entry.id: Recheck(entry, NOT_APPLICABLE, reason) for entry, reason in _unfit(standing)}
    fit = [entry for entry, _ in standing.entries if entry.id not in results]
    if fit:
        with Pool(settings, 1, timeout) as pool:
            for number, entry in enumerate(fit):
                progress(entry.id, number, len(fit))
                results[entry.id] = _one(pool, entry, tries)
    return [results[entry.id] for entry, _ in standing.entries]


def exit_code(results: list[Recheck]) -> int:
    """0 when each entry that applies occurred, 1 when one is gone, 3 when none could be run."""
    states = {one.status for one in results}
    return 1 if GONE in states else 0 if OCCURRED in states else 3


def _unfit(standing: Standing) -> Iterator[tuple[Entry, str]]:
    for entry, absence in standing.entries:
        reason = absence
        if reason is None:
            known = entry.backend in registry.names()
            reason = registry.unavailable(entry.backend) if known else f"no backend is called {entry.backend}"
        if reason is not None:
            yield entry, reason


def _one(pool: Pool, entry: Entry, tries: int) -> Recheck:
    """Run the case until the finding occurs, at most ``tries`` times."""
    others: dict[str, Finding] = {}
    for attempt in range(1, tries + 1):
        events = pool.run_one(Job(-1, entry.backend, entry.case))
        seen = [Finding.model_validate(event.finding) for event in events if isinstance(event, Found)]
        covered = tuple(one for one in seen if entry.covers(one))
        others |= {one.fingerprint: one for one in seen if one not in covered}
        if covered:
            times = "" if attempt == 1 else f", in run {attempt}"
            return Recheck(entry, OCCURRED, f"{covered[0].kind}: {covered[0].sentence}{times}", covered, tuple(others.values()))
        if any(isinstance(event, ScenarioFinished) and event.status == "refused" for event in events):
            reasons = [event.reason for event in events if isinstance(event, Noted)]
            return Recheck(entry, NOT_APPLICABLE, "; ".join(reasons) or "the backend does not support the case")
        if not seen and not any(isinstance(event, ScenarioFinished) and event.executions for event in events):
            reasons = [event.reason for event in events if isinstance(event, Noted)]
            return Recheck(entry, NOT_APPLICABLE, "; ".join(reasons) or "nothing was executed")
    reason = f"not seen in {tries} runs of its case" if tries > 1 else "not seen when its case was run"
    if others:
        reason += f", which show {', '.join(sorted({one.kind for one in others.values()}))} instead"
    return Recheck(entry, GONE, reason, (), tuple(others.values()))


def _brief(finding: Finding) -> dict[str, Any]:
    return {"kind": finding.kind, "tactic": finding.tactic, "sentence": finding.sentence}
