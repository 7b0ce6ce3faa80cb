"""A sampled oracle for large batches: some token rows, all columns; and rows outside of the sample that stand out.

With n rows drawn at random, a defect on a share f of the rows is missed with probability at most (1 - f)**n. A defect of one
execution alone is found among all rows: what differs most from another execution, or is not finite, goes to the oracle too. Where
no element is proof, a row that is wrong as a whole must be wrong with another seed as well, as everywhere.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from moeguard.core.numerics import Numerics
from moeguard.oracle.judge import Judge, Judgement
from moeguard.oracle.limits import Limits
from moeguard.oracle.reference import make_reference
from moeguard.tensors.counter import Stream
from moeguard.tensors.operand import Batch
from moeguard.tensors.problem import Problem

#: Rows of a batch from which on the oracle is sampled, and rows that are then drawn; and where another seed is asked.
SAMPLED_FROM, SAMPLE_ROWS, WIDE_ROWS = 2048, 512, 8192
#: Rows outside of the sample that one execution may send to the oracle.
SUSPECTS = 32
#: Differences of a row, in units of its largest element, are cut here.
_FAR = 1e12
#: Rules that such a row is judged by. They stood out among all rows, so rules about many rows would be biased.
_ROW_RULES = frozenset({"finite", "element", "exact", "row"})


def judge_of(problem: Problem, numerics: Numerics) -> Judge:
    """The judge of ``problem``: of every row, or from SAMPLED_FROM rows on of SAMPLE_ROWS of them."""
    if problem.flat_ids.shape[0] < SAMPLED_FROM:
        return Judge(make_reference(problem, numerics))
    return _judge_of_rows(problem, numerics, choose_rows(problem))


def wide_judge(problem: Problem, numerics: Numerics, rows: Tensor) -> Judge:
    """The judge of ``rows`` and of WIDE_ROWS others, or of all."""
    return _judge_of_rows(problem, numerics, torch.cat([rows, choose_rows(problem, WIDE_ROWS)]).unique())


def _judge_of_rows(problem: Problem, numerics: Numerics, rows: Tensor) -> Judge:
    return Judge(make_reference(sampled(problem, rows), numerics), rows=rows)


def stated(rows: int = SAMPLE_ROWS, confidence: float = 0.99) -> str:
    """What a sample of ``rows`` rows can miss, in one sentence."""
    return (f"of batches of {SAMPLED_FROM:,} rows and more {rows} are judged against the oracle: a defect on a share f of the "
            f"rows is missed with probability (1 - f)^{rows}, one on {100 * detectable_share(rows, confidence):.2g} % of them is "
            f"seen with {100 * confidence:.0f} %; the others are checked for unwritten and not finite values, and against "
            "another execution")


def suspects(judge: Judge, answer: Tensor, verified: Tensor | None, valid: Tensor | None) -> Tensor:
    """Rows outside of the sample, int64 [n <= SUSPECTS] ascending, of ``answer`` [T, H] that the oracle should see.

    First those that are not finite, then those that differ from ``verified``, another answer to the same batch, by more of their
    size than every sampled row does, the largest first: by the worst element and by the whole row, in turns.
    """
    assert judge.rows is not None
    value = answer.float()
    finite = torch.isfinite(value).all(1)
    orders = [~finite]
    if verified is not None:
        for distance in _distances(value, verified.float()):
            known = distance[judge.rows]
            orders.append(torch.where(distance > (known.max() if len(known) else 0.0), distance, 0.0))
    outside = torch.ones_like(finite) if valid is None else valid.clone()
    outside[judge.rows] = False
    chosen: dict[int, None] = {}
    for order in orders:
        weight = torch.where(outside, order.double(), 0.0)
        top = weight.topk(min(SUSPECTS // len(orders), len(weight)))
        chosen |= dict.fromkeys(top.indices[top.values > 0].tolist())
    return torch.tensor(sorted(chosen), dtype=torch.int64, device=answer.device)


def _distances(value: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Largest and rms difference of each row, in units of the rms of the row in ``other``, float32 [T]; 0 for rows of ``value``
    that are not finite. Rows are divided by their largest element first: squares of what bf16 holds would leave float32.
    """
    largest = other.abs().amax(1, keepdim=True).nan_to_num(1.0, posinf=1.0).clamp_min(torch.finfo(torch.float32).tiny)
    unit = other / largest
    apart = torch.where(torch.isfinite(value).all(1, keepdim=True), value / largest - unit, 0.0)
    apart = apart.abs().nan_to_num(_FAR, posinf=_FAR).clamp_max(_FAR)
    size = unit.square().mean(1).sqrt().nan_to_num(1.0, posinf=1.0).clamp_min(1.0 / _FAR)
    return apart.amax(1) / size, apart.square().mean(1).sqrt() / size


def close_judge(problem: Problem, judge: Judge, rows: Tensor) -> Judge:
    """The judge of ``rows`` [n], which stood out. Levels are those of all rows, of which each is one."""
    share = len(rows) / problem.flat_ids.shape[0]
    limits: Limits = replace(judge.limits, alpha=judge.limits.alpha * share, first_look=judge.limits.first_look * share)
    return Judge(make_reference(sampled(problem, rows), judge.reference.numerics), limits, rows, _ROW_RULES)


def judge_rows(close: Judge, answer: Tensor) -> Judgement:
    """What a ``close_judge`` says of ``answer`` [T, H] in its rows; what is soft has stood against more twins."""
    judgement = close.judge(answer)
    if not judgement.soft:
        return judgement
    return replace(judgement, confirmed=True) if close.confirms(answer, judgement) else Judgement((), judgement.numbers)


def choose_rows(problem: Problem, count: int = SAMPLE_ROWS) -> Tensor:
    """``count`` distinct rows of the batch in ascending order, int64; all rows when there are no more. Follows the case's seed.

    Rows without a defined answer (beyond an expert's count in the batched format) are never drawn.
    """
    rows = torch.arange(problem.flat_ids.shape[0], device=problem.device)
    if problem.valid is not None:
        rows = rows[problem.valid]
    if len(rows) <= count:
        return rows
    case = problem.case
    keys = Stream("sampled-rows", case.seed, case.shape.num_tokens, device=problem.device).bits("key", len(rows))
    return rows[torch.argsort(keys, stable=True)[:count]].sort().values


def sampled(problem: Problem, rows: Tensor) -> Problem:
    """The same problem for ``rows`` [n] of its batch alone: what ``make_reference`` takes; judge ``answer[rows]`` against it.

    Case and weights stay those of the whole problem, so fingerprints do not change; only the batch is cut.
    """
    x = problem.flat_x.rows(rows)
    ids, weights = problem.flat_ids[rows], problem.flat_weights[rows]
    logits = problem.batch.router_logits
    batch = Batch(x, ids, weights, None if logits is None else logits[rows])
    return Problem(problem.case, problem.weights, batch, x, ids, weights, None if problem.valid is None else problem.valid[rows])


def detectable_share(rows: int, confidence: float) -> float:
    """Smallest share of the rows on which a defect is seen with ``confidence`` among ``rows`` sampled ones."""
    return float(1.0 - (1.0 - confidence) ** (1.0 / rows))


def detection_probability(share: float, rows: int) -> float:
    """Chance that a defect on ``share`` of the rows hits at least one of ``rows`` sampled ones: 1 - (1 - share)**rows.

    Exact for draws with replacement, a lower bound for distinct rows. Raises ValueError for a share outside [0, 1].
    """
    if not 0 <= share <= 1 or rows < 0:
        raise ValueError(f"share, rows: {share}, {rows}; allowed: 0 to 1, and at least 0")
    return float(1.0 - (1.0 - share) ** rows)
