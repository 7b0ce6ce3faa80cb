"""Toy models with their experts computed by arms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from moeguard.backends.torch_reference import TorchReference
from moeguard.core.errors import CaseError, MoeguardError
from moeguard.models.architecture import ARCHITECTURES, architecture
from moeguard.models.differential import Result, Setting, broken_arms, differential
from moeguard.models.experts import Float32, OfBackend
from moeguard.mutants.base import Call, Pipeline, Slots
from moeguard.mutants.catalogue import MUTANTS
from moeguard.tensors.weights import make_weights

QWEN = Setting(architecture("qwen3_moe"), "toy", texts=2, tokens=12, length=3)


class OneRow(Pipeline):
    """Halves the answer of one token."""

    name = "one_row"

    def combine(self, call: Call, slots: Slots, outputs: torch.Tensor) -> torch.Tensor:
        value = super().combine(call, slots, outputs)
        if len(value) > 6:
            value[6] /= 2
        return value


class Raises(Pipeline):
    """Fails in the second layer alone."""

    name = "raises"

    def combine(self, call: Call, slots: Slots, outputs: torch.Tensor) -> torch.Tensor:
        if call.case.seed == 1:
            raise RuntimeError("no kernel\nfor this")
        return super().combine(call, slots, outputs)


class NextTactic(TorchReference):
    """Tunes to a tactic of its own and remembers what ran."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[Any] = []

    def tune(self, prepared: Any, batch: Any) -> str:
        return "split"

    def run(self, prepared: Any, batch: Any, out: torch.Tensor, *, tactic: Any = None, workspace: Any = None) -> None:
        self.ran.append((batch.x.data.shape[0], tactic))
        super().run(prepared, batch, out, tactic=tactic, workspace=workspace)


class Writes(TorchReference):
    """Writes to its weights, for those who come after."""

    name = "writes"

    def run(self, prepared: Any, batch: Any, out: torch.Tensor, *, tactic: Any = None, workspace: Any = None) -> None:
        super().run(prepared, batch, out, tactic=tactic, workspace=workspace)
        batch.topk_weights.zero_()
        prepared.weights.down.data[0] *= 2


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    arms = [OfBackend(Writes()), OfBackend(TorchReference()), OfBackend(OneRow()), OfBackend(Raises())]
    told: list[str] = []
    found = differential(QWEN, arms, told.append)
    assert told == ["float32", "torch_reference", "healthy_coarse", "torch_reference", "one_row"]
    assert [one.healthy for one in found] == [True, True, False, False, False, False]
    return {one.arm: one for one in found}


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_every_architecture_runs_and_healthy_noise_is_small(name: str) -> None:
    setting = replace(QWEN, architecture=architecture(name), layers=1, tokens=6, length=1)
    for one in differential(setting, []):
        assert one.distance is not None and one.placed is not None
        assert 0 < one.distance.overall < 0.02 and one.placed.outcome == "within noise"
        assert len(one.distance.error) == 12 and len(one.distance.diverged) == 2


def test_a_healthy_backend_is_noise_and_the_same_each_time(results: dict[str, Result]) -> None:
    one = results["torch_reference"]
    again = differential(QWEN, [])[0]
    assert one.placed is not None and one.placed.outcome == "within noise"
    assert one.distance is not None and again.distance is not None
    assert torch.equal(one.distance.error, again.distance.error) and one.distance.diverged == again.distance.diverged


def test_one_wrong_token_is_not_noise_and_is_found(results: dict[str, Result]) -> None:
    one = results["one_row"]
    assert one.placed is not None and (one.placed.outcome, one.placed.worst) == ("outside noise", 6)
    assert one.placed.position > 30 > 0.5 < one.placed.overall


def test_an_arm_that_raises_does_not_end_the_others(results: dict[str, Result]) -> None:
    assert results["raises"].failed == "RuntimeError: no kernel for this" and results["raises"].placed is None


def test_an_arm_that_writes_to_the_weights_harms_no_other(results: dict[str, Result]) -> None:
    assert results["writes"].failed == "RuntimeError: wrote to weights.down.data"


def test_what_a_tuning_chooses_is_run_and_told() -> None:
    backend = NextTactic()
    arm = OfBackend(backend, tuned=True)
    one = differential(replace(QWEN, layers=1, tokens=4, length=1), [arm])[-1]
    assert (one.arm, one.tactics) == ("torch_reference:tuned", {8: "split"})
    assert set(backend.ran) == {(8, "split")}


def test_float32_is_the_mixture_of_experts_of_transformers() -> None:
    """The arm that all are compared with, against transformers' own experts with the same weights."""
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    case = QWEN.architecture.case("toy", "bf16", 5, 3)
    weights = make_weights(case)
    theirs = Qwen3MoeExperts(QWEN.architecture.config("toy", 1))
    assert weights.up is not None
    with torch.no_grad():
        theirs.gate_up_proj.copy_(torch.cat([weights.gate.dequantize(), weights.up.dequantize()], 1))
        theirs.down_proj.copy_(weights.down.dequantize())
        x = torch.linspace(-2, 2, 5 * 64).view(5, 64).sin()
        ids = torch.tensor([[0, 1, 2, 3], [7, 3, 1, 0], [4, 5, 6, 7], [1, 2, 4, 6], [3, 5, 0, 7]])
        share = torch.linspace(0.1, 0.9, 20).view(5, 4)
        ours = Float32().compute((case, weights), x, ids, share, torch.zeros(5, 8))
        torch.testing.assert_close(ours, theirs(x, ids, share), rtol=1e-4, atol=1e-5)


def test_mutants_that_need_nothing_special_become_arms() -> None:
    names = {arm.name for arm in broken_arms(QWEN.cases()[0])}
    assert {"mutant_gate_up_swapped", "mutant_out_rebound", "mutant_expert_scale"} <= names and len(names) >= 10
    assert not names & {one.name for one in MUTANTS if one.isolated or one.trigger or one.choices}


@pytest.mark.parametrize(("changes", "error", "message"), [
    ({"recipe": "fp8_per_tensor"}, MoeguardError, "--recipe: fp8_per_tensor stores quantised tokens"),
    ({"recipe": "fp7"}, MoeguardError, "--recipe: unknown value 'fp7'"),
    ({"recipe": "int4_fp8"}, CaseError, "qwen3_moe, toy: shape.hidden_size: 64; recipe int4_fp8 needs a multiple of 128"),
])
def test_what_cannot_be_is_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        replace(QWEN, **changes).check()
