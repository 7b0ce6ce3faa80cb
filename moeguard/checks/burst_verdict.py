"""The verdict of one execution of a burst, written to a row of results on the device, which is not waited for."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from moeguard.memory import poison
from moeguard.memory.buffers import OutputBuffer, Workspace
from moeguard.memory.digest import Snapshot
from moeguard.oracle.quick import SHARES, QuickJudge
from moeguard.tensors.problem import Problem

#: Columns of a row before the shares: guard elements written, elements unwritten, bytes of inputs changed, elements whose bits
#: differ.
PLACES = ("guards", "unwritten", "inputs", "bits")
WIDTH = len(PLACES) + len(SHARES)


class BurstVerdict:
    """Poisons the buffers of an execution and judges what it left.

    rows: float32 [count, WIDTH]. first: the answer that the others are compared with, in the output dtype. Holds for ``count``
    executions, each with its own pattern; the number of the next one lies on the device, so that a CUDA graph may hold all of it.
    """

    def __init__(self, problem: Problem, judge: QuickJudge, first: Tensor, workspace_bytes: int, count: int) -> None:
        device = problem.device
        self.problem, self.judge, self.first = problem, judge, first
        self.out = OutputBuffer(problem.output_shape, problem.output_dtype, problem.row_padding, device)
        self.area = Workspace(workspace_bytes, device) if workspace_bytes else None
        self.inputs = Snapshot(problem.batch.tensors())
        words = [poison.word(problem.output_dtype, number) for number in range(count)]
        self.words = torch.tensor(words, dtype=torch.int16).to(device)
        self.bytes = torch.tensor([poison.byte(number) for number in range(count)], dtype=torch.uint8).to(device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        self.rows = torch.zeros(count, WIDTH, device=device)

    def poison(self) -> tuple[Tensor, Tensor | None]:
        """Output and workspace for the next execution."""
        out = self.out.poison_with(self.words.index_select(0, self.place))
        return out, None if self.area is None else self.area.poison_with(self.bytes.index_select(0, self.place))

    def record(self) -> None:
        """Judge what lies in the output, and go on to the next row."""
        valid = self.problem.valid
        answer = self.out.view().reshape(-1, self.problem.output_shape[-1])
        unwritten, differing = self.out.unwritten(), answer.view(torch.int16) != self.first.view(torch.int16)
        if valid is not None:
            unwritten, differing = unwritten & valid[:, None], differing & valid[:, None]
        guards = self.out.strayed() if self.area is None else self.out.strayed() + self.area.strayed()
        places = torch.stack([guards, unwritten.sum(), self.inputs.differing(), differing.sum()]).float()
        self.rows.index_copy_(0, self.place, torch.cat([places, self.judge.measure(answer)])[None])
        self.place.add_(1)


def verdict(problem: Problem, judge: QuickJudge, first: Tensor, workspace_bytes: int, count: int) -> BurstVerdict:
    """The fused one on a GPU with Triton, else that of torch's operations."""
    if problem.device.type == "cuda" and find_spec("triton") is not None:
        from moeguard.checks.fused_verdict import FusedVerdict

        return FusedVerdict(problem, judge, first, workspace_bytes, count)
    return BurstVerdict(problem, judge, first, workspace_bytes, count)
