"""Optimisation levels, as vLLM names them."""

from __future__ import annotations

from typing import Literal

from moeguard.core.errors import UnknownNameError

LEVELS = ("O0", "O1", "O2", "O3")
Level = Literal["O0", "O1", "O2", "O3"]


def check_level(level: str) -> None:
    """Raise UnknownNameError when ``level`` is none."""
    if level not in LEVELS:
        raise UnknownNameError("--level", level, list(LEVELS))
