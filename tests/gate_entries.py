"""Entries of an allowlist, and the text of one."""

from __future__ import annotations

from datetime import date
from typing import Any

from gate_runs import ENVIRONMENT

from moeguard.gate.confidence import upper_bound

TODAY = date(2026, 6, 1)
BUCKETS = [1 << exponent for exponent in range(13)]
RUN = {"run_id": "run-1", "started": date(2026, 5, 1), "sha256": "0" * 64}
PROBLEM = {"fingerprint": "0123456789ab", "kind": "bad_tactic", "tactic": "b"}
#: 23 cases in the worst stratum.
STRATA = {"total": 42, "thin": 0, "failed": 0,
          "worst": {"token_bucket": 4096, "tactic": "b", "cases": 23, "failures": 0, "bound": 0.122096}}


def evidence(**changes: Any) -> dict[str, Any]:
    """Evidence that is enough for every level; the bound follows from failures and cases."""
    data: dict[str, Any] = {
        "runs": [RUN], "gpu": ENVIRONMENT["gpu"], "executions": 2000, "cases": 300, "failures": 0, "known_failures": 0,
        "tactics": {"a": 300, "b": 300, "default": 300}, "tactics_covered": ["a", "b", "default"], "tactics_known": True,
        "strata": STRATA,
        "token_buckets": [0, *BUCKETS], "boundary_tokens": [1, 2], "repeats": 300, "open_findings": [], "known_findings": []}
    data |= changes
    bound = round(upper_bound(data["failures"], data["cases"]), 6) if data["cases"] else 1.0
    return {"bound": bound, **data}


def entry(**changes: Any) -> dict[str, Any]:
    """A cell of ``gate_runs.ENVIRONMENT`` that is on at every level."""
    return {"backend": "mine", "recipe": "bf16", "arch": ENVIRONMENT["arch"], "flashinfer": "0.7.4", "cuda": "12.9",
            "driver": "575.57", "torch": "2.13.0", "autotune": "on", "backend_use": "ok", "levels": ["O1", "O2", "O3"],
            "expires": date(2026, 12, 31), "reason": "300 cases on an H200", "evidence": evidence()} | changes


def toml(*entries: dict[str, Any], schema: object = 1) -> str:
    """The text of an allowlist."""
    return "\n".join([f"schema = {_value(schema)}", *(
        "[[cell]]\n" + "".join(f"{name} = {_value(value)}\n" for name, value in one.items()) for one in entries)])


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{name}" = {_value(one)}' for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
