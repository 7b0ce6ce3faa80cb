"""The price of staying off: how much faster the tuned kernel is, where that was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moeguard.core.cell import Cell
from moeguard.gate.command import sweep
from moeguard.gate.summary import SpeedUp, Summary


@dataclass(frozen=True, slots=True)
class Price:
    """speed_up: None when no sweep was timed. command: what would measure it, None when it was or nothing can be tuned."""

    sentence: str
    speed_up: SpeedUp | None
    command: str | None

    @classmethod
    def of(cls, cell: Cell, evidence: Summary | None) -> Price:
        """That of ``cell`` by its evidence, None for none."""
        gain = None if evidence is None else evidence.speed_up
        if gain is not None:
            return cls(f"off costs speed: the fastest right tactic is {gain.median:.3g} times as fast as the default "
                       f"({gain.low:.3g} to {gain.high:.3g} over layers and token counts)", gain, None)
        if evidence is not None and evidence.tactics_known and set(evidence.tactics) == {"default"}:
            return cls("off costs nothing: the backend offers no tactic beside its default", None, None)
        return cls("what off costs is not measured", None, sweep(cell))

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return {"sentence": self.sentence, "speed_up": self.speed_up and self.speed_up.model_dump(), "command": self.command}
