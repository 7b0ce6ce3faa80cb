"""The outcome of a run, folded from its manifest and its events."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from moeguard.core.case import describe
from moeguard.core.errors import RunDirectoryError
from moeguard.core.events import Event, Found
from moeguard.core.finding import KINDS, Finding
from moeguard.ledger.standing import Standing
from moeguard.report import evidence, flatness, known, replay, sweep
from moeguard.report.history import History, gather
from moeguard.report.text import count, line

EXIT_CODES = {"clean": 0, "findings": 1, "inconclusive": 3}
INTERRUPTED = 130
#: The kind of finding that leaves open whether anything is wrong.
VACUOUS = "vacuous_autotune"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run amounts to. The same events in another order of scenarios give an equal outcome.

    manifest: the run's manifest. verdict: ``findings`` (any that fails the run, vacuous tunings aside), ``inconclusive``
    (nothing was executed, or a tuning was vacuous, known or not) or ``clean``. executions, cases: counts. refused: cases
    that every backend refused. seconds: first launch to last verdict. findings: one for each fingerprint.
    hits: how often each fingerprint was seen. cells, not_verified: JSON objects, see moeguard.report.evidence.
    tactics: rows of a sweep, see moeguard.report.sweep; None when the run is none.
    standing: what the ledger said when the run was started. flatness: whether cost and memory of the workers stayed flat.
    complete: the run came to its own end. interrupted: it was ended by Ctrl-C and not resumed to its end.
    """

    manifest: dict[str, Any]
    verdict: str
    executions: int
    cases: int
    refused: int
    seconds: float
    findings: tuple[Finding, ...]
    hits: dict[str, int]
    cells: tuple[dict[str, Any], ...]
    not_verified: tuple[dict[str, Any], ...]
    tactics: tuple[dict[str, Any], ...] | None
    complete: bool
    interrupted: bool
    standing: Standing
    flatness: flatness.Flatness

    @property
    def options(self) -> dict[str, Any]:
        """Options of the run, from the manifest."""
        return dict(self.manifest.get("options", {}))

    @property
    def settings(self) -> dict[str, Any]:
        """The options that mattered: where the cases were given, nothing was drawn by a profile and a seed."""
        given = self.options.get("cases")
        return {name: value for name, value in self.options.items() if not (given and name in ("profile", "seed"))}

    @property
    def failing(self) -> tuple[Finding, ...]:
        """The findings that fail the run: those that no ledger entry covers, or all when the run was strict."""
        return _failing(self.manifest, self.findings)

    @property
    def exit_code(self) -> int:
        """Exit code by contract: 0 clean, 1 findings, 3 inconclusive, 130 interrupted."""
        return INTERRUPTED if self.interrupted else EXIT_CODES[self.verdict]

    @property
    def sentence(self) -> str:
        """The outcome in one or two plain sentences."""
        number = sum(finding.known for finding in self.findings)
        ran = sum(cell["executions"] > 0 for cell in self.cells)
        found = (f"{count(len(self.findings), 'finding') if self.findings else 'No findings'}"
                 f"{f' ({number} known)' if number else ''}")
        more = f" ({self.refused:,} more {'was' if self.refused == 1 else 'were'} refused)" if self.refused else ""
        text = (f"{found} in {count(self.executions, 'execution')} of {count(self.cases - self.refused, 'case')}{more} "
                f"on {count(ran, 'cell')}.")
        if self.tactics is not None and self.verdict == "inconclusive" and self.executions:
            text = f"No tactic was forced, so none was verified. {text}"
        if self.executions == 0:
            text = (f"{found}: no call got as far as a verdict, so nothing else was verified." if self.findings
                    else "Nothing was executed, so nothing was verified.")
            if self.refused:
                text += f" {count(self.refused, 'case')} {'was' if self.refused == 1 else 'were'} refused."
        if self.verdict == "inconclusive" and _vacuous(self.findings):
            text = f"A tuning proved nothing, so what is tuned was not verified. {text}"
        if self.interrupted:
            return f"{text} The run was interrupted and can be resumed."
        return text if self.complete else f"{text} The run did not come to its end and can be resumed."

    @property
    def absent(self) -> dict[str, str]:
        """Backends that could not run, with the reason."""
        return evidence.absent(self.not_verified)

    def reasons(self, most: int = 5) -> list[str]:
        """Why things were not verified, a line each: backend, recipes, what, reason; what is beyond ``most`` is counted.

        Without a note, why the cells executed nothing. ``absent`` is left out.
        """
        absent = self.absent
        entries: dict[tuple[str, str], list[str]] = {}
        for note in self.not_verified:
            if note["what"] != evidence.ABSENT:
                entries.setdefault((str(note["backend"]), f"{note['what']}: {note['reason']}"), []).append(str(note["recipe"]))
        if not entries:
            for cell in self.cells:
                if cell["reason"] and cell["backend"] not in absent:
                    entries.setdefault((str(cell["backend"]), str(cell["reason"])), []).append(str(cell["recipe"]))
        lines = []
        for (backend, why), recipes in entries.items():
            where = f"{backend} {', '.join(recipe for recipe in dict.fromkeys(recipes) if recipe)}".strip()
            lines.append(line(f"{where}: {why}" if where else why))
        shown = lines if len(lines) <= most else lines[:most - 1]
        return shown + ([f"and {len(lines) - len(shown)} more reasons"] if len(lines) > most else [])

    def replay(self, finding: Finding, run_dir: str) -> str:
        """The shell command that runs the case of ``finding`` again."""
        return replay.command(finding, run_dir, [str(plugin) for plugin in self.options.get("plugins") or ()])

    def item(self, finding: Finding, run_dir: str) -> dict[str, Any]:
        """The JSON object of one finding, as in the ``findings`` of ``to_data``.

        ``ledger`` is there when an entry covers it, see moeguard.report.known.
        """
        entry = known.item(self.standing, finding)
        return {
            "kind": finding.kind,
            "fingerprint": finding.fingerprint,
            "backend": finding.backend,
            "recipe": finding.recipe,
            "tactic": finding.tactic,
            "case": finding.case.model_dump(mode="json", by_alias=True),
            "sentence": finding.sentence,
            "replay": self.replay(finding, run_dir),
            "reproduced": finding.reproduced,
            "known": finding.known,
            **({} if entry is None else {"ledger": entry}),
        }

    def to_data(self, run_dir: str) -> dict[str, Any]:
        """The JSON object of ``moeguard run --json``; a sweep adds ``tactics``, entries about its backends ``ledger``,
        workers that lived long enough ``flatness``.

        run_dir: the run directory as the reader can reach it.
        """
        return {
            "verdict": self.verdict,
            "run_dir": run_dir,
            "executions": self.executions,
            "cases": self.cases,
            "seconds": self.seconds,
            "findings": [self.item(finding, run_dir) for finding in self.findings],
            "cells": list(self.cells),
            "not_verified": list(self.not_verified),
            **({} if self.tactics is None else {"tactics": list(self.tactics)}),
            **({"flatness": self.flatness.to_data()} if self.flatness.workers else {}),
            **({"ledger": known.to_data(self.standing, self.findings)} if self.standing.entries else {}),
        }


def fold(manifest: dict[str, Any], events: Iterable[Event]) -> Outcome:
    """The outcome of the events of one run. Raises RunDirectoryError on events that no run can have written."""
    events = list(events)
    history = gather(events)
    findings, hits = _findings(history)
    cells = evidence.cells(manifest, history, findings)
    executions = sum(cell["executions"] for cell in cells)
    tactics = sweep.rows(history, manifest["options"].get("labels") or ()) if manifest["options"].get("sweep") else None
    wanted = manifest["options"].get("tactic")
    ended = bool(history.endings)  # an incomplete run proves nothing: what stopped it may be what it looked for
    verified = executions and ended and (wanted is None or any(wanted in cell["tactics"] for cell in cells))
    if tactics is not None:
        verified = any(row["tactic"] is not None and row["executions"] for row in tactics)
    draws: defaultdict[int, list[bool]] = defaultdict(list)
    for scenario in history.drawn:
        assert scenario.started is not None
        draws[scenario.started.draw].append(scenario.finished is not None and scenario.finished.status == "refused")
    wrong = any(finding.kind != VACUOUS for finding in _failing(manifest, findings))
    verdict = "findings" if wrong else "clean" if verified and not _vacuous(findings) else "inconclusive"
    return Outcome(
        manifest=manifest,
        verdict=verdict,
        executions=executions,
        cases=len(draws),
        refused=sum(all(draw) for draw in draws.values()),
        seconds=_seconds(history),
        findings=findings,
        hits=hits,
        cells=cells,
        not_verified=evidence.not_verified(history),
        tactics=tactics,
        complete=history.complete,
        interrupted=bool(history.endings) and not history.complete,
        standing=Standing.from_data(manifest.get("ledger")),
        flatness=flatness.judge(events),
    )


def _failing(manifest: dict[str, Any], findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    strict = bool(manifest.get("options", {}).get("strict"))
    return tuple(finding for finding in findings if strict or not finding.known)


def _vacuous(findings: tuple[Finding, ...]) -> bool:
    return any(finding.kind == VACUOUS for finding in findings)


def _seconds(history: History) -> float:
    if history.endings:
        return max(ending.seconds for ending in history.endings)
    return round(math.fsum(scenario.seconds for scenario in history.scenarios), 6)


def _findings(history: History) -> tuple[tuple[Finding, ...], dict[str, int]]:
    seen: defaultdict[str, list[tuple[Found, Finding]]] = defaultdict(list)
    for scenario in history.scenarios:
        for event in scenario.found:
            finding = _parse(event)
            seen[finding.fingerprint].append((event, finding))
    findings = sorted((_merge(group) for group in seen.values()), key=_rank)
    hits = {one.fingerprint: max(1, sum(not event.shrunk for event, _ in seen[one.fingerprint])) for one in findings}
    return tuple(findings), hits


def _parse(event: Found) -> Finding:
    try:
        return Finding.model_validate(event.finding)
    except ValidationError as error:
        raise RunDirectoryError(f"journal: finding of scenario {event.scenario}: {describe(error)}") from None


def _merge(group: list[tuple[Found, Finding]]) -> Finding:
    """The shrunk form when there is one, else that of the smallest scenario; all are covered by the same entry, or by none."""
    chosen = min(group, key=lambda pair: (not pair[0].shrunk, pair[0].scenario))[1]
    tried = {finding.reproduced for _, finding in group}
    reproduced = chosen.reproduced
    if reproduced is None:
        reproduced = True if True in tried else False if False in tried else None
    return chosen.model_copy(update={"reproduced": reproduced})


def _rank(finding: Finding) -> tuple[bool, int, str, str, str, str]:
    return (finding.known, KINDS.index(finding.kind), finding.backend, finding.recipe, finding.tactic or "",
            finding.fingerprint)
