"""Weights that a backend wrote to serve nobody else, however the scenario ended."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from moeguard.backends.torch_reference import TorchReference
from moeguard.checks.plan import run_checks
from moeguard.checks.session import Session
from moeguard.checks.subject import Resources
from moeguard.checks.sweep import sweep
from moeguard.core.case import Case
from moeguard.memory.digest import digest
from moeguard.mutants.base import Pipeline
from moeguard.tensors.weights import make_weights

SHAPE = {"num_tokens": 5, "hidden_size": 128, "intermediate_size": 128, "num_experts": 4, "top_k": 2}
CASE = Case.model_validate({"shape": SHAPE, "recipe": "fp8_block", "seed": 3})
EDITED = CASE.with_(scales={"kind": "tiny", "exponent": -9})


class Writes(Pipeline):
    """Writes to its weights in each call, and then goes on, or raises."""

    name = "writes"
    choices = ("a",)

    def __init__(self, raises: bool, byte: int = 0x11) -> None:
        super().__init__()
        self.raises, self.byte = raises, byte

    def run(self, prepared: Any, *args: Any, **named: Any) -> None:
        prepared.source.gate.data.view(torch.uint8)[0, 0, :4] = self.byte
        if self.raises:
            raise RuntimeError("boom")
        super().run(prepared, *args, **named)


@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize("how", ["all checks", "one group", "one tactic", "sweep"])
def test_it_is_told_and_the_next_one_gets_the_weights_of_its_case(raises: bool, how: str) -> None:
    resources = Resources()
    resources.problem(CASE)
    guilty = Session(Writes(raises), CASE, resources)
    if how == "sweep":
        sweep(guilty, frozenset(), lambda event: None)
    else:
        run_checks(guilty, frozenset({"values"}) if how == "one group" else None, "a" if how == "one tactic" else None)
    kinds = [finding.kind for finding in guilty.findings]
    assert ("input_mutated" in kinds) == (how != "one group") and ("crash" in kinds) == raises
    for of in (CASE, EDITED):
        wanted = {name: digest(tensor) for name, tensor in make_weights(of).tensors().items()}
        assert {name: digest(tensor) for name, tensor in resources.problem(of).weights.tensors().items()} == wanted
        sound = Session(TorchReference(), of, resources)
        run_checks(sound)
        assert not sound.findings


def test_weights_that_become_not_a_number_are_no_fault_of_the_oracle() -> None:
    session = Session(Writes(False, 0x7F), CASE, Resources())
    run_checks(session)
    assert "input_mutated" in [finding.kind for finding in session.findings]
