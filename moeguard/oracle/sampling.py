"""A sampled oracle for large batches: some token rows, all columns.

With n rows drawn at random, a defect on a share f of the rows is missed with probability at most (1 - f)**n.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moeguard.tensors.counter import Stream
from moeguard.tensors.operand import Batch
from moeguard.tensors.problem import Problem

#: Rows of a batch from which on the oracle is sampled, and rows that are then drawn.
SAMPLED_FROM, SAMPLE_ROWS = 2048, 512


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


def detection_probability(share: float, rows: int) -> float:
    """Chance that a defect on ``share`` of the rows hits at least one of ``rows`` sampled ones: 1 - (1 - share)**rows.

    Exact for draws with replacement, a lower bound for distinct rows. Raises ValueError for a share outside [0, 1].
    """
    if not 0 <= share <= 1 or rows < 0:
        raise ValueError(f"share, rows: {share}, {rows}; allowed: 0 to 1, and at least 0")
    return float(1.0 - (1.0 - share) ** rows)
