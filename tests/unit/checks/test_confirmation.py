"""A soft exceedance must come back on a second seed of the case that showed it, the session's or that of a partner."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from torch import Tensor

from moeguard.checks.plan import run_checks
from moeguard.checks.session import Session
from moeguard.checks.subject import Resources
from moeguard.core.case import Case
from moeguard.mutants.base import Call, Pipeline, Prepared
from moeguard.tensors.operand import Weights

SHAPE = {"num_tokens": 33, "hidden_size": 256, "intermediate_size": 128, "num_experts": 4, "top_k": 2}
#: Its seed chooses EP shards among the relations.
CASE = Case.model_validate({"shape": SHAPE, "seed": 35})


class Scaled(Pipeline):
    """One per cent too large, a soft exceedance, in calls that ``wrong`` names."""

    name = "scaled"

    def __init__(self, wrong: Callable[[Call], bool]) -> None:
        super().__init__()
        self.wrong = wrong

    def write(self, call: Call, value: Tensor) -> None:
        call.out.copy_(value * 1.01 if self.wrong(call) else value)


def judged(backend: Scaled, case: Case = CASE) -> Session:
    session = Session(backend, case, Resources())
    run_checks(session)
    return session


def test_a_defect_of_one_rank_is_found() -> None:
    session = judged(Scaled(lambda call: call.case.parallel.ep_rank == 1))
    (finding,) = session.findings
    assert finding.kind == "metamorphic" and finding.numbers["role"] == "EP rank 1 of 2"


@pytest.mark.parametrize("seed", range(0, 42, 7))
def test_a_defect_of_one_token_is_found_wherever_a_token_is_alone(seed: int) -> None:
    session = judged(Scaled(lambda call: len(call.out) == 1), CASE.with_(seed=seed))
    ran_alone = seed // 7 % 6 in (0, 1)
    assert [finding.kind for finding in session.findings] == ["metamorphic"] * ran_alone


@pytest.mark.parametrize(("seed", "wrong", "role"), [
    (14, lambda call: float(call.router_weights.sum(1).max()) > 1.5, "topk_weights doubled"),
    (28, lambda call: bool((call.router_weights == 0).any()), "one topk_weight zeroed"),
])
def test_a_defect_that_a_relation_brings_out_is_looked_for_under_that_relation(
        seed: int, wrong: Callable[[Call], bool], role: str) -> None:
    session = judged(Scaled(wrong), CASE.with_(seed=seed))
    assert (role, "metamorphic") in [(finding.numbers.get("role"), finding.kind) for finding in session.findings]


def test_a_layout_of_another_release_that_is_answered_a_little_wrongly_is_found() -> None:
    class Old(Prepared):
        pass

    class Foreign(Scaled):
        def foreign_layouts(self, weights: Weights, case: Case) -> Mapping[str, Prepared]:
            own = self.prepare(weights, case)
            return {"of old": Old(own.case, own.gate, own.up, own.down, own.source)}

    session = judged(Foreign(lambda call: isinstance(call.prepared, Old)))
    (finding,) = session.findings
    assert finding.kind == "layout_contract"


def test_what_does_not_come_back_is_a_note() -> None:
    session = judged(Scaled(lambda call: call.case.seed == CASE.seed))
    assert not session.findings
    assert "a first-look exceedance was not confirmed by a second seed" in [note.reason for note in session.notes]
