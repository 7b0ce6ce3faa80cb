"""``metamorphic``: partners of the batch whose answers follow from the oracle's answer to the batch itself.

Wrong for the partner while right for the batch is ``metamorphic``; bits that change for a token although batch invariance
is declared are ``batch_variance``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from moeguard.checks.session import Session
from moeguard.checks.subject import Subject
from moeguard.core.case import Case
from moeguard.oracle.partners import reordered, scaled, selected, without_slot
from moeguard.oracle.sampling import judge_of
from moeguard.tensors.operand import Operand, Weights
from moeguard.tensors.problem import with_batch

#: Relations per scenario; they rotate with the seed. Those that need other weights come less often.
PER_SCENARIO = 2


def metamorphic(session: Session) -> None:
    """Run a few relations on partners of the batch."""
    if session.first is None or not session.first.ok or session.base.problem.batch.topk_ids is None:
        return
    start = session.case.seed // 7
    for step in range(PER_SCENARIO):
        RELATIONS[(start + step) % len(RELATIONS)](session)


def permuted(session: Session) -> None:
    """Tokens in another order: the same rows in that order."""
    if session.case.shape.num_tokens < 2:
        return
    subject, order = _permuted(session)
    _invariant(session, _run(session, "tokens permuted", subject), order, "tokens permuted")


def _permuted(session: Session) -> tuple[Subject, Tensor]:
    base, case = session.base, session.case
    generator = torch.Generator().manual_seed(case.seed)
    order = torch.randperm(case.shape.num_tokens, generator=generator).to(base.problem.device)
    partner = with_batch(base.problem, base.problem.batch.rows(order))
    return Subject(partner, base.prepared, lambda n: reordered(base.judge(n), order, partner),
                   verified=base.verified_as(lambda answer: answer[order]), again=lambda other: _permuted(other)[0]), order


def alone(session: Session) -> None:
    """One token alone: the same row."""
    if session.case.shape.num_tokens < 2 or not session.support(session.case.with_(shape={"num_tokens": 1})).supported:
        return
    subject, token = _alone(session)
    _invariant(session, _run(session, f"token {int(token)} alone", subject), token, "a token alone")


def _alone(session: Session) -> tuple[Subject, Tensor]:
    base, case = session.base, session.case
    rows = base.judge(session.numerics(case, None)).rows  # a token that the oracle knows
    number = case.seed % case.shape.num_tokens if rows is None else int(rows[case.seed % len(rows)])
    token = torch.tensor([number], device=base.problem.device)
    partner = with_batch(base.problem, base.problem.batch.rows(token), case=case.with_(shape={"num_tokens": 1}))
    return Subject(partner, base.prepared, lambda n: selected(base.judge(n), number, partner),
                   again=lambda other: _alone(other)[0]), token


def doubled(session: Session) -> None:
    """Twice the routing weights: twice the answer."""
    _run(session, "topk_weights doubled", _doubled(session))


def _doubled(session: Session) -> Subject:
    base, batch = session.base, session.base.problem.batch
    assert batch.topk_weights is not None
    partner = with_batch(base.problem, replace(batch, topk_weights=batch.topk_weights * 2))
    return Subject(partner, base.prepared, lambda n: scaled(base.judge(n), 2.0, partner),
                   verified=base.verified_as(lambda answer: answer * 2), again=_doubled)


def zeroed(session: Session) -> None:
    """One routing weight of each token set to zero: that expert's contribution is gone."""
    if session.case.shape.top_k > 1:
        _run(session, "one topk_weight zeroed", _zeroed(session))


def _zeroed(session: Session) -> Subject:
    base, batch = session.base, session.base.problem.batch
    assert batch.topk_weights is not None
    rank = torch.argmin(batch.topk_weights, dim=1)
    weights = batch.topk_weights.scatter(1, rank[:, None], 0.0)
    partner = with_batch(base.problem, replace(batch, topk_weights=weights))
    return Subject(partner, base.prepared, lambda n: without_slot(base.judge(n), rank, partner), again=_zeroed)


def relabelled(session: Session) -> None:
    """Experts renamed, ids and weights alike: the same answer."""
    if session.case.experts_local > 1:
        _run(session, "experts relabelled", _relabelled(session))


def _relabelled(session: Session) -> Subject:
    base, case = session.base, session.case
    batch, local, first = base.problem.batch, case.experts_local, case.first_expert
    assert batch.topk_ids is not None
    generator = torch.Generator().manual_seed(case.seed + 1)
    order = torch.randperm(local, generator=generator).to(base.problem.device)
    new_name = torch.empty_like(order)
    new_name[order] = torch.arange(local, device=order.device)
    mine = (batch.topk_ids >= first) & (batch.topk_ids < first + local)
    renamed = new_name[(batch.topk_ids - first).clamp(0, local - 1).long()].to(torch.int32) + first
    ids = torch.where(mine, renamed, batch.topk_ids)
    weights = _experts(base.problem.weights, order)
    partner = with_batch(base.problem, replace(batch, topk_ids=ids), weights=weights)
    prepared = session.guarded("prepare", lambda: session.backend.prepare(weights, case), None, "metamorphic")
    return Subject(partner, prepared, base.judge, verified=base.verified, again=_relabelled)


def sharded(session: Session) -> None:
    """The experts over two ranks: each rank's partial sum is right, and together they are the whole."""
    case, base = session.case, session.base
    if case.parallel.ep_size > 1 or case.shape.num_experts % 2:
        return
    assert session.first is not None
    total = torch.zeros_like(base.judge(session.numerics(case, None)).reference.y)
    variance, declared = torch.zeros_like(total), session.first.judgement.passed
    for rank in range(2):
        shard = _shard_case(case, rank)
        if not session.support(shard).supported:
            return
        subject = _shard(session, rank)
        run = session.execute("metamorphic", f"EP rank {rank} of 2", subject=subject, wrong="metamorphic")
        if not run.ok:
            return
        declared &= run.judgement.passed
        mine = subject.judge(session.numerics(shard, None))
        total += mine.cut(run.answer).double()
        variance += mine.reference.deviation.square()
    if not declared:  # right by finer rounding points than the whole is judged by here
        return
    judge = base.judge(session.numerics(case, None))
    z = ((total - judge.reference.y) / variance.sqrt() * (judge.inverse > 0)).abs()
    worst = float(z.nan_to_num().max()) if z.numel() else 0.0
    if worst > 1.5 * judge.limits.element(judge.judged):
        session.report("metamorphic", "metamorphic", None, "the partial sums of two EP ranks do not add up to the whole",
                       {"relation": "EP shards", "max_z": worst})


def _shard_case(case: Case, rank: int) -> Case:
    return case.with_(parallel={"ep_size": 2, "ep_rank": rank})


def _shard(session: Session, rank: int) -> Subject:
    shard, resources = _shard_case(session.case, rank), session.resources
    weights = resources.bank.get(shard, resources.device)
    problem = replace(session.base.problem, case=shard, weights=weights)
    prepared = session.guarded("prepare", lambda: resources.prepare(session.backend, shard, weights), None, "metamorphic")
    return Subject(problem, prepared, lambda numerics: judge_of(problem, numerics), again=lambda other: _shard(other, rank))


RELATIONS: tuple[Callable[[Session], None], ...] = (permuted, alone, doubled, relabelled, zeroed, sharded)


def _run(session: Session, relation: str, subject: Subject) -> Tensor | None:
    """Execute a partner; its answer when right, None (with a finding) when not."""
    run = session.execute("metamorphic", relation, subject=subject, wrong="metamorphic")
    return run.answer if run.ok else None


def _invariant(session: Session, answer: Tensor | None, rows: Tensor, relation: str) -> None:
    assert session.first is not None
    if answer is None or not session.traits().batch_invariant:
        return
    wanted = session.first.answer[rows]
    if not torch.equal(answer.view(torch.int16), wanted.view(torch.int16)):
        differing = int((answer != wanted).sum())
        session.report("batch_variance", "metamorphic", None,
                       f"{differing} elements change with {relation}, although batch invariance is declared",
                       {"relation": relation, "differing": differing})


def _experts(weights: Weights, order: Tensor) -> Weights:
    def operand(value: Operand) -> Operand:
        return value.experts(order)

    def optional(value: Operand | None) -> Operand | None:
        return None if value is None else operand(value)

    return replace(weights, gate=operand(weights.gate), up=optional(weights.up), down=operand(weights.down),
                   gate_bias=optional(weights.gate_bias), up_bias=optional(weights.up_bias),
                   down_bias=optional(weights.down_bias))
