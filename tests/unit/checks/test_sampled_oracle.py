"""Large batches: the oracle sees some rows, and what stands out elsewhere in one execution is found all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from moeguard.backends.protocol import Traits
from moeguard.backends.torch_reference import TorchReference
from moeguard.checks.plan import run_checks
from moeguard.checks.session import Session
from moeguard.checks.subject import Resources
from moeguard.core.case import Case
from moeguard.core.events import Event, Executed
from moeguard.core.numerics import Numerics
from moeguard.mutants.base import Call, Pipeline
from moeguard.oracle.sampling import SAMPLE_ROWS, choose_rows
from moeguard.tensors.problem import build_problem
from moeguard.tensors.weights import WeightBank

TOKENS = 2100


def case(**fields: object) -> Case:
    """A large batch on a tiny layer."""
    shape = {"num_tokens": TOKENS, "hidden_size": 16, "intermediate_size": 16, "num_experts": 4, "top_k": 2}
    return Case.model_validate({"shape": shape, "seed": 11} | fields)


def outside(of: Case, count: int = 3) -> list[int]:
    """Rows that the oracle does not see."""
    seen = set(choose_rows(build_problem(of, WeightBank())).tolist())
    return [row for row in range(40, TOKENS) if row not in seen][::500][:count]


def session(backend: Pipeline, of: Case, only: frozenset[str] | None = None) -> tuple[Session, list[Executed]]:
    """A finished session, and its executions."""
    torch.set_num_threads(1)
    events: list[Event] = []
    done = Session(backend, of, Resources(), emit=events.append)
    run_checks(done, only)
    return done, [event for event in events if isinstance(event, Executed)]


class Two(Pipeline):
    """Two tactics, the default first."""

    name = "two"
    choices = ("a", "b")


class BadRows(Two):
    """Adds ``error`` to one element of some rows in some calls."""

    error = 0.5

    def __init__(self, rows: list[int], tactics: tuple[str, ...] = (), calls: tuple[int, ...] = (), racy: bool = False) -> None:
        super().__init__()
        self.rows, self.bad, self.calls, self.racy, self.call = rows, tactics, calls, racy, 0

    def traits(self, case: Case, tactic: object = None) -> Traits:
        return Traits(deterministic=not self.racy, invalid_ids="drop")

    def write(self, call: Call, value: Tensor) -> None:
        self.call += 1
        if (call.tactic in self.bad or self.call in self.calls) and value.shape[0] == TOKENS:
            value[self.rows, 7] += self.error
        super().write(call, value)


@pytest.mark.parametrize("seed", range(6))  # all relations, which rotate with the seed
def test_a_healthy_backend_is_clean_and_the_result_says_what_a_sample_can_miss(seed: int) -> None:
    done, executed = session(Two(), case(seed=7 * seed, inputs={"kind": ("normal", "spread", "heavy_tail")[seed % 3]}))
    assert not done.findings
    note = next(note for note in done.notes if note.what == "sampled oracle")
    assert "(1 - f)^512, one on 0.9 % of them is seen with 99 %" in note.reason
    whole = [one for one in executed if "alone" not in one.role]
    assert {one.numbers["sampled_rows"] for one in whole} == {SAMPLE_ROWS}
    assert {one.numbers["elements"] for one in whole} == {16 * SAMPLE_ROWS}


def test_small_batches_are_judged_whole_and_no_sample_is_noted() -> None:
    done, executed = session(Two(), case().with_(shape={"num_tokens": 300}), frozenset({"values"}))
    assert not any(note.what == "sampled oracle" for note in done.notes)
    assert executed[0].numbers["elements"] == 300 * 16


def test_a_few_rows_outside_of_the_sample_that_one_tactic_gets_wrong() -> None:
    of = case()
    rows = outside(of)
    done, _ = session(BadRows(rows, tactics=("b",)), of)
    assert [(finding.kind, finding.tactic) for finding in done.findings] == [("bad_tactic", "b")]
    numbers = done.findings[0].numbers
    assert numbers["max_z_row"] in rows and numbers["max_z_column"] == 7 and numbers["sampled_rows"] == SAMPLE_ROWS
    assert f"row {numbers['max_z_row']}, column 7" in done.findings[0].sentence


@pytest.mark.parametrize(("racy", "kind"), [(False, "nondeterministic"), (True, "mismatch")])
def test_a_few_rows_outside_of_the_sample_that_one_repeat_gets_wrong(racy: bool, kind: str) -> None:
    of = case()
    done, _ = session(BadRows(outside(of, 1), calls=(3,), racy=racy), of, frozenset({"memory", "repeat"}))
    assert [(finding.kind, finding.check) for finding in done.findings] == [(kind, "repeat")]


def test_rows_that_the_default_gets_wrong_show_against_a_tactic_that_is_right() -> None:
    of = case()
    rows = outside(of)
    done, _ = session(BadRows(rows, tactics=("a",)), of, frozenset({"tactics"}))
    assert [(finding.kind, finding.tactic) for finding in done.findings] == [("mismatch", None)]
    assert done.findings[0].numbers["max_z_row"] in rows


class Noisy(BadRows):
    """Rounds some elements of a bad tactic the other way, as another order of sums does."""

    def write(self, call: Call, value: Tensor) -> None:
        super().write(call, value * (1 + 2e-4 * (call.tactic in self.bad)))


def test_rows_outside_of_the_sample_are_compared_whatever_their_size() -> None:
    of = case(scales={"kind": "bimodal", "exponent": 84})  # squares of such answers are beyond float32
    rows = outside(of)
    healthy, _ = session(Noisy([], tactics=("b",)), of, frozenset({"tactics"}))
    assert healthy.first is not None and not healthy.findings
    backend = Noisy(rows, tactics=("b",))
    backend.error = float(healthy.first.answer.abs().amax()) / 2
    assert backend.error > 1e24
    done, _ = session(backend, of, frozenset({"tactics"}))
    assert [(finding.kind, finding.tactic) for finding in done.findings] == [("bad_tactic", "b")]


def test_a_value_that_is_not_finite_is_seen_in_any_row() -> None:
    of = case()
    rows = outside(of, 2)
    bad = BadRows(rows, tactics=("a",))
    bad.error = float("nan")
    done, _ = session(bad, of, frozenset({"values"}))
    assert [finding.kind for finding in done.findings] == ["non_finite"]
    assert done.findings[0].numbers["worst_row"] == rows[0] and done.findings[0].numbers["nonfinite"] == 2


def test_the_second_call_of_a_sequence_is_compared_with_what_it_must_be() -> None:
    of = case()
    done, _ = session(BadRows(outside(of), calls=(2,)), of, frozenset({"sequence"}))
    assert [finding.check for finding in done.findings] == ["sequence"]


def test_the_batched_format_is_sampled_among_its_rows() -> None:
    events: list[Event] = []
    done = Session(TorchReference(), case(activation_format="batched"), Resources(), emit=events.append)
    run_checks(done, frozenset({"values", "tactics"}))
    assert not done.findings
    assert {event.numbers["sampled_rows"] for event in events if isinstance(event, Executed)} == {SAMPLE_ROWS}


def test_an_idle_rank_with_many_experts_has_no_row_to_draw() -> None:
    shape = {"num_tokens": 0, "hidden_size": 16, "intermediate_size": 16, "num_experts": 2048, "top_k": 2}
    done = Session(TorchReference(), case(activation_format="batched", shape=shape), Resources())
    run_checks(done, frozenset({"values", "repeat"}))
    assert not done.findings and done.executions >= 2


class OneRoundsMore(Two):
    """The default adds the experts' answers in bf16, its other tactic in float32; both say so."""

    def numerics(self, case: Case, tactic: object = None) -> Numerics:
        return replace(Numerics.of(case.recipe), combine="output" if tactic in (None, "a") else "fp32")


@pytest.mark.parametrize("seed", range(4))
def test_an_earlier_answer_is_judged_by_the_rounding_points_of_its_own_tactic(seed: int) -> None:
    of = case(seed=seed).with_(shape={"num_experts": 16, "top_k": 16, "hidden_size": 64})
    done, _ = session(OneRoundsMore(), of, frozenset({"tactics", "metamorphic"}))
    assert not done.findings


class Drifting(Two):
    """Tactic b moves every element of one row by some three times its healthy error: none of them stands out."""

    def __init__(self, row: int) -> None:
        super().__init__()
        self.row = row

    def write(self, call: Call, value: Tensor) -> None:
        if call.tactic == "b" and value.shape[0] == TOKENS:
            sign = torch.randint(2, value.shape[1:], generator=torch.Generator().manual_seed(1)) * 2 - 1
            value[self.row] += 2.0**-9 * 5 * sign * value[self.row].abs().mean()
        super().write(call, value)


def test_a_row_outside_of_the_sample_that_is_softly_wrong_on_two_seeds() -> None:
    of = case().with_(shape={"hidden_size": 512, "intermediate_size": 128})
    seen = [set(choose_rows(build_problem(one, WeightBank())).tolist()) for one in (of, of.with_(seed=of.seed + 1))]
    row = next(row for row in range(40, TOKENS) if row not in seen[0] | seen[1])
    done, _ = session(Drifting(row), of, frozenset({"tactics"}))
    assert [(finding.kind, finding.tactic) for finding in done.findings] == [("bad_tactic", "b")]
    assert done.findings[0].numbers["rules"] == ["row"]
    assert f"row {row} rms" in done.findings[0].sentence
