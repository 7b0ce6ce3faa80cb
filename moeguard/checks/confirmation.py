"""Confirmation: what becomes of an answer that a judge does not pass. Not every exceedance is a finding."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from torch import Tensor

from moeguard.checks.raised import ScenarioAborted
from moeguard.checks.subject import Subject
from moeguard.oracle.judge import Judge, Judgement
from moeguard.oracle.sampling import wide_judge

if TYPE_CHECKING:
    from moeguard.checks.session import Session

#: Distance between the seeds of a case and of its confirmation.
SECOND_SEED = 1


def excused(session: Session, check: str, tactic: Hashable | None, subject: Subject, judge: Judge, answer: Tensor,
            judgement: Judgement, refusals: tuple[type[Exception], ...] = ()) -> bool:
    """Whether a finer recipe explains the answer, or more twins and a second seed do not confirm a soft exceedance.

    judge: the one that ``judgement`` is from. refusals: exceptions that would have been an answer. Each exceedance of a subject
    is asked about once.
    """
    if judgement.passed or session.final or {"finite", "exact"} & set(judgement.failed):
        return False
    key = (str(tactic), judgement.failed, judgement.numbers.get("worst_row") if judgement.confirmed else None)
    if key not in subject.stood:
        subject.stood[key] = _stands(session, check, tactic, subject, judge, answer, judgement, refusals)
    return not subject.stood[key]


def _stands(session: Session, check: str, tactic: Hashable | None, subject: Subject, judge: Judge, answer: Tensor,
            judgement: Judgement, refusals: tuple[type[Exception], ...]) -> bool:
    rules = ", ".join(judgement.failed)
    if judgement.soft and not judge.confirms(answer, judgement):
        session.note(f"rule {rules}", "a first-look exceedance was not confirmed by more twins")
        return False
    finer = judge.explained_by_finer(answer)
    if finer is not None:
        session.note("numerics", f"keeps more bits than declared (intermediate {finer.intermediate}, expert_output "
                                 f"{finer.expert_output}, combine {finer.combine})")
        return False
    outside = judge.rows if judgement.confirmed else None
    if judgement.soft and not _on_second_seed(session, check, tactic, subject, outside, refusals):
        session.note(f"rule {rules}", "a first-look exceedance was not confirmed by a second seed")
        return False
    return True


def _on_second_seed(session: Session, check: str, tactic: Hashable | None, subject: Subject, outside: Tensor | None,
                    refusals: tuple[type[Exception], ...]) -> bool:
    """Whether the subject that follows from another seed is wrong too, or worse; a refusal or its absence is neither.

    outside: rows that only another answer told from the others, so that these and many more are judged there.
    """
    other = session.beside(session.case.with_(seed=session.case.seed + SECOND_SEED), final=True)
    try:
        again = other.base if subject.again is None else subject.again(other)
        if again is None:
            return False
        run = other.execute(check, "second seed", tactic=tactic, subject=again, refusals=refusals, quiet=True)
        if run.refused is not None or not run.whole:
            return not run.whole
        numerics, judgement = other.numerics(again.problem.case, tactic), run.judgement
    except ScenarioAborted:  # with a finding, or a note of what ran out
        for note in other.notes:
            session.note(note.what, note.reason)
        return bool(other.findings)
    if outside is None:
        judge = again.judge(numerics)
    else:
        rows = again.problem.flat_ids.shape[0]
        judge = wide_judge(again.problem, numerics, outside[outside < rows])
        judgement = judge.judge(run.answer)
    return not (judgement.passed or (judgement.soft and not judge.confirms(run.answer, judgement)))
