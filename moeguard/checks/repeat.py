"""``memory``: the same call on another poison pattern. ``repeat``: the same call again.

Both must give the same bits where the backend declares determinism.
"""

from __future__ import annotations

import torch

from moeguard.checks.burst import burst
from moeguard.checks.session import Execution, Session

#: Further executions of the same call.
REPEATS = 2


def memory(session: Session) -> None:
    """A second execution on the other family of poison, so that no legitimate value is mistaken for poison."""
    _again(session, "memory", "other poison")


def repeat(session: Session) -> None:
    """Repeat the default call on fresh poison; bits that change are a race, or memory that should not matter."""
    for number in range(2, REPEATS + 2):
        if not _again(session, "repeat", f"repeat {number}"):
            return
    if session.first is not None:
        burst(session, session.first, None, "repeat")
    if not session.traits().deterministic:
        session.note("determinism", "the backend declares that equal inputs may give different bits")


def _again(session: Session, check: str, role: str) -> bool:
    """One more execution; False when its bits differ although they must not."""
    first, deterministic = session.first, session.traits().deterministic
    assert first is not None
    again = session.execute(check, role, quiet=deterministic)
    if not deterministic or not first.whole or not again.whole or again.same_bits(first):
        return True
    _classify(session, check, first, again)
    return False


def _classify(session: Session, check: str, first: Execution, other: Execution) -> None:
    """Tell dependence on poisoned memory (each pattern reproduces its own answer) from nondeterminism."""
    different = first.answer.view(torch.int16) != other.answer.view(torch.int16)
    differing, where = int(different.sum()), different.nonzero()
    place = [int(v) for v in where[0]] if where.numel() else [0, 0]
    again = [session.execute(check, "same poison", pattern=run.pattern, quiet=True) for run in (first, other)]
    numbers = {"differing": differing, "elements": first.answer.numel(), "worst_row": place[0], "worst_column": place[1]}
    if again[0].same_bits(first) and again[1].same_bits(other):
        size = session.workspace_bytes(session.base)
        held = "the workspace or out" if size else "out"
        session.report("workspace_dependence" if size else "unwritten_output", check, None,
                       f"{differing} elements depend on what {held} held before the call", numbers)
        return
    session.report("nondeterministic", check, None,
                   f"{differing} elements differ between two identical calls, the first at row {place[0]}, column "
                   f"{place[1]}, although determinism is declared", numbers)
