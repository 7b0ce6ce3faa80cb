"""A measurement: the default and the tuned tactic of one backend on one case, judged once and then timed."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from statistics import median

from moeguard.checks.session import ScenarioAborted, Session
from moeguard.checks.tactics import force, tuned_choice
from moeguard.checks.timing import time_calls
from moeguard.checks.values import values
from moeguard.core.errors import MoeguardError


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm of a measurement.

    name: ``default`` or ``tuned``. tactic: its ``str``, None for the default. verdict: ``ok``, ``wrong``, ``crash``, or why
    there is none. seconds: medians of ``runs`` timed calls, None when not timed.
    """

    name: str
    tactic: str | None
    verdict: str
    seconds: float | None = None
    runs: int = 0


def bench(session: Session) -> tuple[Arm, Arm]:
    """The two arms of the session's backend and case. Never raises for what the backend does."""
    try:
        support = session.support(session.case)
        if not support.supported:
            reason = f"refused: {support.reason}"
            return Arm("default", None, reason), Arm("tuned", None, reason)
        values(session)
        first = _arm(session, "default", None, session.first is not None and session.first.ok)
        choice = tuned_choice(session)
        if choice is None:
            return first, Arm("tuned", None, "vacuous" if session.findings else "the default")
        run, _ = force(session, choice, "tuned", "autotune_mismatch")
        return first, _arm(session, "tuned", choice, run.ok)
    except (ScenarioAborted, MoeguardError) as error:
        return Arm("default", None, "crash"), Arm("tuned", None, f"crash: {error}")


def _arm(session: Session, name: str, tactic: Hashable | None, right: bool) -> Arm:
    seconds = time_calls(session, tactic)
    return Arm(name, None if tactic is None else str(tactic), "ok" if right else "wrong", median(seconds), len(seconds))
