"""``repeat``: the same call again must give the same bits where the backend declares determinism."""

from __future__ import annotations

from moeguard.checks.session import Execution, Session

#: Further executions of the same call.
REPEATS = 2


def repeat(session: Session) -> None:
    """Repeat the default call on fresh poison; bits that change are a race, or memory that should not matter."""
    first = session.first
    assert first is not None
    deterministic = session.traits().deterministic
    for number in range(2, REPEATS + 2):
        again = session.execute("repeat", f"repeat {number}")
        if deterministic and first.ok and again.ok and not again.same_bits(first):
            classify(session, first, again)
            return
    if not deterministic:
        session.note("determinism", "the backend declares that equal inputs may give different bits")


def classify(session: Session, first: Execution, other: Execution) -> None:
    """Tell dependence on poisoned memory (each pattern reproduces its own answer) from nondeterminism."""
    differing = int((first.answer != other.answer).sum())
    where = (first.answer != other.answer).nonzero()
    place = [int(v) for v in where[0]] if where.numel() else [0, 0]
    again = [session.execute("repeat", "same poison", pattern=run.pattern) for run in (first, other)]
    numbers = {"differing": differing, "elements": first.answer.numel(), "worst_row": place[0], "worst_column": place[1]}
    if again[0].same_bits(first) and again[1].same_bits(other):
        size = session.guarded("workspace_bytes", lambda: session.backend.workspace_bytes(
            session.base.prepared, session.base.problem.batch))
        if size:
            session.report("workspace_dependence", "repeat", None,
                           f"{differing} elements depend on what the workspace or out held before the call", numbers)
        else:
            session.report("unwritten_output", "repeat", None,
                           f"{differing} elements depend on what out held before the call", numbers)
        return
    session.report("nondeterministic", "repeat", None,
                   f"{differing} elements differ between two identical calls, the first at row {place[0]}, column "
                   f"{place[1]}, although determinism is declared", numbers)
