"""What a scenario leaves on the GPU: after the first, no more memory, without help from Python's collector."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from moeguard.backends import registry
from moeguard.checks.subject import Resources
from moeguard.core.case import Case
from moeguard.engine.scenario import run_scenario

pytestmark = pytest.mark.gpu

SHAPE = {"num_tokens": 33, "hidden_size": 256, "intermediate_size": 256, "num_experts": 8, "top_k": 2}


@pytest.mark.parametrize("name", ["torch_reference", "triton", "flashinfer_cutlass"])
@pytest.mark.parametrize("fields", [{}, {"recipe": "fp8_block"}, {"routing": {"kind": "invalid_ids"}}], ids=str)
def test_the_same_case_again_takes_no_more(name: str, fields: dict[str, object], no_collector: None) -> None:
    """Bursts from CUDA graphs included."""
    backend, case = registry.get(name), Case.model_validate({"shape": SHAPE, **fields})
    available, support = backend.availability(), backend.supports(case)
    if not (available.available and support.supported):
        pytest.skip(available.reason or support.reason)
    resources, held = Resources("cuda"), []
    run_scenario(backend, case, resources)
    gc.collect()
    for _ in range(3):
        watched = weakref.ref(run_scenario(backend, case, resources))
        assert watched() is None
        held.append(torch.cuda.memory_allocated())
    assert held[0] == held[1] == held[2]
