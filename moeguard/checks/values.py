"""``values``: the default tactic against the oracle; and the weights, which must be intact after a scenario."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from moeguard.checks.raised import ScenarioAborted
from moeguard.checks.session import Session
from moeguard.checks.subject import weight_digests


def values(session: Session) -> None:
    """One execution of the default tactic; its answer is the scenario's baseline."""
    session.first = session.execute("values", "base")


@contextlib.contextmanager
def weights_watched(session: Session, *, told: bool = True) -> Iterator[None]:
    """Compare digests of the weights after the calls into the backend; other scenarios are made of the same ones.

    On a change find the tactic that makes it and report ``input_mutated``, if ``told``. After a crash it is not looked for, and
    the change is reported all the same.
    """
    before = session.resources.digests(session.case)
    try:
        yield
    except ScenarioAborted:
        with contextlib.suppress(RuntimeError):  # the device may be gone; then so is this process soon
            _compare(session, before, told)
        raise
    except BaseException:
        session.resources.forget()
        raise
    _compare(session, before, told)


def _compare(session: Session, before: dict[str, int], told: bool) -> None:
    now = weight_digests(session.resources.problem(session.case))
    changed = sorted(name for name, value in now.items() if before.get(name) != value)
    if not changed:
        return
    if told:
        crashed = any(finding.kind == "crash" for finding in session.findings)
        tactic, where = (None, "a call before or in a crash") if crashed else _bisect(session)
        session.report("input_mutated", "memory", tactic, f"{where} changed {', '.join(changed)}", {"changed": changed})
    session.resources.forget()


def _bisect(session: Session) -> tuple[str | None, str]:
    """The first of prepare, default and forced tactics that changes fresh weights."""
    probe = Session(session.backend, session.case, session.resources, entering=session.entering)
    session.resources.forget()
    fresh = probe.resources.digests(probe.case)
    base = probe.base
    if weight_digests(base.problem) != fresh:
        return None, "prepare"
    candidates = [None, *probe.guarded("tactics", lambda: probe.backend.tactics(base.prepared, base.problem.batch))]
    for tactic in candidates:
        probe.execute("memory", "bisect", tactic=tactic, quiet=True)
        if weight_digests(base.problem) != fresh:
            return (None if tactic is None else str(tactic)), "run"
    return None, "a sequence of calls"
