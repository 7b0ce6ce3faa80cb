"""The fused verdict in Triton's interpreter beside torch's. Run by test_fused_verdict.py in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from moeguard.backends.torch_reference import TorchReference
from moeguard.checks.burst_verdict import BurstVerdict
from moeguard.checks.fused_verdict import FusedVerdict
from moeguard.checks.session import Session
from moeguard.checks.subject import Resources
from moeguard.checks.values import values
from moeguard.core.case import Case
from moeguard.oracle.judge import Judge
from moeguard.oracle.quick import QuickJudge
from moeguard.oracle.reference import make_reference
from moeguard.oracle.sampling import sampled

AREA = 300


def rows(one: BurstVerdict) -> Tensor:
    return one.out.view().view(-1, one.problem.output_shape[-1]) if one.problem.valid is not None else one.out.view()


def spoil_guard(one: BurstVerdict) -> None:
    one.out.words[3] += 1


def spoil_gap(one: BurstVerdict) -> None:
    one.out.words[128 + one.problem.output_shape[-1]] += 1


def spoil_area(one: BurstVerdict) -> None:
    assert one.area is not None
    one.area.words[-1] += 1


def spoil_input(one: BurstVerdict) -> None:
    one.inputs.pairs()[0][0][4] += 1


def leave_unwritten(one: BurstVerdict) -> None:
    rows(one)[2, 5:9] = one.out.words[:1].view(one.problem.output_dtype)


def make_wrong(one: BurstVerdict) -> None:
    rows(one)[3, 7] *= 3


def scale_a_row(one: BurstVerdict) -> None:
    rows(one)[4] *= 1.02


def break_one(one: BurstVerdict) -> None:
    rows(one)[0, 0] = float("inf")


SPOILS: tuple[Callable[[BurstVerdict], None], ...] = (
    lambda one: None, spoil_guard, spoil_area, spoil_input, leave_unwritten, make_wrong, scale_a_row, break_one)


def judge_of(session: Session, sample: bool) -> QuickJudge:
    """Of all rows, or without every third, which leaves a tile that is judged in part."""
    problem, numerics = session.base.problem, session.numerics(session.case, None)
    if not sample:
        return session.base.quick_judge(numerics)
    rows = (torch.arange(problem.flat_ids.shape[0]) % 3 != 2).nonzero()[:, 0]
    return QuickJudge(Judge(make_reference(sampled(problem, rows), numerics), rows=rows))


def measured(kind: type[BurstVerdict], session: Session, judge: QuickJudge,
             spoils: tuple[Callable[[BurstVerdict], None], ...]) -> list[list[float]]:
    assert session.first is not None
    one = kind(session.base.problem, judge, session.first.answer, AREA, len(spoils))
    for spoil in spoils:
        out, area = one.poison()
        assert area is not None
        out.copy_(session.first.answer.view(out.shape))
        area.zero_()
        spoil(one)
        one.record()
        one.inputs.restore()
    return one.rows.tolist()


def main() -> None:
    cases: list[dict[str, Any]] = json.loads(sys.argv[1])
    found = []
    for fields in cases:
        sample = fields.pop("sampled", False)
        session = Session(TorchReference(), Case.model_validate(fields), Resources("cpu"))
        values(session)
        spoils = SPOILS if session.case.layout.kind == "contiguous" else (*SPOILS, spoil_gap)
        judge = judge_of(session, sample)
        found.append([measured(kind, session, judge, spoils) for kind in (BurstVerdict, FusedVerdict)])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
