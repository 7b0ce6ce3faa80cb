"""Healthy variants are right on every shared case, and keep what they declare."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
import torch
from torch import Tensor

from moeguard.backends.protocol import REFUSALS, Backend
from moeguard.checks.declared import unsupported
from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.mutants.catalogue import CORPUS, HEALTHY
from moeguard.oracle.judge import Judge
from moeguard.oracle.reference import make_reference
from moeguard.tensors.problem import Problem, build_problem
from moeguard.tensors.weights import WeightBank

BANK = WeightBank()
_problems: dict[Case, Problem] = {}
_judges: dict[tuple[Case, Numerics], Judge] = {}


def problem_of(case: Case) -> Problem:
    if case not in _problems:
        _problems[case] = build_problem(case, BANK)
    return _problems[case]


def judge_of(case: Case, numerics: Numerics) -> Judge:
    key = (case, numerics)
    if key not in _judges:
        _judges[key] = Judge(make_reference(problem_of(case), numerics))
    return _judges[key]


def undeclared(backend: Backend, case: Case) -> bool:
    """Whether the backend declares that it refuses the case."""
    return unsupported(backend.traits(case), case) is not None


def run(backend: Backend, case: Case, tactic: Hashable | None, fill: float) -> Tensor:
    problem = problem_of(case)
    prepared = backend.prepare(problem.weights, case)
    out = torch.full(problem.output_shape, fill, dtype=problem.output_dtype)
    size = backend.workspace_bytes(prepared, problem.batch)
    workspace = torch.full((size,), 0xFF if fill != fill else 0x41, dtype=torch.uint8) if size else None
    backend.run(prepared, problem.batch, out, tactic=tactic, workspace=workspace)
    return out


@pytest.mark.parametrize("kind", HEALTHY, ids=lambda kind: kind.name)
def test_right_on_the_corpus(kind: type[Backend]) -> None:
    backend, judged = kind(), 0
    for case in CORPUS:
        if not backend.supports(case).supported:
            continue
        if undeclared(backend, case):
            with pytest.raises(REFUSALS):
                run(backend, case, None, torch.nan)
            continue
        prepared = backend.prepare(problem_of(case).weights, case)
        for tactic in (None, *backend.tactics(prepared, problem_of(case).batch)):
            judge = judge_of(case, backend.numerics(case, tactic))
            for fill in (torch.nan, 3.0):
                answer = run(backend, case, tactic, fill)
                verdict = judge.judge(answer)
                assert verdict.passed or (verdict.soft and not judge.confirms(answer, verdict)), (case, verdict)
                judged += 1
            assert backend.executed_tactic() in (tactic, None) or tactic is None
        choice = backend.tune(prepared, problem_of(case).batch)
        assert choice is None or choice in backend.tactics(prepared, problem_of(case).batch)
    assert judged >= 4


def test_names_are_unique() -> None:
    names = [kind.name for kind in HEALTHY]
    assert len(set(names)) == len(names) >= 12
    assert all(name.startswith("healthy_") for name in names)


def test_declared_batch_invariance_holds() -> None:
    backend = next(kind for kind in HEALTHY if kind.name == "healthy_row_wise")()
    case = CORPUS[2]
    problem = problem_of(case)
    whole = run(backend, case, None, 0.0)
    batch = problem.batch
    assert batch.topk_ids is not None and batch.topk_weights is not None
    one = slice(3, 4)
    alone = type(batch)(type(batch.x)(batch.x.data[one], batch.x.scale, format=batch.x.format), batch.topk_ids[one],
                        batch.topk_weights[one])
    out = torch.empty_like(whole[one])
    backend.run(backend.prepare(problem.weights, case), alone, out)
    assert torch.equal(out, whole[one])


def test_declared_nondeterminism_is_real() -> None:
    backend = next(kind for kind in HEALTHY if kind.name == "healthy_random_order")()
    answers = [run(backend, CORPUS[5], None, 0.0) for _ in range(3)]
    assert not torch.equal(answers[0], answers[1]) or not torch.equal(answers[0], answers[2])
