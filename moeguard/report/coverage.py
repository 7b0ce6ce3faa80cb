"""Coverage of a run: which token counts and which strata of the case space its executions came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel

from moeguard.core.case import Activation, Case, Inputs, Layout, Routing, Scales, WeightSet
from moeguard.core.events import Event
from moeguard.core.tokens import token_bucket
from moeguard.report.history import gather

_AXES: dict[str, tuple[type[BaseModel], str, str]] = {
    "routing": (Routing, "routing", "kind"),
    "routing method": (Routing, "routing", "method"),
    "inputs": (Inputs, "inputs", "kind"),
    "scales": (Scales, "scales", "kind"),
    "activation": (Activation, "activation", "kind"),
    "weights": (WeightSet, "weights", "kind"),
    "layout": (Layout, "layout", "kind"),
}


@dataclass(frozen=True, slots=True)
class Axis:
    """One field of a case: executions by value (most first), and the allowed values that were never executed."""

    name: str
    executions: dict[str, int]
    missing: tuple[str, ...]


def strata(events: Iterable[Event]) -> tuple[Axis, ...]:
    """The enumerated fields of a case with the number of executions of each value, in the order of the case."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in (*_AXES, "activation format", "parallel")}
    for scenario in gather(events).drawn:
        if scenario.started and scenario.executed:
            for name, value in _values(scenario.started.case).items():
                counts[name][value] += sum(one.count for one in scenario.executed)
    return tuple(_axis(name, count) for name, count in counts.items())


def token_table(cells: Iterable[Mapping[str, Any]]) -> tuple[list[int], dict[str, dict[int, int]]]:
    """Token buckets (without gaps) and, by recipe, the executions in each, from an outcome's cells."""
    table: dict[str, Counter[int]] = {}
    for cell in cells:
        if cell["token_buckets"]:
            row = table.setdefault(cell["recipe"], Counter())
            row.update({int(bucket): number for bucket, number in cell["token_buckets"].items()})
    seen = {bucket for row in table.values() for bucket in row}
    buckets = buckets_between(min(seen), max(seen)) if seen else []
    return buckets, {name: dict(table[name]) for name in sorted(table)}


def tactic_table(events: Iterable[Event]) -> dict[str, dict[int, int]]:
    """Executions by ``backend recipe tactic`` and token bucket, for backends that offer tactics."""
    table: dict[str, Counter[int]] = {}
    for scenario in gather(events).drawn:
        if scenario.started:
            bucket = token_bucket(int(scenario.started.case.get("shape", {}).get("num_tokens", 0)))
            for one in scenario.executed:
                name = f"{scenario.started.backend} {scenario.started.recipe} {one.tactic or 'default'}"
                table.setdefault(name, Counter())[bucket] += one.count
    return {name: dict(table[name]) for name in sorted(table)}


def tuned_rows(cells: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str, str]]:
    """What each backend's own tuning chose: backend, recipe, from which number of tokens on, tactics with their counts."""
    return [(cell["backend"], cell["recipe"], bucket, ", ".join(
        f"{tactic}{f' {times} times' if times > 1 else ''}" for tactic, times in sorted(
            chosen.items(), key=lambda pair: (-pair[1], pair[0])))) for cell in cells for bucket, chosen in cell["tuned"].items()]


def buckets_between(first: int, last: int) -> list[int]:
    """Every token bucket from ``first`` to ``last``: 0, then the powers of two."""
    buckets = [0, *(1 << exponent for exponent in range(last.bit_length()))]
    return [bucket for bucket in buckets if first <= bucket <= last]


def _values(case: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, (model, part, field) in _AXES.items():
        found[name] = str(case.get(part, {}).get(field, model.model_fields[field].default))
    parallel = case.get("parallel", {})
    sharded = [kind for kind in ("ep", "tp", "dp") if parallel.get(f"{kind}_size", 1) > 1]
    found["activation format"] = str(case.get("activation_format", "standard"))
    found["parallel"] = "+".join(sharded) or "none"
    return found


def _axis(name: str, counts: Counter[str]) -> Axis:
    executions = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return Axis(name, executions, tuple(value for value in _allowed(name) if value not in counts))


def _allowed(name: str) -> tuple[str, ...]:
    if name == "parallel":
        return ("none", "ep", "tp", "dp")
    if name == "activation format":
        return get_args(Case.model_fields["activation_format"].annotation)
    model, _, field = _AXES[name]
    return get_args(model.model_fields[field].annotation)
