"""The price of a tuned range that ends too early: the tactic tuned for its end against the one tuned for what is served."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from moeguard.checks.raised import ScenarioAborted
from moeguard.checks.session import Session
from moeguard.checks.tactics import tuned_choice
from moeguard.checks.timing import time_calls
from moeguard.core.errors import MoeguardError


@dataclass(frozen=True, slots=True)
class Price:
    """Two tactics on the same call; None is the backend's default. seconds: median of a few calls, none of them judged."""

    tokens: int
    tuned_for: int
    tactic: str | None
    seconds: float
    tactic_at_served: str | None
    seconds_at_served: float

    def to_data(self) -> dict[str, Any]:
        """JSON data, with the ratio of the two times."""
        return asdict(self) | {"ratio": round(self.seconds / self.seconds_at_served, 3)}


def price(at_cap: Session, at_served: Session) -> Price | str:
    """Tune both sessions' batches, and time both choices on the second one. One sentence when that cannot be done.

    The sessions share backend, resources and case but for the number of tokens. Never raises for what the backend does.
    """
    sessions = at_cap, at_served
    try:
        for session in sessions:
            support = session.support(session.case)
            if not support.supported:
                return support.reason
        choices = [tuned_choice(session) for session in sessions]
        for session in sessions:
            for finding in session.findings:
                return finding.sentence
        first, second = (_seconds(at_served, choice) for choice in choices)
    except ScenarioAborted:
        said = [finding.sentence for session in sessions for finding in session.findings]
        said += [note.reason for session in sessions for note in session.notes]
        return said[-1] if said else "the backend ended the measurement"
    except MoeguardError as error:
        return str(error)
    names = [None if choice is None else str(choice) for choice in choices]
    return Price(at_served.case.shape.num_tokens, at_cap.case.shape.num_tokens, names[0], first, names[1], second)


def _seconds(session: Session, choice: Hashable | None) -> float:
    return median(time_calls(session, choice))
