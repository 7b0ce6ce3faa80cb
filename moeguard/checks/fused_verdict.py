"""The verdict in a handful of launches: the output, its reference and the guards are read once. Importing this imports triton."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from moeguard.backends.triton_moe.compiled import loaded
from moeguard.checks import verdict_kernels as kernels
from moeguard.checks.burst_verdict import WIDTH, BurstVerdict
from moeguard.memory.buffers import GUARD, WORKSPACE_GUARD
from moeguard.oracle.quick import QuickJudge
from moeguard.tensors.problem import Problem

#: Rows and columns of a program of ``blocks``, and bytes of one of ``changed``.
BLOCK, BYTES = 1024, 4096


class FusedVerdict(BurstVerdict):
    """The same rows as ``BurstVerdict`` up to the rounding of float32 sums."""

    def __init__(self, problem: Problem, judge: QuickJudge, first: Tensor, workspace_bytes: int, count: int) -> None:
        super().__init__(problem, judge, first, workspace_bytes, count)
        device, judged, columns = problem.device, *judge.y.shape
        every = torch.ones(first.shape[0], dtype=torch.bool, device=device)
        self._valid = (every if problem.valid is None else problem.valid).to(torch.int8)
        self._order = _order(judge.rows, every)
        sizes = [judged, columns, max(len(judge.plan.experts), 1)]
        self._sums = torch.zeros(sum(sizes), device=device)
        self._by_row, self._by_column, self._by_expert = self._sums.split(sizes)
        self._pairs = judge.plan.expert_token.contiguous(), judge.plan.expert_group.contiguous()
        self._first = first.contiguous().view(torch.int16)
        edge = self.words.new_zeros(1)
        self._area = edge if self.area is None else self.area.words

    def record(self) -> None:
        judge, rows, place = self.judge, self.rows, self.place
        tokens, (judged, columns) = len(self._order), judge.y.shape
        plan, stride, words = judge.plan, self.out.stride, self.out.words
        token, expert = self._pairs
        pairs = len(token)
        self._sums.zero_()
        loaded(kernels.tiles[(triton.cdiv(tokens, plan.tile), triton.cdiv(stride, plan.tile))](
            words, self.words, place, self._first, judge.y, judge.weight, self._valid, self._order, self._by_row,
            self._by_column, judge.energy["tile"], rows, judge.tau, tokens, judged, columns, stride, GUARD, plan.tile_columns,
            RESULTS=WIDTH, EXACT=judge.exact, HALF=self.problem.output_dtype == torch.float16, TILE=plan.tile))
        if not judge.exact:
            loaded(kernels.blocks[(triton.cdiv(max(judged, columns, pairs), BLOCK),)](
                place, self._by_row, judge.energy["row"], self._by_column, judge.energy["column"], token,
                expert, self._by_expert, rows, judged, columns, pairs, RESULTS=WIDTH, BLOCK=BLOCK))
        for live, copy in self.inputs.pairs():
            size = live.numel()
            loaded(kernels.changed[(triton.cdiv(size, BYTES),)](place, live, copy, rows, size, RESULTS=WIDTH, BLOCK=BYTES))
        area_after = 0 if self.area is None else self._area.numel() - WORKSPACE_GUARD
        loaded(kernels.finish[(1,)](
            place, words, self.words, words.numel() - GUARD, self._area, self.bytes, area_after, self._by_expert,
            judge.energy["expert"], rows, len(plan.experts), GUARD, WORKSPACE_GUARD, RESULTS=WIDTH, AREA=self.area is not None,
            GUARD=triton.next_power_of_2(GUARD), AREA_GUARD=triton.next_power_of_2(WORKSPACE_GUARD),
            EXPERTS=triton.next_power_of_2(max(len(plan.experts), 1))))


def _order(rows: Tensor | None, every: Tensor) -> Tensor:
    """Numbers of all rows, int64 like the mask ``every``: those of the reference, ``rows`` (None for all), before the others."""
    if rows is None:
        return every.nonzero()[:, 0]
    return torch.cat([rows, every.index_fill(0, rows, False).nonzero()[:, 0]])
