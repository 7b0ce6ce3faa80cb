"""Routers on a GPU: the torch ones, and FlashInfer's kernel for DeepSeek-V3."""

from __future__ import annotations

import pytest

import moeguard as mg
from moeguard.backends.routers import registry
from moeguard.core.router import PROBES, RouterCase
from moeguard.fuzz.router_cases import draw_router_cases

pytestmark = pytest.mark.gpu

DEEPSEEK = RouterCase(method="grouped_topk", num_tokens=64, num_experts=256, top_k=8, num_groups=8, topk_groups=4,
                      scaling_factor=2.5)


@pytest.fixture
def flashinfer() -> mg.Router:
    reason = registry.unavailable("flashinfer_topk_deepseek")
    if reason is not None:
        pytest.skip(reason)
    return registry.get("flashinfer_topk_deepseek")


@pytest.mark.parametrize("name", ["torch_scores", "torch_argmax"])
def test_healthy_routers_are_silent(name: str) -> None:
    for case in draw_router_cases(160, 0):
        assert mg.check_router(registry.get(name), case, "cuda").findings == ()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("probe", [probe for probe in PROBES if probe != "bias_cancellation"])
def test_flashinfer_on_the_layer_of_deepseek_v3(flashinfer: mg.Router, probe: str, dtype: str) -> None:
    for seed in range(20):
        case = DEEPSEEK.model_copy(update={"probe": probe, "dtype": dtype, "seed": seed})
        assert [finding.sentence for finding in mg.check_router(flashinfer, case, "cuda").findings] == []


@pytest.mark.parametrize(("fields", "rule"), [
    ({"probe": "bias_cancellation"}, "sum"),
    ({"num_groups": 16}, "set"),
    ({"num_experts": 64, "topk_groups": 5}, "set"),
], ids=["vanishing", "more_than_eight_groups", "more_than_four_kept_groups"])
def test_what_its_source_gets_wrong(flashinfer: mg.Router, fields: dict, rule: str) -> None:
    """In noAuxTcKernels.cu of 0.7.4 the sigmoid cancels, and a block has eight warps for groups and four slots for kept ones."""
    verdict = mg.check_router(flashinfer, DEEPSEEK.model_copy(update=fields), "cuda")
    assert rule in {finding.rule for finding in verdict.findings}
