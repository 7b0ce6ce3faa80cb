"""What the checks conclude from one small defect each: the kind, the tactic, and the place that a finding names."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
import torch
from torch import Tensor

from moeguard.backends.protocol import Refused, Traits
from moeguard.checks.plan import run_checks
from moeguard.checks.session import Session
from moeguard.checks.subject import Resources
from moeguard.core.case import Case
from moeguard.core.events import Event, Executed
from moeguard.core.numerics import Numerics
from moeguard.mutants.base import Call, Pipeline
from moeguard.tensors.operand import Batch, Weights

SHAPE = {"num_tokens": 9, "hidden_size": 72, "intermediate_size": 64, "num_experts": 4, "top_k": 2}


def case(**fields: object) -> Case:
    """A small case."""
    return Case.model_validate({"shape": SHAPE, "seed": 3} | fields)


def session(backend: Pipeline, of: Case) -> Session:
    """A finished session."""
    torch.set_num_threads(1)
    done = Session(backend, of, Resources())
    run_checks(done)
    return done


def kinds(done: Session) -> dict[str, str | None]:
    """Kind to tactic of each finding."""
    return {finding.kind: finding.tactic for finding in done.findings}


class Named(Pipeline):
    name = "named"


def test_a_healthy_backend_is_clean_and_every_group_executes() -> None:
    seen: list[Event] = []
    done = Session(Named(), case(), Resources(), emit=seen.append)
    run_checks(done)
    assert not done.findings
    groups = {event.check for event in seen if isinstance(event, Executed)}
    assert groups == {"values", "memory", "repeat", "sequence", "metamorphic"}
    assert done.executions == sum(isinstance(event, Executed) for event in seen)


def test_a_finding_names_row_column_tile_and_expert() -> None:
    class Spike(Named):
        def write(self, call: Call, value: Tensor) -> None:
            value[5, 66] += 100.0
            super().write(call, value)

    finding = session(Spike(), case()).findings[0]
    numbers = finding.numbers
    assert finding.kind == "mismatch"
    assert (numbers["max_z_row"], numbers["max_z_column"], numbers["worst_tile"]) == (5, 66, [0, 1])
    assert numbers["worst_row"] == 5 and numbers["worst_column"] == 66 and numbers["worst_expert"] in range(4)
    assert numbers["label"] == "proven" and "row 5, column 66" in finding.sentence
    grid = numbers["map"]
    assert (grid["rows"], grid["columns"]) == (1, 3)
    above = [(row, column) for row, line in enumerate(grid["values"]) for column, cell in enumerate(line) if cell > 1]
    assert above == [(5, 22)]


def test_a_note_not_a_finding_when_more_bits_are_kept_than_declared() -> None:
    class Precise(Named):
        def quantise(self, call: Call, hidden: Tensor) -> Tensor:
            return hidden

    done = session(Precise(), case(recipe="fp8_block", shape=SHAPE | {"num_tokens": 33, "intermediate_size": 128}))
    assert not done.findings
    assert any(note.what == "numerics" for note in done.notes)


def test_fewer_bits_than_declared_is_a_mismatch_that_asks_about_the_recipe() -> None:
    class Coarse(Named):
        def quantise(self, call: Call, hidden: Tensor) -> Tensor:
            hidden = super().quantise(call, hidden)
            scale = torch.exp2(torch.ceil(torch.log2(hidden.abs().amax(1, keepdim=True) / 448)))
            return (hidden / scale).to(torch.float8_e4m3fn).float() * scale

    finding = session(Coarse(), case(recipe="fp8_block", shape=SHAPE | {"num_tokens": 65, "intermediate_size": 128})).findings[0]
    assert finding.kind == "mismatch" and "recipe" in finding.sentence


def test_a_declared_recipe_is_what_is_judged() -> None:
    class Declared(Named):
        def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
            return Numerics(intermediate="none", combine="output")

    assert not session(Declared(), case()).findings


def test_weights_changed_by_one_tactic_name_the_tactic() -> None:
    class Scribbler(Named):
        choices = ("clean", "scribbles")

        def compute(self, call: Call) -> Tensor:
            value = super().compute(call)
            if call.tactic == "scribbles":
                call.prepared.source.down.data[0, 0, 0] += 1
            return value

    done = session(Scribbler(), case())
    assert kinds(done)["input_mutated"] == "scribbles"


def test_weights_are_whole_again_for_the_next_backend() -> None:
    class Scribbler(Named):
        def compute(self, call: Call) -> Tensor:
            call.prepared.source.down.data[0, 0, 0] += 1
            return super().compute(call)

    resources = Resources()
    bad = Session(Scribbler(), case(), resources)
    run_checks(bad)
    good = Session(Named(), case(), resources)
    run_checks(good)
    assert bad.findings and not good.findings


def test_a_crash_ends_the_scenario_and_says_what_was_raised() -> None:
    class Raises(Named):
        def compute(self, call: Call) -> Tensor:
            raise KeyError("no kernel\nfor this shape")

    done = session(Raises(), case())
    assert list(kinds(done)) == ["crash"] and done.executions == 0
    assert "KeyError" in done.findings[0].sentence and "\n" not in done.findings[0].sentence


class Unsupporting(Named):
    """Declares nothing beyond plain routing as supported."""

    error: type[Exception] = Refused

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(invalid_ids="unsupported", duplicate_ids="unsupported", zero_tokens="unsupported")

    def run(self, prepared: object, batch: Batch, out: Tensor, *, tactic: Hashable | None = None,
            workspace: Tensor | None = None) -> None:
        assert batch.topk_ids is not None
        ids = batch.topk_ids.long()
        ordered = ids.sort(dim=1).values
        if not ids.numel() or int(ids.min()) < 0 or int(ids.max()) >= 4 or bool((ordered[:, 1:] == ordered[:, :-1]).any()):
            raise self.error("not supported")
        super().run(prepared, batch, out, tactic=tactic, workspace=workspace)  # type: ignore[arg-type]


PROBES = [{"routing": {"kind": "duplicate_ids"}}, {"routing": {"kind": "invalid_ids"}}, {"routing": {"kind": "nan_logits"}},
          {"shape": SHAPE | {"num_tokens": 0}}]


@pytest.mark.parametrize("probe", PROBES, ids=["duplicates", "invalid", "nan", "no tokens"])
def test_a_declared_refusal_is_clean(probe: dict[str, object]) -> None:
    done = session(Unsupporting(), case(**probe))
    assert not done.findings and done.executions == 1


@pytest.mark.parametrize("probe", PROBES, ids=["duplicates", "invalid", "nan", "no tokens"])
def test_a_refusal_by_another_exception_breaks_the_contract(probe: dict[str, object]) -> None:
    class Odd(Unsupporting):
        error = KeyError

    finding = session(Odd(), case(**probe)).findings[0]
    assert finding.kind == "routing_contract" and "KeyError" in finding.sentence


def test_a_silent_right_answer_to_an_unsupported_probe_is_noted() -> None:
    class Silent(Named):
        def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
            return Traits(duplicate_ids="unsupported")

    done = session(Silent(), case(routing={"kind": "duplicate_ids"}))
    assert not done.findings and [note.what for note in done.notes] == ["duplicate_ids"]


def test_state_that_survives_a_call_is_told_from_a_race() -> None:
    class Sticky(Named):
        def __init__(self) -> None:
            super().__init__()
            self.last: Tensor | None = None

        def write(self, call: Call, value: Tensor) -> None:
            if self.last is not None and self.last.shape == value.shape and not torch.equal(self.last, value):
                value[0] = self.last[0]
            self.last = value.clone()
            super().write(call, value)

    assert "stale_state" in kinds(session(Sticky(), case()))


def test_a_race_is_nondeterministic() -> None:
    class Racy(Named):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def write(self, call: Call, value: Tensor) -> None:
            self.calls += 1
            if self.calls == 3:
                value[:, :8] = 0.0
            super().write(call, value)

    assert kinds(session(Racy(), case())) == {"nondeterministic": None}


def test_an_answer_that_grows_when_a_weight_is_zeroed_is_not_an_alarm() -> None:
    """Two experts that cancel: without one of them the answer, and its last rounding, are larger than before."""
    from moeguard.backends.torch_reference import TorchReference

    cancelling = Case.model_validate({
        "shape": {"num_tokens": 97, "hidden_size": 8, "intermediate_size": 40, "num_experts": 8, "top_k": 2},
        "recipe": "fp16", "scales": {"kind": "heterogeneous", "exponent": -36},
        "weights": {"kind": "zero_expert", "bias": True}, "seed": 1821314571})
    done = Session(TorchReference(), cancelling, Resources())
    run_checks(done)
    assert not done.findings


def test_prepare_may_not_change_the_weights() -> None:
    class Shifts(Named):
        def prepare(self, weights: Weights, case: Case) -> object:  # type: ignore[override]
            prepared = super().prepare(weights, case)
            weights.down.data.mul_(1.0)
            weights.down.data[0, 0, 0] = 5.0
            return prepared

    assert "input_mutated" in kinds(session(Shifts(), case()))
