"""Where the oracle is sampled: rows outside of the sample that stand out, in an answer and in the one beside it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from torch import Tensor

from moeguard.checks.confirmation import excused
from moeguard.checks.sentence import describe
from moeguard.checks.subject import Subject, Verified
from moeguard.core.numerics import Numerics
from moeguard.oracle.judge import Judge, Judgement
from moeguard.oracle.sampling import close_judge, judge_rows, stated, suspects

if TYPE_CHECKING:
    from moeguard.checks.session import Session


def outside_sample(session: Session, check: str, tactic: Hashable | None, subject: Subject, answer: Tensor) -> Judgement:
    """What such rows of ``answer`` [T, H], whose sampled rows are right, are worth. One that is right is what later answers are
    compared with; when it turns out wrong beside one of them, that is a finding of its own tactic."""
    session.note("sampled oracle", stated())
    problem, known = subject.problem, subject.verified
    sample = subject.judge(session.numerics(problem.case, tactic))
    rows = suspects(sample, answer, None if known is None else known.answer, problem.valid)
    if not len(rows):
        subject.verified = known or Verified(answer, tactic)
        return Judgement()
    judges: dict[Numerics, Judge] = {}

    def close(one: Tensor, of: Hashable | None) -> Judgement:
        numerics = session.numerics(problem.case, of)
        if numerics not in judges:
            judges[numerics] = close_judge(problem, subject.judge(numerics), rows)
        judgement = judge_rows(judges[numerics], one)
        return Judgement() if excused(session, check, of, subject, judges[numerics], one, judgement) else judgement

    judgement = close(answer, tactic)
    if known is None:
        subject.verified = Verified(answer, tactic) if judgement.passed else None
    elif not (its := close(known.answer, known.tactic)).passed:
        session.report("mismatch", "values", known.tactic, f"outside of the sample, {describe(its)}", its.numbers)
    return judgement
