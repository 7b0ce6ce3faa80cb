"""The evidence of each cell: what was executed for it, what failed, and what was not verified."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moeguard.core.cell import Cell
from moeguard.core.finding import Finding
from moeguard.core.tokens import token_bucket
from moeguard.report.history import History
from moeguard.report.text import count, line

DEFAULT_TACTIC = "default"
#: What a note of the whole run is about: a backend that cannot run here; a built-in one whose name a plug-in took.
ABSENT, REPLACED = "backend", "built-in"
Name = tuple[str, str]


@dataclass(slots=True)
class _Tally:
    cases: int = 0
    refused: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    tactics: Counter[str] = field(default_factory=Counter)
    buckets: Counter[int] = field(default_factory=Counter)
    tuned: defaultdict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


def cells(manifest: Mapping[str, Any], history: History, findings: Iterable[Finding]) -> tuple[dict[str, Any], ...]:
    """One JSON object a cell, sorted by backend and recipe.

    Cells are those that the manifest asks for (backends x recipes) and those that an event names. Beside the cell:
    executions, cases, refused (scenarios that were not supported), failures (executions with outcome ``finding``),
    findings (fingerprints), outcomes, checks ``{check: {executions, findings, seconds}}``, tactics and token_buckets
    (executions by tactic, and by power of two of ``num_tokens``), tuned (by the same buckets: how often the backend's own
    tuning chose which tactic), status and reason. status: ``executed`` (a check has
    executions or findings), ``refused`` (cannot run here: unavailable, or no scenario was supported) or ``empty``;
    reason: why nothing was executed, None otherwise.
    """
    notes = not_verified(history)
    tallies = _tallies(manifest, history)
    found: defaultdict[Name, list[Finding]] = defaultdict(list)
    for finding in findings:
        found[finding.backend, finding.recipe].append(finding)
        tallies.setdefault((finding.backend, finding.recipe), _Tally())
    return tuple({
        **Cell.of(*name, manifest.get("environment", {})).to_data(),
        **_counts(tallies[name], found[name]),
        **_status(name, tallies[name], found[name], notes, history.complete),
    } for name in sorted(tallies))


def not_verified(history: History) -> tuple[dict[str, Any], ...]:
    """What was not verified: one JSON object for each backend, recipe, what and reason, with its count; sorted."""
    notes = Counter((note.backend, note.recipe, note.what, note.reason)
                    for scenario in history.scenarios for note in scenario.noted)
    return tuple({"backend": backend, "recipe": recipe, "what": what, "reason": reason, "count": notes[key]}
                 for key in sorted(notes) for backend, recipe, what, reason in [key])


def absent(notes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Backends that could not run where the run was made, with the reason, from ``not_verified``."""
    return {note["backend"]: line(note["reason"]) for note in notes if note["what"] == ABSENT}


def _tallies(manifest: Mapping[str, Any], history: History) -> dict[Name, _Tally]:
    options = manifest.get("options", {})
    tallies = {(str(backend), str(recipe)): _Tally()
               for backend in options.get("backends") or () for recipe in options.get("recipes") or ()}
    for scenario in history.scenarios:
        for note in scenario.noted:
            if note.backend and note.recipe:
                tallies.setdefault((note.backend, note.recipe), _Tally())
        if scenario.started is None:
            continue
        tally = tallies.setdefault((scenario.started.backend, scenario.started.recipe), _Tally())
        bucket = token_bucket(int(scenario.started.case["shape"]["num_tokens"]))
        tally.cases += 1
        tally.refused += scenario.finished is not None and scenario.finished.status == "refused"
        for execution in scenario.executed:
            tally.outcomes[execution.outcome] += execution.count
            tally.checks[execution.check] += execution.count
            tally.seconds[execution.check].append(execution.seconds)
            tally.tactics[DEFAULT_TACTIC if execution.tactic is None else execution.tactic] += execution.count
            tally.buckets[bucket] += execution.count
            if (execution.check, execution.role) == ("tuned", "tuned") and execution.tactic is not None:
                tally.tuned[bucket][execution.tactic] += 1
    return tallies


def _status(name: Name, tally: _Tally, found: list[Finding], notes: Iterable[Mapping[str, Any]],
            complete: bool) -> dict[str, Any]:
    if tally.checks or found:
        return {"status": "executed", "reason": None}
    reasons = list(dict.fromkeys(line(note["reason"]) for note in notes
                                 if note["backend"] == name[0] and note["recipe"] in (name[1], "")
                                 and note["what"] != REPLACED))
    refused = tally.cases == tally.refused and (tally.refused > 0 or bool(reasons))
    reason = "; ".join(reasons) or (
        f"the backend supports none of {count(tally.refused, 'scenario')}" if refused
        else f"{count(tally.cases, 'scenario')} started, but none reached an execution" if tally.cases
        else "no scenario was drawn for it" if complete
        else "the run was stopped before a scenario was drawn for it")
    return {"status": "refused" if refused else "empty", "reason": reason}


def _counts(tally: _Tally, found: list[Finding]) -> dict[str, Any]:
    by_check = Counter(finding.check for finding in found)
    return {
        "executions": tally.outcomes.total(),
        "cases": tally.cases,
        "refused": tally.refused,
        "failures": tally.outcomes["finding"],
        "findings": sorted(finding.fingerprint for finding in found),
        "outcomes": {outcome: tally.outcomes[outcome] for outcome in sorted(+tally.outcomes)},
        "checks": {check: {"executions": tally.checks[check], "findings": by_check[check],
                           "seconds": round(math.fsum(tally.seconds.get(check, ())), 6)}
                   for check in sorted({*tally.checks, *by_check})},
        "tactics": dict(sorted(tally.tactics.items())),
        "token_buckets": {str(bucket): tally.buckets[bucket] for bucket in sorted(tally.buckets)},
        "tuned": {str(bucket): dict(sorted(tally.tuned[bucket].items())) for bucket in sorted(tally.tuned)},
    }
