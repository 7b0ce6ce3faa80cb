"""What Triton keeps of a compilation does not pile up with the variants of a campaign."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moeguard.backends import registry
from moeguard.backends.triton_moe import launch
from moeguard.core.case import Case
from moeguard.tensors.problem import build_problem
from moeguard.tensors.weights import WeightBank

CASE = Case.model_validate({"shape": {"num_tokens": 3, "hidden_size": 32, "intermediate_size": 32, "num_experts": 2, "top_k": 1}})


class Kernel:
    """Is launched as Triton's kernels are; computes nothing. interpreted: returns None, as in Triton's interpreter."""

    def __init__(self, interpreted: bool) -> None:
        self.interpreted = interpreted
        self.made: list[SimpleNamespace] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*args: object, **named: object) -> SimpleNamespace | None:
            if self.interpreted:
                return None
            self.made.append(SimpleNamespace(asm={"ttir": "module", "ptx": "//"}))
            return self.made[-1]

        return run


@pytest.mark.parametrize("interpreted", [False, True])
def test_the_texts_of_products_are_dropped_once_they_are_launched(interpreted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # so that tensors of a CPU are taken
    kernels = {name: Kernel(interpreted) for name in ("gate_up", "down", "finalize", "quantize_rows")}
    for name, kernel in kernels.items():
        monkeypatch.setattr(launch.kernels, name, kernel)
    problem, backend = build_problem(CASE, WeightBank()), registry.get("triton")
    prepared = backend.prepare(problem.weights, CASE)
    backend.run(prepared, problem.batch, torch.empty(3, 32, dtype=torch.bfloat16))
    compiled = [one for name in ("gate_up", "down") for one in kernels[name].made]
    assert len(compiled) == (0 if interpreted else 2) and not any(one.asm for one in compiled)
