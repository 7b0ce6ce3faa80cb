"""Cases on which a healthy backend was once blamed, each for its own reason."""

from __future__ import annotations

from typing import Any

import pytest

import moeguard as mg
from moeguard.backends import registry
from moeguard.core.case import Case

CASES: dict[str, dict[str, Any]] = {
    # doubled routing weights: the sum stays inside fp16, a partial sum of the combine does not
    "a partial sum beyond fp16": {
        "shape": {"num_tokens": 7, "hidden_size": 8, "intermediate_size": 47, "num_experts": 3, "top_k": 2}, "recipe": "fp16",
        "activation": {"kind": "relu2"}, "routing": {"kind": "uniform", "method": "grouped_topk"}, "inputs": {"kind": "exact"},
        "seed": 809964795},
    # three thirds of a bias on the grid of bf16, rounded behind the routing weight, are not the bias
    "rounded behind the routing weight": {
        "shape": {"num_tokens": 1, "hidden_size": 8, "intermediate_size": 8, "num_experts": 4, "top_k": 3},
        "recipe": "fp8_per_tensor", "routing": {"kind": "nan_logits"}, "weights": {"kind": "zero_expert", "bias": True}},
    # seven copies of an expert, and few different values: all roundings of the combine are one
    "copies that are rounded alike": {
        "shape": {"num_tokens": 1, "hidden_size": 32, "intermediate_size": 32, "num_experts": 7, "top_k": 7},
        "recipe": "mxfp4_bf16", "routing": {"kind": "nan_logits"}, "inputs": {"kind": "exact"}},
}


@pytest.mark.parametrize("name", CASES)
def test_a_healthy_backend_is_clean(name: str) -> None:
    verdict = mg.check(registry.get("emulated_cutedsl"), Case.model_validate(CASES[name]))
    assert verdict.passed and verdict.executions >= 6


@pytest.mark.parametrize("hidden_size", [64, 512])
@pytest.mark.parametrize("seed", range(3))
def test_copies_are_rounded_alike_in_layers_of_any_width(hidden_size: int, seed: int) -> None:
    case = Case.model_validate(CASES["copies that are rounded alike"]).with_(shape={"hidden_size": hidden_size}, seed=seed)
    assert mg.check(registry.get("emulated_cutedsl"), case).passed
