"""The interleaved layout of 4-bit weights, beside FlashInfer's own functions."""

from __future__ import annotations

import pytest
import torch

from moeguard.backends import registry
from moeguard.backends.flashinfer_cutlass import interleaving
from moeguard.core.case import Case

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("name", "group", "dtype"), [("fp4", 32, torch.uint8), ("int4", 128, torch.bfloat16)])
def test_weights_and_scales_lie_where_flashinfer_puts_them(name: str, group: int, dtype: torch.dtype) -> None:
    found = registry.get("flashinfer_cutlass").availability()
    if not found.available:
        pytest.skip(found.reason)
    from moeguard.backends.flashinfer_cutlass.library import load

    library = load()
    if not library.release.interleaved:
        pytest.skip(f"FlashInfer {library.release.version} takes weights as they are packed")
    generator = torch.Generator("cuda").manual_seed(0)
    packed = torch.randint(0, 256, (2, 128, 128), dtype=torch.uint8, device="cuda", generator=generator)
    ours = {"fp4": interleaving.mxfp4_weights, "int4": interleaving.int4_weights}[name](packed)
    assert torch.equal(ours, library.core.interleave_moe_weights_for_sm90_mixed_gemm(packed, name))
    scales = torch.randint(0, 255, (2, 128, 256 // group), device="cuda", generator=generator).to(dtype)
    theirs = library.core.interleave_moe_scales_for_sm90_mixed_gemm(scales, group)
    assert torch.equal(interleaving.scales(scales, group), theirs)


@pytest.mark.parametrize("recipe", ["mxfp4_bf16", "int4_fp8"])
def test_flashinfer_keeps_to_the_layouts_that_its_kernels_read(recipe: str) -> None:
    backend = registry.get("flashinfer_cutlass")
    found = backend.availability()
    if not found.available:
        pytest.skip(found.reason)
    case = Case.model_validate({"recipe": recipe, "shape": {
        "num_tokens": 1, "hidden_size": 256, "intermediate_size": 256, "num_experts": 2, "top_k": 1}})
    if not backend.supports(case).supported:
        pytest.skip(backend.supports(case).reason)
    probes = backend.layout_probes(case)
    assert {name: probe.examine("cuda") for name, probe in probes.items()} == {"weights": None, "scales": None}
