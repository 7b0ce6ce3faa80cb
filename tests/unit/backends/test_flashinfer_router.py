"""The router adapter beside real FlashInfer releases: its call, its limits, and what it says is missing."""

from __future__ import annotations

import pytest
from flashinfer_site import VERSIONS, run_in_site

from moeguard.backends.routers import registry
from moeguard.backends.routers.flashinfer import FlashInferTopkDeepseek
from moeguard.core.router import RouterCase

NEWEST, *OLDER = VERSIONS


@pytest.mark.parametrize("version", [NEWEST, *(pytest.param(version, marks=pytest.mark.soak) for version in OLDER)])
def test_the_adapter_beside_the_real_library(version: str) -> None:
    found = run_in_site(version, "flashinfer_router:answers")
    assert found["bound"] == {
        "scores": "torch.bfloat16", "bias": "torch.bfloat16", "n_group": "8", "topk_group": "2", "topk": "4",
        "routed_scaling_factor": "2.5", "topk_values": "torch.bfloat16", "topk_indices": "torch.int32"}
    assert found["disagreements"] == []
    assert found["availability"] == "no CUDA device"
    assert found["on_hopper"].startswith("FlashInfer's compiled module dsv3_fused_routing is missing; build with: python -c ")
    assert found["sources"]["name"] == "dsv3_fused_routing"
    assert "noAuxTcKernels.cu" in found["sources"]["sources"]


def test_what_is_missing_is_said() -> None:
    assert registry.unavailable("flashinfer_topk_deepseek") == "flashinfer-python is not installed"


@pytest.mark.parametrize(("fields", "reason"), [
    ({"method": "renormalize"}, "sigmoid with a bias only, not renormalize"),
    ({"method": "sigmoid_bias"}, "top_k 4 is more than 1"),
    ({"method": "grouped_topk", "num_groups": 8, "topk_groups": 4, "top_k": 9}, "top_k 9 is more than 8"),
    ({"method": "grouped_topk", "num_groups": 2, "topk_groups": 2}, "num_experts / num_groups 64 is more than 32"),
    ({"method": "grouped_topk", "num_groups": 32, "topk_groups": 5, "num_experts": 512}, "num_experts 512 is more than 256"),
    ({"method": "grouped_topk", "num_groups": 8, "topk_groups": 8, "num_experts": 256},
     "num_experts / num_groups * topk_groups 256 is more than 128"),
])
def test_a_refusal_names_the_size_and_its_limit(fields: dict, reason: str) -> None:
    support = FlashInferTopkDeepseek().supports(RouterCase(**{"num_tokens": 1, "num_experts": 128, "top_k": 4} | fields))
    assert (support.supported, support.reason) == (False, reason)


def test_deepseek_v3_is_supported() -> None:
    case = RouterCase(method="grouped_topk", num_tokens=1, num_experts=256, top_k=8, num_groups=8, topk_groups=4)
    assert FlashInferTopkDeepseek().supports(case).supported
