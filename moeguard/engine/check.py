"""``moeguard.check``: one backend on one case, in this process."""

from __future__ import annotations

from functools import lru_cache

from moeguard.backends.protocol import Backend
from moeguard.checks.subject import Resources
from moeguard.core.case import Case
from moeguard.core.verdict import Note, Verdict
from moeguard.engine.scenario import run_scenario


def check(backend: Backend, case: Case, device: str = "cpu") -> Verdict:
    """Run every check of ``case`` on ``backend`` and return the verdict.

    device: ``cpu`` or ``cuda``. Runs in the calling process: a backend that hangs or kills the process is not contained
    here (``moeguard run`` and ``moeguard replay`` isolate it in a worker).
    """
    session = run_scenario(backend, case, _resources(device))
    notes = tuple(Note(note.what, note.reason, note.backend, note.recipe) for note in session.notes)
    return Verdict(tuple(session.findings), session.executions, notes)


@lru_cache(maxsize=2)
def _resources(device: str) -> Resources:
    return Resources(device)
