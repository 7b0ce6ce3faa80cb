"""Data frames of a run: its executions and its findings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd  # type: ignore[import-untyped,unused-ignore]

from moeguard.core.case import Shape
from moeguard.core.events import Event, Executed, ScenarioStarted
from moeguard.report.history import gather
from moeguard.report.outcome import Outcome

_COLUMNS: dict[str, str] = {
    "scenario": "int64", "number": "int64", "draw": "int64", "round": "int64", "backend": "str", "recipe": "str",
    "case": "str", "num_tokens": "int64", "hidden_size": "int64", "intermediate_size": "int64", "num_experts": "int64",
    "top_k": "int64", "routing": "str", "method": "str", "inputs": "str", "scales": "str", "activation": "str",
    "weights": "str", "bias": "bool", "layout": "str", "activation_format": "str", "ep_size": "int64",
    "tp_size": "int64", "seed": "int64",
    "check": "str", "role": "str", "tactic": "str", "outcome": "str", "seconds": "float64", "count": "int64",
}
_KINDS = ("routing", "inputs", "scales", "activation", "weights", "layout")
_JUDGED = ("max_z", "tau", "rms_z", "rho")
_FINDINGS = ("kind", "fingerprint", "check", "backend", "recipe", "tactic", "case", "sentence", "reproduced", "known",
             "hits")


def executions(events: Iterable[Event]) -> pd.DataFrame:
    """One row for each execution, or for ``count`` of one call in a row, sorted by (scenario, number).

    The scenario's fields (shape in elements, kinds of routing, inputs, scales, ...), what was executed, seconds, and
    every scalar of ``numbers`` as a column (prefixed ``numbers.`` where it has the name of another column). ``max_z``,
    ``tau``, ``rms_z`` and ``rho`` always exist; they are NaN where an execution was not judged.
    """
    rows = [scenario_row | _execution(execution)
            for scenario in gather(events).drawn if scenario.started and scenario.executed
            for scenario_row in [_scenario(scenario.started)]
            for execution in sorted(scenario.executed, key=lambda one: one.number)]
    extra = sorted({name for row in rows for name in row} - set(_COLUMNS) - set(_JUDGED))
    data = {name: [row.get(name) for row in rows] for name in (*_COLUMNS, *_JUDGED, *extra)}
    columns = {name: pd.Series(data[name], dtype=kind) for name, kind in _COLUMNS.items()}
    columns |= {name: _number(data[name], judged=True) for name in _JUDGED}
    columns |= {name: _number(data[name]) for name in extra}
    return pd.DataFrame(columns)


def findings(outcome: Outcome) -> pd.DataFrame:
    """One row for each finding, in the outcome's order; ``case`` is the fingerprint of its case, ``hits`` a count."""
    rows = [{"kind": one.kind, "fingerprint": one.fingerprint, "check": one.check, "backend": one.backend,
             "recipe": one.recipe, "tactic": one.tactic, "case": one.case.fingerprint, "sentence": _text(one.sentence),
             "reproduced": one.reproduced, "known": one.known, "hits": outcome.hits[one.fingerprint]}
            for one in outcome.findings]
    frame = pd.DataFrame(rows, columns=list(_FINDINGS))
    return frame.astype({"reproduced": "boolean", "known": "bool", "hits": "int64"})


def _scenario(started: ScenarioStarted) -> dict[str, Any]:
    """The columns that all executions of a scenario share."""
    case = started.case
    row: dict[str, Any] = {name: case.get(name, {}).get("kind") for name in _KINDS}
    row |= {name: case["shape"][name] for name in Shape.model_fields}
    row |= {
        "scenario": started.scenario, "draw": started.draw, "round": started.round, "backend": started.backend,
        "recipe": started.recipe, "case": started.fingerprint, "method": case.get("routing", {}).get("method"),
        "bias": case.get("weights", {}).get("bias", False),
        "activation_format": case.get("activation_format", "standard"),
        "ep_size": case.get("parallel", {}).get("ep_size", 1), "tp_size": case.get("parallel", {}).get("tp_size", 1),
        "seed": case.get("seed", 0),
    }
    return {name: _text(value) if isinstance(value, str) else value for name, value in row.items()}


def _execution(event: Executed) -> dict[str, Any]:
    """The columns of one execution: its own, and the scalars of its numbers."""
    row: dict[str, Any] = {
        "number": event.number, "check": _text(event.check), "role": _text(event.role),
        "tactic": None if event.tactic is None else _text(event.tactic), "outcome": _text(event.outcome),
        "seconds": event.seconds, "count": event.count,
    }
    for name, value in event.numbers.items():
        if isinstance(value, bool | int | float | str):
            column = f"numbers.{_text(name)}" if name in _COLUMNS else _text(name)
            row[column] = _text(value) if isinstance(value, str) else value
    return row


def _number(values: list[Any], *, judged: bool = False) -> pd.Series:
    """A float64 series when every value is a number (or spells one, such as ``inf``), else one of text."""
    try:
        numbers = [None if value is None else float(value) for value in values]
    except (ValueError, OverflowError):
        if not judged:
            return pd.Series([None if value is None else str(value) for value in values], dtype="str")
        numbers = [float(value) if isinstance(value, int | float) else None for value in values]
    return pd.Series(numbers, dtype="float64")


def _text(text: str) -> str:
    """Text that UTF-8 can hold: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
