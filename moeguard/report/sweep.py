"""The table of a sweep: what became of each tactic at each number of tokens."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from moeguard.core.events import Swept
from moeguard.report.history import History, Scenario
from moeguard.report.text import duration

Key = tuple[int, str | None]


def rows(history: History) -> tuple[dict[str, Any], ...]:
    """One JSON object for each number of tokens and tactic, in the order of the sweep.

    ``tokens``, ``tactic`` (None: the default), ``verdict`` (``ok``, ``findings``, ``unjudged``: nothing comparable in
    the answer), ``kinds`` of findings, ``executions``, ``witnessed`` (None: the backend cannot tell) and ``seconds``
    (median of ``runs`` timed calls; None when none was timed).
    """
    groups: dict[Key, list[Swept]] = {}
    kinds: dict[Key, set[str]] = {}
    executions: dict[Key, int] = {}
    for scenario in history.drawn:
        tokens = _tokens(scenario)
        for event in scenario.swept:
            groups.setdefault((tokens, event.tactic), []).append(event)
        for found in scenario.found:
            key = (tokens, found.finding.get("tactic"))
            groups.setdefault(key, [])
            kinds.setdefault(key, set()).add(str(found.finding.get("kind")))
        for execution in scenario.executed:
            key = (tokens, execution.tactic)
            executions[key] = executions.get(key, 0) + 1
    return tuple(_row(key, group, sorted(kinds.get(key, ())), executions.get(key, 0)) for key, group in groups.items())


def _row(key: Key, group: list[Swept], kinds: list[str], executions: int) -> dict[str, Any]:
    seconds = [event.seconds for event in group if event.seconds is not None]
    witnesses = {event.witnessed for event in group}
    judged = any(event.outcome == "ok" for event in group)
    return {"tokens": key[0], "tactic": key[1], "verdict": "findings" if kinds else "ok" if judged else "unjudged",
            "kinds": kinds, "executions": executions,
            "witnessed": False if False in witnesses else True if True in witnesses else None,
            "seconds": median(seconds) if seconds else None, "runs": sum(event.runs for event in group)}


def table(entries: Iterable[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows for people: one row a tactic, one column a number of tokens; the fastest right one has a star."""
    cells = {(entry["tokens"], entry["tactic"]): entry for entry in entries}
    tokens = sorted({key[0] for key in cells})
    fastest = {}
    for number in tokens:
        times = {key: entry["seconds"] for key, entry in cells.items()
                 if key[0] == number and entry["verdict"] == "ok" and entry["seconds"] is not None}
        fastest[number] = min(times, key=lambda key: times[key]) if len(times) > 1 else None
    body = []
    for tactic in dict.fromkeys(key[1] for key in cells):
        line = ["default" if tactic is None else tactic]
        for number in tokens:
            entry = cells.get((number, tactic))
            line.append("-" if entry is None else _cell(entry, star=fastest[number] == (number, tactic)))
        body.append(line)
    return ["tactic", *(f"T = {number}" for number in tokens)], body


def _cell(entry: dict[str, Any], *, star: bool) -> str:
    verdict = ", ".join(entry["kinds"]) or entry["verdict"]
    took = "" if entry["seconds"] is None else f" {_short(entry['seconds'])}"
    return f"{verdict}{took}{' *' if star else ''}"


def _short(seconds: float) -> str:
    if seconds >= 1:
        return duration(seconds)
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _tokens(scenario: Scenario) -> int:
    assert scenario.started is not None
    return int(scenario.started.case["shape"]["num_tokens"])
