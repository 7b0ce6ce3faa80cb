"""A decision: whether a backend may be tuned for a recipe at a level, and what stands against it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from moeguard.core.cell import Cell
from moeguard.core.errors import UnknownNameError

LEVELS = ("O0", "O1", "O2", "O3")
Level = Literal["O0", "O1", "O2", "O3"]


@dataclass(frozen=True, slots=True)
class Failed:
    """A requirement that is not met.

    name: of the requirement. threshold, actual: what is asked for and what is there, as text. sentence: one plain
    sentence. command: what would supply the evidence, or None where no command does.
    """

    name: str
    threshold: str
    actual: str
    sentence: str
    command: str | None = None

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Decision:
    """What holds for ``cell`` at optimisation ``level`` (O0 to O3 as in vLLM).

    autotune: ``on`` only when nothing stands against it. backend_use: ``avoid`` when the default itself is wrong, so that
    another backend must serve. failed: requirements that are not met. waived: names of those that a waiver covers.
    reason: one plain sentence.
    """

    cell: Cell
    level: str
    autotune: Literal["on", "off"]
    backend_use: Literal["ok", "avoid"]
    failed: tuple[Failed, ...]
    reason: str
    waived: tuple[str, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether autotuning is on."""
        return self.autotune == "on"

    @property
    def outcome(self) -> str:
        """``on``, ``off`` or ``avoid``."""
        return "avoid" if self.backend_use == "avoid" else self.autotune

    def to_data(self) -> dict[str, Any]:
        """JSON data: the cell with its level, decision, autotune, backend_use, reason, failed requirements, waived ones."""
        return {
            "cell": {**self.cell.to_data(), "level": self.level},
            "decision": self.outcome,
            "autotune": self.autotune,
            "backend_use": self.backend_use,
            "reason": self.reason,
            "failed_requirements": [one.to_data() for one in self.failed],
            "waived": list(self.waived),
        }


def decide(cell: Cell, level: str, backend_use: Literal["ok", "avoid"], failed: tuple[Failed, ...], reason: str,
           waived: tuple[str, ...] = ()) -> Decision:
    """``on`` when nothing failed, else ``off`` with the failed requirements as the reason."""
    if failed:
        names = "; ".join(one.sentence for one in failed)
        return Decision(cell, level, "off", backend_use, failed, f"off: {names}", waived)
    return Decision(cell, level, "on", backend_use, (), reason, waived)


def check_level(level: str) -> None:
    """Raise UnknownNameError when ``level`` is none."""
    if level not in LEVELS:
        raise UnknownNameError("--level", level, list(LEVELS))
