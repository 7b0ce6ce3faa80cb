"""What an allowlist says about the cells of a test run: those that are on here must pass, all others are reported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeguard.core.environment import fingerprint
from moeguard.gate.allowlist import Allowlist
from moeguard.gate.level import LEVELS
from moeguard.gate.policy import Policy


@dataclass(frozen=True, slots=True)
class Allowance:
    """levels: at which a cell may be tuned here, none when it is off. reason: one sentence. quarantined: tactics that are kept
    from the tuner, so that findings about them do not count."""

    levels: tuple[str, ...]
    reason: str
    quarantined: tuple[str, ...]

    @property
    def on(self) -> bool:
        """Whether the cell may be tuned at some level."""
        return bool(self.levels)


class Allowances:
    """The allowlist of a test run in this environment. Raises AllowlistError when the file is none."""

    def __init__(self, path: Path, device: str) -> None:
        self.path = path
        self._known, self._policy = Allowlist.load(path), Policy.load()
        self._environment: dict[str, Any] = fingerprint(device)

    def get(self, backend: str, recipe: str) -> Allowance:
        """What it says about a cell, by the packaged policy."""
        found = {level: self._known.decide(backend, recipe, level, self._environment, policy=self._policy) for level in LEVELS}
        levels = tuple(level for level, decision in found.items() if decision.allowed)
        said = found[levels[0] if levels else "O2"]
        return Allowance(levels, said.reason, said.quarantined)
