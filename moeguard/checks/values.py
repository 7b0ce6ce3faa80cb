"""``values``: the default tactic against the oracle; and the weights, which must be intact after a scenario."""

from __future__ import annotations

from moeguard.checks.session import Session
from moeguard.checks.subject import weight_digests


def values(session: Session) -> None:
    """One execution of the default tactic; its answer is the scenario's baseline."""
    session.first = session.execute("values", "base")


def weights_intact(session: Session, before: dict[str, int]) -> None:
    """Compare digests after the scenario; on a change, find the tactic that makes it and report ``input_mutated``."""
    now = weight_digests(session.resources.problem(session.case))
    changed = sorted(name for name, value in now.items() if before.get(name) != value)
    if not changed:
        return
    guilty, where = _bisect(session)
    session.report("input_mutated", "memory", guilty, f"{where} changed {', '.join(changed)}", {"changed": changed})
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
