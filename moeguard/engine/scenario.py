"""One scenario: a backend on a case, all its executions, as events."""

from __future__ import annotations

import time
from collections.abc import Callable

from moeguard.backends.protocol import Backend
from moeguard.checks.exhausted import exhausted
from moeguard.checks.plan import run_checks
from moeguard.checks.raised import ScenarioAborted
from moeguard.checks.session import Calling, Session
from moeguard.checks.subject import Resources
from moeguard.checks.sweep import sweep
from moeguard.core.case import Case
from moeguard.core.events import Event, ScenarioFinished


def run_scenario(backend: Backend, case: Case, resources: Resources, *, scenario: int = 0,
                 emit: Callable[[Event], None] = lambda event: None,
                 entering: Callable[[Calling | None], None] = lambda call: None,
                 only: frozenset[str] | None = None, tactic: str | None = None,
                 swept: frozenset[str | None] | None = None) -> Session:
    """Run every check of ``case`` and return the finished session.

    emit: receives Executed, Found and Noted as they happen and one ScenarioFinished at the end. entering: told a
    Calling before each call into the backend, None after it. only: names of check groups, None for all. tactic: force this.
    swept: sweep all tactics but these instead.
    """
    with resources.defaults.of_guard():
        return _run(backend, case, resources, scenario, emit, entering, only, tactic, swept)


def _run(backend: Backend, case: Case, resources: Resources, scenario: int, emit: Callable[[Event], None],
         entering: Callable[[Calling | None], None], only: frozenset[str] | None, tactic: str | None,
         swept: frozenset[str | None] | None) -> Session:
    start = time.perf_counter()
    session = Session(backend, case, resources, scenario=scenario, emit=emit, entering=entering)
    status = "clean"
    try:
        support = session.support(case)
    except ScenarioAborted:
        support = None
    if support is not None and not support.supported:
        session.note("case", support.reason or "the backend does not support it")
        status = "refused"
    elif support is not None:
        try:
            if swept is not None:
                sweep(session, swept, emit)
            else:
                run_checks(session, only, tactic)
        except (MemoryError, RuntimeError) as error:
            if exhausted(error) != "memory":
                raise
            session.note("memory", "the guard ran out of memory on this case")
    if any(note.what == "memory" for note in session.notes):
        resources.release()
    if session.findings:
        status = "findings"
    emit(ScenarioFinished(scenario=scenario, status=status, executions=session.executions,
                          seconds=time.perf_counter() - start))
    return session
