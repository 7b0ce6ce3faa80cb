"""Many executions in a row: healthy ones pass, one bad one among many is found, and what differs from the judge is nothing."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from moeguard.backends.protocol import Traits
from moeguard.backends.torch_reference import TorchReference
from moeguard.checks.burst import FEWEST, MOST, Measured, burst, planned
from moeguard.checks.session import Session
from moeguard.checks.subject import Resources
from moeguard.checks.values import values
from moeguard.core.case import Case
from moeguard.core.events import Event, Executed
from moeguard.core.numerics import Numerics
from moeguard.oracle.judge import Judge
from moeguard.oracle.quick import SHARES, QuickJudge
from moeguard.oracle.reference import make_reference
from moeguard.tensors.problem import build_problem
from moeguard.tensors.weights import WeightBank

COUNT = 12


def case(recipe: str = "bf16", **fields: Any) -> Case:
    return Case.model_validate({"recipe": recipe, "shape": {"num_tokens": 9, "hidden_size": 128, "intermediate_size": 128,
                                                            "num_experts": 4, "top_k": 2}} | fields)


class Sometimes(TorchReference):
    """Right, but for one call among many, which it spoils."""

    name = "sometimes"

    def __init__(self, bad: int, deterministic: bool = True) -> None:
        super().__init__()
        self.calls, self.bad, self.deterministic = 0, bad, deterministic

    def spoil(self, out: Tensor, batch: Any) -> None:
        out[3, 40:] = out[2, 40:]

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(deterministic=self.deterministic)

    def run(self, prepared: Any, batch: Any, out: Tensor, **named: Any) -> None:
        super().run(prepared, batch, out, **named)
        self.calls += 1
        if self.calls == self.bad:
            self.spoil(out, batch)


class Unwritten(Sometimes):
    def spoil(self, out: Tensor, batch: Any) -> None:
        out[1] = self.before[1]

    def run(self, prepared: Any, batch: Any, out: Tensor, **named: Any) -> None:
        self.before = out.clone()
        super().run(prepared, batch, out, **named)


class Stray(Sometimes):
    def spoil(self, out: Tensor, batch: Any) -> None:
        torch.empty(0, dtype=out.dtype).set_(out.untyped_storage())[3] = 1.0


class Input(Sometimes):
    def spoil(self, out: Tensor, batch: Any) -> None:
        batch.x.data[0, 0] += 1


def flagged(rows: Tensor, *, deterministic: bool = True, judged: bool = True) -> Tensor:
    measured = Measured(rows, torch.zeros(len(rows), dtype=torch.bool), 0.0)
    return (measured.deviations(deterministic=deterministic, judged=judged) > 0).any(1)


def run(backend: TorchReference, one: Case | None = None, count: int | None = COUNT) -> tuple[Session, list[Executed]]:
    events: list[Event] = []
    session = Session(backend, one or case(), Resources("cpu"), emit=events.append)
    values(session)
    assert session.first is not None
    burst(session, session.first, None, "repeat", count=count)
    return session, [event for event in events if isinstance(event, Executed)]


@pytest.mark.parametrize("fields", [
    {}, {"recipe": "fp16"}, {"recipe": "fp8_per_tensor"}, {"recipe": "fp8_block"}, {"inputs": {"kind": "exact"}},
    {"layout": {"kind": "nan_padding"}}, {"activation_format": "batched"}, {"weights": {"kind": "normal", "bias": True}},
    {"routing": {"kind": "invalid_ids"}}, {"scales": {"kind": "tiny", "exponent": -120}},
], ids=str)
def test_a_healthy_call_stays_right(fields: dict[str, Any]) -> None:
    session, executed = run(TorchReference(), case(**fields))
    assert not session.findings
    assert executed[-1].role == "in a row" and executed[-1].outcome == "ok"
    assert (executed[-1].count, session.executions) == (COUNT, COUNT + 1)


@pytest.mark.parametrize(("backend", "kind"), [
    (Sometimes, "nondeterministic"), (Unwritten, "unwritten_output"), (Stray, "out_of_bounds_write"), (Input, "input_mutated")])
@pytest.mark.parametrize("bad", [2, COUNT])
def test_one_bad_execution_among_many_is_found(backend: type[Sometimes], kind: str, bad: int) -> None:
    session, executed = run(backend(bad))
    (finding,) = session.findings
    assert finding.kind == kind
    assert finding.numbers.get("flagged", 1) >= 1
    assert sum(event.count for event in executed if event.outcome == "finding") >= 1
    assert sum(event.count for event in executed) == session.executions


@pytest.mark.parametrize("recipe", ["fp8_per_tensor", "int4_fp8"])
def test_an_answer_that_is_finer_than_declared_stays_excused(recipe: str) -> None:
    class Finer(TorchReference):
        """Declares the recipe's rounding of the intermediate and does not do it."""

        def run(self, prepared: Any, batch: Any, out: Tensor, **named: Any) -> None:
            reference = make_reference(build_problem(self.case, WeightBank()), replace(Numerics.of(recipe), intermediate="none"))
            out.copy_(reference.y)

    for seed in range(3):
        backend, one = Finer(), case(recipe, seed=seed)
        backend.case = one
        session, executed = run(backend, one)
        assert not session.findings, session.findings[0].sentence
        assert executed[-1].outcome == "ok" or len(executed) < 3


def test_a_wrong_answer_is_found_where_bits_may_differ() -> None:
    session, _ = run(Sometimes(7, deterministic=False))
    (finding,) = session.findings
    assert finding.kind == "nondeterministic" and finding.sentence.startswith(f"1 of {COUNT} equal calls in a row show one that")
    assert finding.numbers["row"] > 1 or finding.numbers["element"] > 1


def test_nothing_is_executed_on_a_cpu_unless_asked() -> None:
    session, executed = run(TorchReference(), count=None)
    assert len(executed) == 1 and not session.findings


def test_a_finite_pattern_that_is_a_right_value_is_no_finding() -> None:
    rows = torch.zeros(4, 4 + len(SHARES))
    rows[1, 1] = rows[3, 1] = 1
    assert not flagged(rows).any()
    rows[2, 1] = 1
    assert flagged(rows).tolist() == [False, True, True, True]


def test_a_measurement_that_is_no_number_is_flagged() -> None:
    rows = torch.zeros(2, 4 + len(SHARES))
    rows[1, 3], rows[1, 5] = 1, float("nan")
    assert flagged(rows, deterministic=False).tolist() == [False, True]


def test_the_bits_of_the_first_answer_are_right_whatever_their_share() -> None:
    rows = torch.zeros(2, 4 + len(SHARES))
    rows[:, 6] = 1.5
    assert not flagged(rows).any()
    rows[1, 3] = 1
    assert flagged(rows, deterministic=False).tolist() == [False, True]
    assert not flagged(rows, deterministic=False, judged=False).any()
    assert flagged(rows, judged=False).tolist() == [False, True]


def test_the_number_of_executions_follows_from_the_size() -> None:
    assert planned(case()) == MOST
    large = {"num_tokens": 8192, "hidden_size": 7168, "intermediate_size": 2048, "num_experts": 256, "top_k": 8}
    assert planned(case(shape=large)) == FEWEST


def judge_of(one: Case) -> tuple[Judge, Tensor]:
    session = Session(TorchReference(), one, Resources("cpu"))
    values(session)
    assert session.first is not None
    return session.base.judge(session.numerics(one, None)), session.first.answer


@pytest.mark.parametrize("recipe", ["bf16", "fp8_block"])
def test_shares_are_those_of_the_judge(recipe: str) -> None:
    judge, answer = judge_of(case(recipe))
    generator = torch.Generator().manual_seed(0)
    for size in (0.0, 0.02, 0.2):
        other = (answer.float() * (1 + size * torch.randn(answer.shape, generator=generator))).to(answer.dtype)
        share = dict(zip(SHARES, QuickJudge(judge).measure(other).tolist(), strict=True))
        numbers = judge.judge(other).numbers
        assert share["element"] == pytest.approx(numbers["max_z"] / numbers["tau"], rel=1e-3)
        for rule in ("tile", "column", "expert"):
            if numbers[f"{rule}_limit"] != float("inf"):
                assert share[rule] == pytest.approx((numbers[f"{rule}_rms"] / numbers[f"{rule}_limit"]) ** 2, rel=1e-3)


def test_what_is_not_finite_is_flagged() -> None:
    judge, answer = judge_of(case())
    answer[0, 0] = float("nan")
    assert QuickJudge(judge).measure(answer)[SHARES.index("finite")] > 1
