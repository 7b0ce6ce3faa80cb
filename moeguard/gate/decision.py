"""A decision: whether a backend may be tuned for a recipe at a level, and what stands against it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from moeguard.core.cell import Cell
from moeguard.gate.price import Price
from moeguard.gate.quarantine import Offer
from moeguard.gate.summary import Summary
from moeguard.gate.waiver import Waiver


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
    another backend must serve. failed: requirements that are not met. reason: one plain sentence. waived: waivers of
    requirements that are not met. quarantined: tactics that the tuner must be kept from (``moeguard allow export --format
    flashinfer-blocklist``). evidence: that it follows from, None without an entry. before: the outcome without the change
    that is judged, None when none is. offer: tactics whose quarantine would be enough, None when there are none.
    """

    cell: Cell
    level: str
    autotune: Literal["on", "off"]
    backend_use: Literal["ok", "avoid"]
    failed: tuple[Failed, ...]
    reason: str
    waived: tuple[Waiver, ...] = ()
    quarantined: tuple[str, ...] = ()
    evidence: Summary | None = None
    before: str | None = None
    offer: Offer | None = None

    @property
    def allowed(self) -> bool:
        """Whether autotuning is on."""
        return self.autotune == "on"

    @property
    def outcome(self) -> str:
        """``on``, ``off`` or ``avoid``."""
        return "avoid" if self.backend_use == "avoid" else self.autotune

    @property
    def price(self) -> Price:
        """What it costs when autotuning stays off."""
        return Price.of(self.cell, self.evidence)

    def to_data(self) -> dict[str, Any]:
        """JSON data: the cell with its level, decision, autotune, backend_use, reason, failed requirements, waivers, ..."""
        return {
            "cell": {**self.cell.to_data(), "level": self.level},
            "decision": self.outcome,
            "before": self.before,
            "autotune": self.autotune,
            "backend_use": self.backend_use,
            "reason": self.reason,
            "failed_requirements": [one.to_data() for one in self.failed],
            "waived": [one.to_data() for one in self.waived],
            "quarantined": list(self.quarantined),
            "quarantine_offer": self.offer and self.offer.to_data(),
            "price_of_off": self.price.to_data(),
            "evidence": self.evidence and self.evidence.to_data(),
        }


def decide(cell: Cell, level: str, backend_use: Literal["ok", "avoid"], failed: tuple[Failed, ...], reason: str,
           waived: tuple[Waiver, ...] = (), quarantined: tuple[str, ...] = (), evidence: Summary | None = None) -> Decision:
    """``on`` when nothing failed, else ``off`` with the failed requirements as the reason."""
    why = f"off: {'; '.join(one.sentence for one in failed)}" if failed else reason
    return Decision(cell, level, "off" if failed else "on", backend_use, failed, why, waived, quarantined, evidence)
