"""Ledgers of known findings as TOML text."""

from __future__ import annotations

import json
from typing import Any

ENTRY: dict[str, Any] = {
    "id": "last-column", "backend": "holey", "kinds": ["unwritten_output"], "package": "torch", "versions": ">=1",
    "reference": "holey#1", "expires": "2999-12-31", "reason": "The last column is not written when T is odd.",
    "crash_class": False, "condition": [{"field": "shape.num_tokens", "at_least": 1}],
    "case": {"schema": 1, "shape": {"num_tokens": 3, "hidden_size": 16, "intermediate_size": 16, "num_experts": 4, "top_k": 2}},
}


def toml(value: Any) -> str:
    """An inline value."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {toml(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value)


def ledger(*entries: dict[str, Any], schema: Any = 1) -> str:
    """A ledger of ENTRY with each of ``entries`` over it; a value of None takes a field away."""
    rows = [{name: value for name, value in (ENTRY | entry).items() if value is not None} for entry in entries or ({},)]
    return f"schema = {toml(schema)}\n" + "".join(
        "\n[[entry]]\n" + "".join(f"{name} = {toml(value)}\n" for name, value in row.items()) for row in rows)
