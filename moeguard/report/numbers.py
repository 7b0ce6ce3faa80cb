"""The numbers of a finding for people: labels instead of keys, what belongs together on one line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from moeguard.core.case import Case
from moeguard.report.text import line, number

Entry = tuple[str, str]

_BLOCKS = {"row": "worst row", "tile": "worst tile (64x64)", "column": "worst column", "expert": "worst expert"}
#: Keys that stand alone, with their labels.
_PLAIN = {
    "nonfinite": "elements not finite", "unwritten": "elements never written", "differing": "elements that differ",
    "rms_z": "rms of z", "rows": "rows", "columns": "columns", "relation": "relation",
    "requested": "tactic asked for", "executed": "tactic that ran", "returned": "returned", "changed": "changed",
    "exact": "exact operands", "elements": "elements", "sampled_rows": "rows that the oracle judged", "twins": "number of twins",
    "twin_rms": "rms of z of the worst twin",
    "rules": "rules that failed", "guilty": "guilty case", "predecessors": "cases that must run before it",
    "victim": "case at which the process ends", "launched": "last cases of the process",
}
#: Keys without which a summary is complete.
_DETAILS = {"elements", "sampled_rows", "twins", "twin_rms", "exact", "rules", "tile of first", "launched"}


def labelled(numbers: Mapping[str, Any], *, brief: bool = False) -> list[Entry]:
    """(label, value) of each number, the telling ones first; a key without a label stays as it is, and comes last.

    brief: without counts of what was judged; where ``rules`` says which rules failed, without the limits that were kept,
    and with blocks only when no single element failed.
    """
    rest = {name: value for name, value in numbers.items() if name != "map"}
    for name in ("launched", "predecessors"):
        if isinstance(rest.get(name), list):
            rest[name] = [_launch(one) for one in rest[name]]
    entries = [entry for keys, entry in _entries(rest) if not (brief and _detail(keys, numbers))]
    return entries + [(line(name), _text(value)) for name, value in rest.items()]


def brief(numbers: Mapping[str, Any]) -> str:
    """The telling numbers on one line; empty when there are none."""
    return "; ".join(f"{label}: {value}" for label, value in labelled(numbers, brief=True))


def _entries(rest: dict[str, Any]) -> Iterator[tuple[str, Entry]]:
    """What is known in ``rest``, taken out of it: the key that decides whether it is a detail, and the entry."""
    if "max_z" in rest:
        yield "max_z", ("max |z|", _text(rest.pop("max_z")) + _place(rest, "max_z_row", "max_z_column", " at "))
    if "tau" in rest:
        yield "tau", ("limit \u03c4 of |z|", _text(rest.pop("tau")))
    if "got" in rest and "wanted" in rest:
        yield "got", ("value there", f"{_text(rest.pop('got'))} instead of {_text(rest.pop('wanted'))}")
    for name in ("nonfinite", "unwritten", "differing", "rows", "columns"):
        yield from _plain(rest, name)
    for name, label in _BLOCKS.items():
        if f"{name}_rms" in rest and f"worst_{name}" in rest:
            most = rest.pop(f"{name}_limit", None)
            limit = "" if most in (None, "inf", math.inf) else f", limit {_text(most)}"
            yield name, (label, f"{_name(rest.pop(f'worst_{name}'))} (rms of z {_text(rest.pop(f'{name}_rms'))}{limit})")
    if "worst_row" in rest and "worst_column" in rest:
        yield "first", ("first at", _place(rest, "worst_row", "worst_column"))
    if "worst_tile" in rest:
        yield "tile of first", ("tile (64x64) of it", _name(rest.pop("worst_tile")))
    if rest.get("worst_expert", 0) is None:
        del rest["worst_expert"]
    elif "worst_expert" in rest:
        yield "worst", ("expert most affected", _text(rest.pop("worst_expert")))
    yield from _plain(rest, "rms_z")
    if "rho" in rest:
        yield "rho", ("\u03c1, share of the twins' error", _text(rest.pop("rho")))
    yield from _gains(rest)
    if "decoded" in rest and isinstance(rest["decoded"], list):
        yield "decoded", ("probable cause", "; ".join(map(_cause, rest.pop("decoded"))) or "-")
    if "label" in rest:
        yield "label", ("certainty", _certainty(rest))
    if "role" in rest:
        yield "role", ("call", _text(rest.pop("role")))
    for name in _PLAIN:
        yield from _plain(rest, name)


def _plain(rest: dict[str, Any], name: str) -> Iterator[tuple[str, Entry]]:
    if name in rest:
        yield name, (_PLAIN[name], _span(rest.pop(name)) if name in ("rows", "columns") else _text(rest.pop(name)))


def _gains(rest: dict[str, Any]) -> Iterator[tuple[str, Entry]]:
    for name, label in (("gain", "scale error of the answer"), ("expert_gain", "scale error of expert")):
        if name in rest:
            who = f" {_text(rest.pop('gain_expert'))}" if name == "expert_gain" and "gain_expert" in rest else ""
            limit = f" (limit {_percent(rest.pop(f'{name}_limit'))})" if f"{name}_limit" in rest else ""
            yield "gain", (label + who, _percent(rest.pop(name)) + limit)


def _certainty(rest: dict[str, Any]) -> str:
    label, beyond, why = _text(rest.pop("label")), rest.pop("beyond_cap", None), rest.pop("cap", None)
    if why is not None:
        return f"{label} (no deterministic cap: {_text(why)})"
    if beyond is None:
        return label
    return f"{label} ({_text(beyond)} {'element' if beyond == 1 else 'elements'} beyond the deterministic cap)"


def _launch(value: Any) -> str:
    """A case that was launched: its fingerprint, with the scenario where it has one, and the backend."""
    if not isinstance(value, dict) or not {"backend", "case"} <= set(value):
        return _text(value)
    case = value["case"]
    name = Case.model_validate(case).fingerprint if isinstance(case, dict) else _text(case)
    return f"{name} of {_text(value['backend'])}"


def _cause(value: Any) -> str:
    if not isinstance(value, dict) or not {"token", "cause"} <= set(value):
        return _text(value)
    rest = {name: item for name, item in value.items() if name not in ("token", "cause")}
    detail = ", ".join(f"{'that of token' if name == 'of_token' else line(name)} {_text(item)}" for name, item in rest.items())
    return f"token {_text(value['token'])}: {_text(value['cause'])}" + (f" ({detail})" if detail else "")


def _detail(key: str, numbers: Mapping[str, Any]) -> bool:
    rules = numbers.get("rules")
    if not isinstance(rules, list):
        return key in _DETAILS
    return key in _DETAILS or (key in _BLOCKS and "element" in rules) or (key in (*_BLOCKS, "gain") and key not in rules)


def _place(rest: dict[str, Any], row: str, column: str, before: str = "") -> str:
    if row not in rest or column not in rest:
        return ""
    return f"{before}row {_text(rest.pop(row))}, column {_text(rest.pop(column))}"


def _name(value: Any) -> str:
    """A block: its index, or row and column of a tile."""
    return ", ".join(map(_text, value)) if isinstance(value, list) else _text(value)


def _span(value: Any) -> str:
    if isinstance(value, list) and len(value) == 2:
        first, last = map(_text, value)
        return first if first == last else f"{first} to {last}"
    return _text(value)


def _percent(value: Any) -> str:
    usual = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e4
    return f"{100 * value:.3g} %" if usual else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(map(line, value)) or "-"
    return line(json.dumps(value, ensure_ascii=False, default=str)) if isinstance(value, dict | list) else number(value)
