"""Judges of partner problems, whose references follow from a known one; where that is sampled, so are they."""

from __future__ import annotations

import torch
from torch import Tensor

from moeguard.oracle import derive
from moeguard.oracle.judge import Judge
from moeguard.oracle.sampling import sampled
from moeguard.tensors.problem import Problem


def reordered(judge: Judge, order: Tensor, problem: Problem) -> Judge:
    """After the batch was gathered by ``order`` [T] (a permutation)."""
    if judge.rows is None:
        return judge.partner(derive.reordered(judge.reference, order, problem))
    rows, index = torch.argsort(order)[judge.rows].sort()
    return judge.partner(derive.reordered(judge.reference, index, sampled(problem, rows)), rows)


def scaled(judge: Judge, factor: float, problem: Problem) -> Judge:
    """After ``topk_weights`` were multiplied by ``factor``, a power of two >= 1."""
    return judge.partner(derive.scaled(judge.reference, factor, _cut(judge, problem)), judge.rows)


def selected(judge: Judge, token: int, problem: Problem) -> Judge:
    """Of one token alone, which must be one of the judge's rows; ``problem`` holds just that."""
    place = token if judge.rows is None else int((judge.rows == token).nonzero()[0, 0])
    return Judge(derive.selected(judge.reference, torch.tensor([place], device=problem.device), problem), judge.limits)


def without_slot(judge: Judge, rank: Tensor, problem: Problem) -> Judge:
    """After ``topk_weights[t, rank[t]]`` became zero."""
    mine = rank if judge.rows is None else rank[judge.rows]
    return judge.partner(derive.without_slot(judge.reference, mine, _cut(judge, problem)), judge.rows)


def _cut(judge: Judge, problem: Problem) -> Problem:
    return problem if judge.rows is None else sampled(problem, judge.rows)
