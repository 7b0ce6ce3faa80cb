"""``values``: the default tactic against the oracle; and the weights, which must be intact after a scenario."""

from __future__ import annotations

from moeguard.checks.session import Session
from moeguard.memory.digest import digest


def values(session: Session) -> None:
    """One execution of the default tactic; its answer is the scenario's baseline."""
    session.first = session.execute("values", "base")


def weight_digests(session: Session) -> dict[str, int]:
    """Digest of every weight tensor, by name."""
    return {name: digest(tensor) for name, tensor in session.resources.problem(session.case).weights.tensors().items()}


def weights_intact(session: Session, before: dict[str, int]) -> None:
    """Compare digests after the scenario; on a change, find the tactic that makes it and report ``input_mutated``."""
    changed = sorted(name for name, value in weight_digests(session).items() if before.get(name) != value)
    if not changed:
        return
    guilty, where = _bisect(session)
    session.report("input_mutated", "memory", guilty, f"{where} changed {', '.join(changed)}", {"changed": changed})
    session.resources.forget(session.case)


def _bisect(session: Session) -> tuple[str | None, str]:
    """The first of prepare, default and forced tactics that changes fresh weights."""
    probe = Session(session.backend, session.case, session.resources, entering=session.entering)
    session.resources.forget(session.case)
    fresh = weight_digests(probe)
    base = probe.base
    if weight_digests(probe) != fresh:
        return None, "prepare"
    candidates = [None, *probe.guarded("tactics", lambda: probe.backend.tactics(base.prepared, base.problem.batch))]
    for tactic in candidates:
        probe.execute("memory", "bisect", tactic=tactic, quiet=True)
        if weight_digests(probe) != fresh:
            return (None if tactic is None else str(tactic)), "run"
    return None, "a sequence of calls"
