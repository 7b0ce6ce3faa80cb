"""``sequence``: A, B, A on one shape. The second A must be the first one, and B must not be A."""

from __future__ import annotations

from dataclasses import replace

import torch

from moeguard.checks.session import Execution, Session
from moeguard.checks.subject import Subject
from moeguard.oracle.partners import reordered, scaled
from moeguard.tensors.problem import with_batch


def sequence(session: Session) -> None:
    """B is the batch upside down with doubled routing weights: another answer for the same shape."""
    first = session.first
    if first is None or not first.ok or session.base.problem.batch.topk_ids is None:
        return
    other = _other(session)
    b = session.execute("sequence", "B", subject=other, quiet=True)
    if not b.ok:
        last = session.execute("sequence", "A again", quiet=True)
        stale = b.same_bits(first) or not last.ok or (session.traits().deterministic and not last.same_bits(first))
        session.report("stale_state" if stale else "metamorphic", "sequence", None,
                       "a second call on the same shape is answered wrongly, or leaves a trace in the third" if stale else
                       "the rows upside down with doubled routing weights are answered wrongly, the original rows rightly",
                       dict(b.judgement.numbers, rules=list(b.judgement.failed)))
        return
    last = session.execute("sequence", "A again", wrong="stale_state")
    if last.ok and session.traits().deterministic and not last.same_bits(first):
        _stale_or_racy(session, first, last, other)


def _stale_or_racy(session: Session, first: Execution, last: Execution, other: Subject) -> None:
    """A deviation that comes back after B, and only after B, is state; any other is a race."""
    plain = session.execute("sequence", "A without B")
    session.execute("sequence", "B", subject=other, quiet=True)
    after = session.execute("sequence", "A again")
    state = plain.same_bits(first) and after.same_bits(last)
    differing = int((first.answer != last.answer).sum())
    session.report("stale_state" if state else "nondeterministic", "sequence", None,
                   f"{differing} elements changed when the same call was made again after another one on the same shape",
                   {"differing": differing, "elements": first.answer.numel()})


def _other(session: Session) -> Subject:
    base = session.base
    problem = base.problem
    order = torch.arange(problem.output_shape[0] - 1, -1, -1, device=problem.device)
    swapped = problem.batch.rows(order)
    assert swapped.topk_weights is not None
    partner = with_batch(problem, replace(swapped, topk_weights=swapped.topk_weights * 2))
    return Subject(partner, base.prepared, lambda numerics: scaled(reordered(base.judge(numerics), order, partner), 2.0, partner),
                   verified=base.verified_as(lambda answer: answer[order] * 2), again=_other)
