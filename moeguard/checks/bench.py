"""A measurement: the default and the tuned tactic of one backend on one case, judged once and then timed."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from statistics import median

from moeguard.checks.raised import ScenarioAborted
from moeguard.checks.session import Execution, Session
from moeguard.checks.tactics import force, tuned_choice
from moeguard.checks.timing import time_calls
from moeguard.checks.values import values, weights_watched
from moeguard.core.errors import MoeguardError


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm of a measurement.

    name: ``default`` or ``tuned``. tactic: its ``str``, None for the default. verdict: ``ok``, ``wrong``, ``crash``,
    ``unjudged`` (nothing comparable in the answer), ``refused`` (not supported), ``vacuous`` (the tuning measured nothing),
    ``same`` (the tuning kept the default) or ``not run``, with its reason. seconds: median of ``runs`` timed calls, None when
    not timed.
    """

    name: str
    tactic: str | None
    verdict: str
    seconds: float | None = None
    runs: int = 0
    reason: str = ""


def bench(session: Session) -> tuple[Arm, Arm]:
    """The two arms of the session's backend and case. Never raises for what the backend does."""
    first: Arm | None = None
    choice: Hashable | None = None
    try:
        support = session.support(session.case)
        if not support.supported:
            return Arm("default", None, "refused", reason=support.reason), Arm("tuned", None, "refused", reason=support.reason)
        with weights_watched(session):
            values(session)
            assert session.first is not None
            first = _arm(session, "default", None, session.first)
            choice = tuned_choice(session)
            second = _kept(session) if choice is None else _tuned(session, choice)
        return _blamed(session, first), _blamed(session, second)
    except ScenarioAborted:
        verdict, reason = _end(session)
    except MoeguardError as error:
        verdict, reason = "not run", str(error)
    if first is None:
        return Arm("default", None, verdict, reason=reason), Arm("tuned", None, "not run", reason="the default did not end well")
    return first, Arm("tuned", None if choice is None else str(choice), verdict, reason=reason)


def _kept(session: Session) -> Arm:
    """The tuned arm of a tuning that chose nothing."""
    for finding in session.findings:
        if finding.kind == "vacuous_autotune":
            return Arm("tuned", None, "vacuous", reason=str(finding.numbers["reason"]))
    return Arm("tuned", None, "same")


def _tuned(session: Session, choice: Hashable) -> Arm:
    run, witnessed = force(session, choice, "tuned", "autotune_mismatch")
    arm = _arm(session, "tuned", choice, run)
    if witnessed is False:
        return Arm("tuned", str(choice), "wrong", reason=session.findings[-1].sentence)
    return arm


def _arm(session: Session, name: str, tactic: Hashable | None, run: Execution) -> Arm:
    """An arm that answered; what wrote where it must not is not called again."""
    verdict = "wrong" if not run.ok else "ok" if run.judgement.numbers.get("elements") else "unjudged"
    reason = session.findings[-1].sentence if session.findings and not run.ok else ""
    seconds = time_calls(session, tactic) if run.whole else []
    return Arm(name, None if tactic is None else str(tactic), verdict, median(seconds) if seconds else None, len(seconds), reason)


def _blamed(session: Session, arm: Arm) -> Arm:
    """The arm, which is wrong when it changed the weights that it shares with later calls."""
    for finding in session.findings:
        if (finding.kind, finding.check, finding.tactic) == ("input_mutated", "memory", arm.tactic) and arm.verdict == "ok":
            return replace(arm, verdict="wrong", reason=finding.sentence)
    return arm


def _end(session: Session) -> tuple[str, str]:
    """Verdict and reason of a scenario that the backend ended: a crash, or memory that ran out."""
    crashes = [finding.sentence for finding in session.findings if finding.kind == "crash"]
    return ("crash", crashes[-1]) if crashes else ("not run", session.notes[-1].reason if session.notes else "")
