"""The table of a sweep: what became of each tactic on each layer at each number of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from moeguard.core.events import Swept
from moeguard.report.history import History, Scenario
from moeguard.report.text import brief


class Column(NamedTuple):
    """Executions of one layer at one number of tokens."""

    layer: str
    tokens: int


Key = tuple[Column, str | None]


def rows(history: History, labels: Sequence[str] = ()) -> tuple[dict[str, Any], ...]:
    """One JSON object for each layer, number of tokens and tactic, in the order of the sweep.

    labels: names of the cases' layers, in the order of the cases; without them a layer is named after its sizes.

    ``layer``, ``tokens``, ``tactic`` (None: the default), ``verdict`` (``ok``, ``findings``, ``unjudged``: nothing comparable
    in the answer), ``kinds`` of findings, ``executions``, ``witnessed`` (None: the backend cannot tell) and ``seconds``
    (median of ``runs`` timed calls; None when none was timed).
    """
    groups: dict[Key, list[Swept]] = {}
    kinds: dict[Key, set[str]] = {}
    executions: dict[Key, int] = {}
    for scenario in history.drawn:
        column = _column(scenario, labels)
        for event in scenario.swept:
            groups.setdefault((column, event.tactic), []).append(event)
        for found in scenario.found:
            key = (column, found.finding.get("tactic"))
            groups.setdefault(key, [])
            kinds.setdefault(key, set()).add(str(found.finding.get("kind")))
        for execution in scenario.executed:
            key = (column, execution.tactic)
            executions[key] = executions.get(key, 0) + 1
    return tuple(_row(key, group, sorted(kinds.get(key, ())), executions.get(key, 0)) for key, group in groups.items())


def _row(key: Key, group: list[Swept], kinds: list[str], executions: int) -> dict[str, Any]:
    seconds = [event.seconds for event in group if event.seconds is not None]
    witnesses = {event.witnessed for event in group}
    judged = any(event.outcome == "ok" for event in group)
    return {**key[0]._asdict(), "tactic": key[1], "verdict": "findings" if kinds else "ok" if judged else "unjudged",
            "kinds": kinds, "executions": executions,
            "witnessed": False if False in witnesses else True if True in witnesses else None,
            "seconds": median(seconds) if seconds else None, "runs": sum(event.runs for event in group)}


def table(entries: Iterable[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows for people: one row a tactic, one column a layer and number of tokens; the fastest right one has a star.

    Columns name the layer only when there are several.
    """
    cells = {(Column(entry["layer"], entry["tokens"]), entry["tactic"]): entry for entry in entries}
    columns = list(dict.fromkeys(column for column, _ in cells))
    several = len({column.layer for column in columns}) > 1
    fastest = {column: _fastest(column, cells) for column in columns}
    body = []
    for tactic in dict.fromkeys(tactic for _, tactic in cells):
        line = ["default" if tactic is None else tactic]
        for column in columns:
            entry = cells.get((column, tactic))
            line.append("-" if entry is None else _cell(entry, star=fastest[column] == (column, tactic)))
        body.append(line)
    return ["tactic", *(f"{column.layer} T = {column.tokens}" if several else f"T = {column.tokens}" for column in columns)], body


def _fastest(column: Column, cells: dict[Key, dict[str, Any]]) -> Key | None:
    """The fastest right tactic of a column, None where it has no rival."""
    times = {key: float(entry["seconds"]) for key, entry in cells.items()
             if key[0] == column and entry["verdict"] == "ok" and entry["seconds"] is not None}
    return min(times, key=lambda key: times[key]) if len(times) > 1 else None


def _cell(entry: dict[str, Any], *, star: bool) -> str:
    verdict = ", ".join(entry["kinds"]) or entry["verdict"]
    took = "" if entry["seconds"] is None else f" {brief(entry['seconds'])}"
    return f"{verdict}{took}{' *' if star else ''}"


def _column(scenario: Scenario, labels: Sequence[str]) -> Column:
    started = scenario.started
    assert started is not None
    shape = started.case["shape"]
    if labels:
        return Column(labels[started.draw % len(labels)], int(shape["num_tokens"]))
    sizes = {"H": "hidden_size", "I": "intermediate_size", "E": "num_experts", "K": "top_k"}
    ranks = int(started.case.get("parallel", {}).get("tp_size", 1))
    layer = "".join(f"{letter}{shape[name]}" for letter, name in sizes.items()) + (f"/tp{ranks}" if ranks > 1 else "")
    return Column(layer, int(shape["num_tokens"]))
