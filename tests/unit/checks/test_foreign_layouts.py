"""What the check concludes about weights in the layouts of other releases."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from moeguard.backends.protocol import Refused, Traits
from moeguard.checks.plan import GROUPS, run_checks
from moeguard.checks.session import Session
from moeguard.checks.subject import Resources
from moeguard.core.case import Case
from moeguard.core.events import Event, Executed
from moeguard.mutants.base import Pipeline, Prepared
from moeguard.mutants.broken_contract import ForeignLayoutTaken
from moeguard.mutants.healthy_declared import HealthyLayouts
from moeguard.tensors.operand import Batch, Weights

SHAPE = {"num_tokens": 5, "hidden_size": 64, "intermediate_size": 32, "num_experts": 4, "top_k": 2}
CASE = Case.model_validate({"shape": SHAPE})
PACKED = Case.model_validate({"shape": SHAPE, "recipe": "mxfp4_bf16"})
ONLY = frozenset({"layout"})


class Foreign(Pipeline):
    """Is given ``True`` for its own weights and whatever else for foreign ones, and does with them as it was made to."""

    name = "foreign"

    def __init__(self, **foreign: str) -> None:
        super().__init__()
        self.foreign = foreign

    def prepare(self, weights: Weights, case: Case) -> Any:
        return super().prepare(weights, case), "right"

    def foreign_layouts(self, weights: Weights, case: Case) -> Mapping[str, Any]:
        own, _ = self.prepare(weights, case)
        return {f"of {name}": (own, what) for name, what in self.foreign.items()}

    def run(self, prepared: Any, batch: Batch, out: Tensor, *, tactic: Hashable | None = None,
            workspace: Tensor | None = None) -> None:
        own, what = prepared
        raised: dict[str, Exception] = {"refuse": Refused("old"), "assert": AssertionError("old"), "look up": KeyError("old"),
                                        "exhaust": MemoryError()}
        if what in raised:
            raise raised[what]
        super().run(own, batch, out)
        if what == "late":
            raise Refused("old")
        if what == "wrong":
            out.mul_(3.0)
        if what == "stray":
            out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(7.0)


def session(backend: Pipeline, case: Case = CASE, only: frozenset[str] | None = ONLY, resources: Resources | None = None,
            seen: list[Event] | None = None) -> Session:
    done = Session(backend, case, resources or Resources(), emit=(seen if seen is not None else []).append)
    run_checks(done, only)
    return done


def notes(done: Session) -> list[str]:
    return [note.reason for note in done.notes if note.what == "layout"]


def executed(seen: list[Event]) -> list[tuple[str, str]]:
    return [(event.role, event.outcome) for event in seen if isinstance(event, Executed) and event.check == "layout"]


def test_a_misread_layout_is_seen_by_no_other_check() -> None:
    done = session(ForeignLayoutTaken(), PACKED, only=None)
    (finding,) = done.findings
    assert (finding.kind, finding.check, finding.tactic) == ("layout_contract", "layout", None)
    assert finding.sentence.startswith("weights packed as for release 1 are taken without a word and answered wrongly: ")
    assert finding.numbers["layout"] == "packed as for release 1" and finding.numbers["rules"]
    assert finding.numbers["max_z"] > finding.numbers["tau"]


def test_the_finding_comes_back_in_a_process_that_was_used_before() -> None:
    resources, backend = Resources(), ForeignLayoutTaken()
    assert [len(session(backend, PACKED, only, resources).findings) for only in (None, ONLY, ONLY, None)] == [1, 1, 1, 1]


def test_each_layout_is_executed_once_and_counted_once() -> None:
    seen: list[Event] = []
    done = session(Foreign(one="refuse", two="assert", three="right"), seen=seen)
    assert not done.findings
    assert executed(seen) == [("weights of one", "refused"), ("weights of two", "refused"), ("weights of three", "ok")]
    assert notes(done) == ["weights of three: answers rightly"]
    assert done.executions == sum(isinstance(event, Executed) for event in seen) == 4


@pytest.mark.parametrize(("what", "sentence"), [
    ("late", "weights of one are refused, but run raised only after it had written to out"),
    ("look up", "weights of one are refused, but run raised KeyError; allowed: "),
    ("stray", "weights of one: "),
    ("wrong", "weights of one are taken without a word"),
])
def test_what_breaks_the_contract_is_one_finding(what: str, sentence: str) -> None:
    (finding,) = session(Foreign(one=what), only=None).findings
    assert (finding.kind, finding.check) == ("layout_contract", "layout")
    assert finding.sentence.startswith(sentence)


def test_a_wrong_layout_does_not_hide_another() -> None:
    done = session(Foreign(one="wrong", two="refuse", three="wrong"))
    assert [finding.numbers["layout"] for finding in done.findings] == ["of one", "of three"]


def test_memory_that_runs_out_is_no_refusal() -> None:
    done = session(Foreign(one="exhaust", two="wrong"))
    assert not done.findings and [note.what for note in done.notes] == ["memory"]


def test_nothing_outlives_the_probe() -> None:
    done = session(Foreign(one="wrong"))
    assert done.breach is None
    done.report("wrong_return", "memory", None, "later", {})
    assert done.findings[-1].kind == "wrong_return" and done.findings[-1].sentence == "later"


def test_nothing_is_said_where_the_default_is_wrong_or_nothing_is_judged() -> None:
    class Broken(Foreign):
        def write(self, call: Any, value: Tensor) -> None:
            super().write(call, value * 2)

    for backend, case in ((Broken(one="wrong"), CASE), (Foreign(one="wrong"), CASE.with_(shape={"num_tokens": 0}))):
        seen: list[Event] = []
        done = session(backend, case, seen=seen)
        assert not executed(seen) and not any(finding.check == "layout" for finding in done.findings)


def test_a_declared_refusal_of_the_case_comes_first() -> None:
    class Declared(Foreign):
        def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
            return Traits(invalid_ids="drop", duplicate_ids="unsupported")

    seen: list[Event] = []
    session(Declared(one="wrong"), CASE.with_(routing={"kind": "duplicate_ids"}), seen=seen)
    assert not executed(seen)


def test_what_is_not_verified_is_noted() -> None:
    class Without(Pipeline):
        name = "without"

    assert notes(session(Without())) == ["the backend has no foreign_layouts()"]
    assert notes(session(Foreign())) == ["the backend names no weight layout of another release"]


@pytest.mark.parametrize("answer", [None, ["x"], {1: "x"}])
def test_answers_of_another_form_are_a_crash_of_the_backend(answer: Any) -> None:
    class Odd(Foreign):
        def foreign_layouts(self, weights: Weights, case: Case) -> Any:
            return answer

    (finding,) = session(Odd()).findings
    assert (finding.kind, finding.check) == ("crash", "layout")
    assert finding.sentence.startswith("foreign_layouts raised TypeError: returned ")


@pytest.mark.parametrize("activation", ["swiglu", "relu2"])
def test_a_library_that_knows_its_layouts_is_healthy(activation: str) -> None:
    seen: list[Event] = []
    done = session(HealthyLayouts(), CASE.with_(activation={"kind": activation}), only=None, seen=seen)
    assert not done.findings
    assert [outcome for _, outcome in executed(seen)] == ["refused", "ok"]


def test_the_layouts_of_the_healthy_variant_differ() -> None:
    done = session(HealthyLayouts())
    backend, problem = HealthyLayouts(), done.base.problem
    foreign = backend.foreign_layouts(problem.weights, CASE)
    own: Prepared = done.base.prepared
    assert own.up is not None and not torch.equal(own.gate, own.up)
    assert torch.equal(foreign["ordered as for release 2"].gate, own.up)
    assert torch.equal(foreign["transposed as for release 1"].down, own.down.transpose(1, 2))


def test_the_group_has_a_name_of_its_own() -> None:
    assert "layout" in GROUPS
