"""Confirmation: what becomes of an answer that a judge does not pass. Not every exceedance is a finding."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from torch import Tensor

from moeguard.oracle.judge import Judge, Judgement
from moeguard.oracle.sampling import wide_judge

if TYPE_CHECKING:
    from moeguard.checks.session import Session

#: Distance between the seeds of a case and of its confirmation.
SECOND_SEED = 1


class Confirmation:
    """Excuses of one session, each asked for once. final: nothing is excused, as on the second seed itself."""

    def __init__(self, *, final: bool = False) -> None:
        self._final = final
        self._stood: dict[tuple[object, ...], bool] = {}

    def excused(self, session: Session, check: str, tactic: Hashable | None, judge: Judge, answer: Tensor,
                judgement: Judgement) -> bool:
        """Whether a finer recipe explains the answer, or more twins and a second seed do not confirm a soft exceedance.

        judge: the one that ``judgement`` is from.
        """
        if judgement.passed or self._final or {"finite", "exact"} & set(judgement.failed):
            return False
        key = (str(tactic), judgement.failed, judgement.numbers.get("worst_row") if judgement.confirmed else None)
        if key not in self._stood:
            self._stood[key] = _stands(session, check, tactic, judge, answer, judgement)
        return not self._stood[key]


def _stands(session: Session, check: str, tactic: Hashable | None, judge: Judge, answer: Tensor, judgement: Judgement) -> bool:
    rules = ", ".join(judgement.failed)
    if judgement.soft and not judge.confirms(answer, judgement):
        session.note(f"rule {rules}", "a first-look exceedance was not confirmed by more twins")
        return False
    finer = judge.explained_by_finer(answer)
    if finer is not None:
        session.note("numerics", f"keeps more bits than declared (intermediate {finer.intermediate}, expert_output "
                                 f"{finer.expert_output}, combine {finer.combine})")
        return False
    if judgement.soft and not _on_second_seed(session, check, tactic, judge, wide=judgement.confirmed):
        session.note(f"rule {rules}", "a first-look exceedance was not confirmed by a second seed")
        return False
    return True


def _on_second_seed(session: Session, check: str, tactic: Hashable | None, judge: Judge, *, wide: bool) -> bool:
    """Whether the case of ``judge``, which may be a partner of the session's, is wrong with another seed too.

    wide: only another answer told the rows of ``judge`` from the others, so that these and many more are judged there.
    """
    case, outside = judge.reference.problem.case, judge.rows
    other = session.beside(case.with_(seed=case.seed + SECOND_SEED))
    other.confirmation = Confirmation(final=True)
    again = other.execute(check, "second seed", tactic=tactic, quiet=True)
    numerics, judgement = other.numerics(other.case, tactic), again.judgement
    if wide and outside is not None:
        rows = other.base.problem.flat_ids.shape[0]
        judge = wide_judge(other.base.problem, numerics, outside[outside < rows])
        judgement = judge.judge(again.answer)
    else:
        judge = other.base.judge(numerics)
    return not (judgement.passed or (judgement.soft and not judge.confirms(again.answer, judgement)))
