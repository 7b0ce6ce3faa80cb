"""``tuner``: state of the library's tuner. The cap that was asked for last is the one that holds, whatever came before."""

from __future__ import annotations

from collections.abc import Sequence

from moeguard.backends.protocol import Backend
from moeguard.checks.session import Session

#: Caps in the order in which they are asked for: A, B, A.
CAPS = (8192, 512, 8192)


def tuner(session: Session) -> None:
    """Ask for one cap after another; a cap that was honoured at first and is not later is ``stale_state``.

    A backend is asked once for each recipe in a process. The default is run afterwards: asking must not change answers.
    """
    if type(session.backend).tuning_caps is Backend.tuning_caps:
        session.note("tuner", "the backend has no tuning_caps()")
        return
    base = session.base
    answers = session.resources.tuning_caps(session.backend, session.case.recipe, lambda: session.guarded(
        "tuning_caps", lambda: _checked(session.backend.tuning_caps(base.prepared, base.problem.batch, CAPS)), check="tuner"))
    if answers is None:
        session.note("tuner", "the backend says that its tuner keeps no cap")
        return
    wrong = [place for place, answer in enumerate(answers) if answer != CAPS[place]]
    if wrong and answers[0] == CAPS[0]:
        asked = CAPS[: wrong[0] + 1]
        session.report("stale_state", "tuner", None,
                       f"after caps {', '.join(map(str, asked))} the tuner works with {answers[wrong[0]]}",
                       {"caps": list(CAPS), "answers": list(answers), "asked": asked[-1], "worked_with": answers[wrong[0]]})
        return
    session.execute("tuner", "after caps", wrong="stale_state")


def _checked(answers: Sequence[int] | None) -> tuple[int, ...] | None:
    """The answers as integers. Raises TypeError or ValueError when there is not one for each cap."""
    if answers is None:
        return None
    numbers = tuple(int(answer) for answer in answers)
    if len(numbers) != len(CAPS):
        raise ValueError(f"{len(numbers)} answers to {len(CAPS)} caps")
    return numbers
