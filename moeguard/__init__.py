"""moeguard: evidence about Mixture-of-Experts kernels.

``import moeguard`` is lazy: names are loaded on first use, and torch with the first one that needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from moeguard.backends.protocol import Availability, Backend, Refused, Support, Traits, VacuousTuning
    from moeguard.backends.registry import register
    from moeguard.backends.routers.protocol import Router
    from moeguard.checks.router import check_router
    from moeguard.core.case import Case
    from moeguard.core.errors import MoeguardError
    from moeguard.core.finding import Finding
    from moeguard.core.numerics import Numerics
    from moeguard.core.router import Precision, RouterCase
    from moeguard.core.verdict import Verdict
    from moeguard.engine.check import check
    from moeguard.gate.allowlist import Allowlist
    from moeguard.gate.decision import Decision
    from moeguard.tensors.operand import Batch, Operand, Weights

_EXPORTS = {
    "Availability": "moeguard.backends.protocol",
    "Backend": "moeguard.backends.protocol",
    "Refused": "moeguard.backends.protocol",
    "Support": "moeguard.backends.protocol",
    "Traits": "moeguard.backends.protocol",
    "VacuousTuning": "moeguard.backends.protocol",
    "register": "moeguard.backends.registry",
    "Router": "moeguard.backends.routers.protocol",
    "check_router": "moeguard.checks.router",
    "Case": "moeguard.core.case",
    "MoeguardError": "moeguard.core.errors",
    "Finding": "moeguard.core.finding",
    "Numerics": "moeguard.core.numerics",
    "Precision": "moeguard.core.router",
    "RouterCase": "moeguard.core.router",
    "Verdict": "moeguard.core.verdict",
    "check": "moeguard.engine.check",
    "Allowlist": "moeguard.gate.allowlist",
    "Decision": "moeguard.gate.decision",
    "Batch": "moeguard.tensors.operand",
    "Operand": "moeguard.tensors.operand",
    "Weights": "moeguard.tensors.operand",
}

__all__ = [
    "Allowlist", "Availability", "Backend", "Batch", "Case", "Decision", "Finding", "MoeguardError", "Numerics", "Operand",
    "Precision", "Refused", "Router", "RouterCase", "Support", "Traits", "VacuousTuning", "Verdict", "Weights", "check",
    "check_router", "register",
]


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module 'moeguard' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
