"""Which checks a case gets, in order."""

from __future__ import annotations

from moeguard.checks.contract import contract
from moeguard.checks.declared import unsupported
from moeguard.checks.layout import layout
from moeguard.checks.metamorphic import metamorphic
from moeguard.checks.placement import placement
from moeguard.checks.raised import ScenarioAborted
from moeguard.checks.repeat import memory, repeat
from moeguard.checks.sequence import sequence
from moeguard.checks.session import Session
from moeguard.checks.tactics import force_named, tactics, tuned
from moeguard.checks.tuner import tuner
from moeguard.checks.values import values, weights_watched
from moeguard.core.errors import MoeguardError

#: Check groups by name; the order is the order of execution.
CHECKS = {"values": values, "memory": memory, "repeat": repeat, "tactics": tactics, "tuned": tuned,
          "metamorphic": metamorphic, "sequence": sequence, "tuner": tuner, "layout": layout}
#: Names of all groups, for reports and test ids.
GROUPS = (*CHECKS, "contract")


def run_checks(session: Session, only: frozenset[str] | None = None, tactic: str | None = None) -> None:
    """Run every check that applies to the session's case; ``only`` narrows them (``values`` always runs).

    tactic: force this one (by its ``str``) instead of all checks; a note says so when the backend does not offer it.
    Findings and notes are left in the session. Never raises for what the backend does.
    """
    try:
        traits = session.traits()
        probed = unsupported(traits, session.case)
        with weights_watched(session, told=only is None or "memory" in only):
            if probed is not None:
                contract(session, probed)
            elif (only is not None and "layout" not in only) or placement(session):
                _run(session, only, tactic)
    except ScenarioAborted:
        return
    except MoeguardError as error:
        session.note("case", str(error))


def _run(session: Session, only: frozenset[str] | None, tactic: str | None) -> None:
    if tactic is not None:
        values(session)
        force_named(session, tactic)
        return
    for name, check in CHECKS.items():
        if only is None or name in only or name == "values":
            check(session)
