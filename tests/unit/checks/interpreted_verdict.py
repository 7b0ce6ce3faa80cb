"""The fused verdict in Triton's interpreter beside torch's. Run by test_fused_verdict.py in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor

from moeguard.backends.torch_reference import TorchReference
from moeguard.checks.burst_verdict import BurstVerdict
from moeguard.checks.fused_verdict import FusedVerdict
from moeguard.checks.session import Session
from moeguard.checks.subject import Resources
from moeguard.checks.values import values
from moeguard.core.case import Case
from moeguard.oracle.quick import QuickJudge

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


def measured(kind: type[BurstVerdict], session: Session, spoils: tuple[Callable[[BurstVerdict], None], ...]) -> list[list[float]]:
    assert session.first is not None
    judge = session.base.judge(session.numerics(session.case, None))
    one = kind(session.base.problem, QuickJudge(judge), session.first.answer, AREA, len(spoils))
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
        session = Session(TorchReference(), Case.model_validate(fields), Resources("cpu"))
        values(session)
        spoils = SPOILS if session.case.layout.kind == "contiguous" else (*SPOILS, spoil_gap)
        found.append([measured(kind, session, spoils) for kind in (BurstVerdict, FusedVerdict)])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
