"""Two backends on one case, side by side: each is judged against the reference, and then they are held against each other.

The verdict on each is the reference's. Their distance is a second opinion: two backends that are wrong in the same way point
to the reference, or to what both declare, rather than to a kernel. A backend that has the batched format alone takes part in a
case of the standard format: it gets the rows of each expert, and its answers are combined in float32, as an engine does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from moeguard.backends.protocol import Backend
from moeguard.checks.contract import contract
from moeguard.checks.declared import unsupported
from moeguard.checks.raised import ScenarioAborted
from moeguard.checks.session import Session
from moeguard.checks.subject import Resources
from moeguard.checks.values import values
from moeguard.core.case import Case
from moeguard.core.errors import MoeguardError
from moeguard.core.finding import Finding
from moeguard.oracle.judge import Judge
from moeguard.oracle.sampling import judge_of

#: right, wrong: against the reference. unjudged: nothing in the answer can be compared. refused: not supported, or not run.
Standing = Literal["right", "wrong", "unjudged", "refused"]
Outcome = Literal["agree", "one wrong", "both wrong, alike", "both wrong, apart", "not compared"]


@dataclass(frozen=True, slots=True)
class Side:
    """What one backend made of the case. activation_format: the one in which it was called. reason: why it was refused."""

    backend: str
    activation_format: str
    standing: Standing
    findings: tuple[Finding, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Distance:
    """The largest difference of two answers, in units of what both may be away from their references together.

    row, column: its place; a row is a token, in the batched format a row of [E_local * max_tokens]. first, second: both values.
    """

    share: float
    row: int
    column: int
    first: float
    second: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """distance: None where an answer is missing, not finite, or nothing of it is judged."""

    case: Case
    sides: tuple[Side, Side]
    distance: Distance | None
    executions: int

    @property
    def wrong(self) -> tuple[str, ...]:
        """Names of the backends that the reference says are wrong."""
        return tuple(side.backend for side in self.sides if side.standing == "wrong")

    @property
    def outcome(self) -> Outcome:
        """``both wrong, alike``: within the band of each other, though neither is within that of its reference."""
        if len(self.wrong) == 2:
            return "both wrong, alike" if self.distance is not None and self.distance.share <= 1 else "both wrong, apart"
        if self.wrong:
            return "one wrong"
        return "agree" if all(side.standing == "right" for side in self.sides) else "not compared"


@dataclass(frozen=True, slots=True)
class _Answer:
    """answer [R, H] with its judge, in the format of the case."""

    answer: Tensor
    judge: Judge


def side_by_side(first: Backend, second: Backend, case: Case, resources: Resources) -> Comparison:
    """Run the default tactic of both once. Never raises for what a backend does."""
    with resources.defaults.of_guard():
        sides, answers, executions = [], [], 0
        for backend in (first, second):
            side, answer, number = _run(backend, case, resources)
            sides.append(side)
            answers.append(answer)
            executions += number
        one, two = answers
        distance = None if one is None or two is None else _distance(one, two)
        return Comparison(case, (sides[0], sides[1]), distance, executions)


def _run(backend: Backend, case: Case, resources: Resources) -> tuple[Side, _Answer | None, int]:
    session = Session(backend, case, resources)
    try:
        support = session.support(case)
        if not support.supported and case.activation_format == "standard":
            session = Session(backend, case.with_(activation_format="batched"), resources)
            if not session.support(session.case).supported:
                return Side(backend.name, "standard", "refused", reason=support.reason), None, 0
        elif not support.supported:
            return Side(backend.name, case.activation_format, "refused", reason=support.reason), None, 0
        probed = unsupported(session.traits(), session.case)
        if probed is not None:
            contract(session, probed)
        else:
            values(session)
    except ScenarioAborted:
        pass
    except MoeguardError as error:
        return Side(backend.name, session.case.activation_format, "refused", reason=str(error)), None, 0
    return _side(session), _answer(session, case), session.executions


def _side(session: Session) -> Side:
    name, form, run = session.backend.name, session.case.activation_format, session.first
    if session.findings:
        return Side(name, form, "wrong", tuple(session.findings))
    if run is None:
        reason = session.notes[-1].reason if session.notes else "declared as unsupported, and refused"
        return Side(name, form, "refused", reason=reason)
    return Side(name, form, "right" if run.judgement.numbers.get("elements") else "unjudged")


def _answer(session: Session, case: Case) -> _Answer | None:
    run = session.first
    if run is None or not run.whole:
        return None
    numerics = session.numerics(session.case, None)
    if session.case == case:
        return _Answer(run.answer, session.base.judge(numerics))
    judge = judge_of(session.resources.problem(case), numerics)
    return _Answer(_combined(run.answer, session.resources, case), judge)


def _combined(rows: Tensor, resources: Resources, case: Case) -> Tensor:
    """Rows [E_local * max_tokens, H] of the batched problem, weighted and added for each token of ``case``: [T, H]."""
    batch = resources.problem(case).batch
    assert batch.topk_ids is not None and batch.topk_weights is not None
    packed = rows.view(case.experts_local, -1, rows.shape[1]).float()
    total = torch.zeros(batch.topk_ids.shape[0], rows.shape[1], device=rows.device)
    for expert in range(case.experts_local):
        token, rank = (batch.topk_ids == case.first_expert + expert).nonzero(as_tuple=True)
        total.index_add_(0, token, packed[expert, :len(token)] * batch.topk_weights[token, rank, None])
    return total.to(rows.dtype)


def _distance(one: _Answer, two: _Answer) -> Distance | None:
    """None unless some element is judged on both sides and all of those are finite.

    A sampled oracle sees the same rows of both.
    """
    judged = (one.judge.inverse > 0) & (two.judge.inverse > 0)
    first, second = one.judge.cut(one.answer).double(), two.judge.cut(two.answer).double()
    if not bool(judged.any()) or not bool((torch.isfinite(first - second) | ~judged).all()):
        return None
    limit = one.judge.limits.element(one.judge.judged)
    a, b = one.judge.reference, two.judge.reference
    band = limit * (a.deviation + b.deviation) + (a.y - b.y).abs()
    share = torch.where(judged, (first - second).abs() / band, 0.0)
    row, column = divmod(int(share.argmax()), share.shape[1])
    return Distance(float(share[row, column]), one.judge.row(row), column, float(first[row, column]), float(second[row, column]))
