"""A sweep: the default and every offered tactic, each forced, witnessed, judged and timed, whatever the others did.

A worker tells of each tactic that it is done with. When it is lost, its replacement goes on behind the tactic that ended it,
in the same scenario.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Hashable
from statistics import median

from moeguard.backends.protocol import Backend
from moeguard.checks.lost_device import DEVICE_LOST, device_lost
from moeguard.checks.raised import ScenarioAborted
from moeguard.checks.session import Calling, Execution, Session
from moeguard.checks.tactics import force, kind_of_wrong, offered_by, tuned_choice
from moeguard.checks.timing import time_calls
from moeguard.checks.values import values, weights_watched
from moeguard.core.errors import MoeguardError
from moeguard.core.events import Event, Swept


def sweep(session: Session, done: frozenset[str | None], emit: Callable[[Event], None]) -> None:
    """Run every tactic but those of ``done`` (by their ``str``, None for the default), and emit Swept after each.

    What the library's own tuning chooses is one of them, also where it is not offered. A tactic that raises is a finding and
    ends nothing but itself.
    """
    try:
        with weights_watched(session):
            if None not in done:
                _one(session, None, emit)
            offered = offered_by(session)
            if not offered:
                session.note("tactics", "the backend offers none")
            for tactic in offered:
                if str(tactic) not in done:
                    _one(session, tactic, emit)
            choice = tuned_choice(session) if offered and type(session.backend).tune is not Backend.tune else None
            if choice is not None and choice not in offered and str(choice) not in done:  # such as a pair of single tactics
                _one(session, choice, emit)
    except ScenarioAborted:
        return
    except MoeguardError as error:
        session.note("case", str(error))


def _one(session: Session, tactic: Hashable | None, emit: Callable[[Event], None]) -> None:
    name = None if tactic is None else str(tactic)
    run: Execution | None = None
    witnessed: bool | None = None
    seconds: list[float] = []
    with contextlib.suppress(ScenarioAborted):
        if tactic is None:
            values(session)
            run = session.first
        else:
            run, witnessed = force(session, tactic, "tactics", kind_of_wrong(session))
        if run is not None and run.whole:
            seconds = time_calls(session, tactic)
    if run is None and device_lost(session.resources.device):
        session.entering(Calling("run (forced)", "values" if tactic is None else "tactics", name))
        os._exit(DEVICE_LOST)
    emit(Swept(scenario=session.scenario, tactic=name, outcome=_outcome(run), witnessed=witnessed,
               seconds=median(seconds) if seconds else None, runs=len(seconds)))


def _outcome(run: Execution | None) -> str:
    if run is None:
        return "crash"
    if not run.ok:
        return "finding"
    return "ok" if run.judgement.numbers.get("elements") else "unjudged"
