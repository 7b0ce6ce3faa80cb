"""What a scenario leaves in memory: nothing hangs on a cycle of references, which would hold its tensors for minutes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Hashable
from typing import Any, NoReturn

import pytest
import torch

from moeguard.backends.protocol import Backend, Refused, Traits, VacuousTuning
from moeguard.backends.torch_reference import TorchReference
from moeguard.checks import tactics
from moeguard.checks.burst import burst
from moeguard.checks.session import Execution, Session
from moeguard.checks.subject import Resources
from moeguard.core.case import Case
from moeguard.engine.scenario import run_scenario
from moeguard.mutants.broken_contract import RefusesLate
from moeguard.mutants.catalogue import HEALTHY, MUTANTS
from moeguard.tensors.operand import Batch, Weights

SHAPE = {"num_tokens": 5, "hidden_size": 128, "intermediate_size": 128, "num_experts": 4, "top_k": 2}
CASES = [Case.model_validate({"shape": SHAPE, **fields}) for fields in (
    {}, {"recipe": "fp8_block", "seed": 1}, {"routing": {"kind": "invalid_ids"}}, {"routing": {"kind": "duplicate_ids"}})]

#: One mutant for each way in which a scenario can end.
ENDINGS = {kind.expected: kind for kind in MUTANTS if not kind.isolated}.values()


@pytest.mark.parametrize("kind", [TorchReference, HEALTHY[0], RefusesLate, *ENDINGS], ids=lambda kind: kind.name)
def test_a_session_goes_with_its_last_reference(kind: type[Backend], no_collector: None) -> None:
    """However it ended: clean, with findings, refused or crashed."""
    backend, resources = kind(), Resources()
    for case in CASES:
        session = run_scenario(backend, case, resources)
        watched, kinds = weakref.ref(session), [finding.kind for finding in session.findings]
        del session
        assert watched() is None, kinds


class Chained(TorchReference):
    """Raises what comes from another exception."""

    def __init__(self, raised: type[Exception]) -> None:
        self.raised = raised

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(invalid_ids="unsupported")

    def run(self, prepared: Any, batch: Batch, out: torch.Tensor, **named: Any) -> None:
        if self.raised is not VacuousTuning:
            self.fail()
        super().run(prepared, batch, out, **named)

    def tune(self, prepared: Any, batch: Batch) -> Hashable | None:
        self.fail()

    def fail(self) -> NoReturn:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise self.raised("outer") from error


@pytest.mark.parametrize("raised", [Refused, ValueError, VacuousTuning])
def test_nor_do_exceptions_that_come_from_others_keep_any(raised: type[Exception], no_collector: None) -> None:
    resources = Resources()
    for case in CASES:
        watched = weakref.ref(run_scenario(Chained(raised), case, resources))
        assert watched() is None


def test_nor_does_a_burst_keep_any(no_collector: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors alive do not grow with the number of scenarios."""
    def short(session: Session, run: Execution, tactic: object, check: str) -> None:
        burst(session, run, None, check, count=3)

    monkeypatch.setattr(tactics, "burst", short)
    resources, backend, alive = Resources(), HEALTHY[0](), []
    for _ in range(4):
        run_scenario(backend, CASES[0], resources)
        alive.append(sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects()))
    assert alive[1] == alive[2] == alive[3]


def test_nor_does_a_backend_leave_what_the_next_one_at_its_address_would_get(no_collector: None) -> None:
    """Names and ids are used again; layouts that were prepared and examined are not."""
    class Numbered(TorchReference):
        def __init__(self, number: int) -> None:
            self.number = number

        def prepare(self, weights: Weights, case: Case) -> Any:
            return self.number

    resources = Resources()
    weights = resources.bank.get(CASES[0])
    for number in range(8):
        backend = Numbered(number)
        assert resources.prepare(backend, CASES[0], weights) == number
        asked: list[int] = []
        resources.placed(backend, CASES[0], lambda asked=asked: asked.append(1) or {})  # type: ignore[misc]
        assert asked
