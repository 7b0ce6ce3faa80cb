"""Questions about the router adapter that run beside a real FlashInfer in a child process."""

from __future__ import annotations

import inspect
import os
from typing import Any
from unittest.mock import patch

import torch

from moeguard.backends.routers.flashinfer import FlashInferTopkDeepseek, arguments
from moeguard.core.router import RouterCase
from moeguard.fuzz.router_cases import draw_router_cases
from moeguard.tensors.logits import make_router_inputs


def _call(case: RouterCase) -> dict[str, Any]:
    logits, bias = make_router_inputs(case)
    shape = (case.num_tokens, case.top_k)
    weights = torch.empty(shape, dtype=FlashInferTopkDeepseek().weights_dtype(case))
    return arguments(case, logits, bias, torch.empty(shape, dtype=torch.int32), weights)


def bound() -> dict[str, str]:
    """Arguments of the call, bound to the real signature: name to dtype or text."""
    from flashinfer.fused_moe import fused_topk_deepseek

    case = RouterCase(method="grouped_topk", num_tokens=3, num_experts=64, top_k=4, num_groups=8, topk_groups=2,
                      scaling_factor=2.5, dtype="bfloat16")
    filled = inspect.signature(inspect.unwrap(fused_topk_deepseek)).bind(**_call(case)).arguments
    return {name: str(value.dtype if isinstance(value, torch.Tensor) else value) for name, value in filled.items()}


def disagreements(count: int) -> list[str]:
    """Cases that the adapter takes and the library's own check refuses, or the other way round; the check needs no GPU."""
    from flashinfer.fused_moe import fused_routing_dsv3

    found = []
    cases = draw_router_cases(count, 0, ("sigmoid_bias", "grouped_topk"))
    accepted = 0
    for case in cases:
        ours = FlashInferTopkDeepseek().supports(case)
        call = _call(case) | {"launch_with_pdl": True}
        try:
            fused_routing_dsv3._check_dsv3_fused_routing_supported(**call)
            # what the kernel alone refuses (noAuxTcKernels.cu)
            theirs = "the kernel" if case.num_groups > 1 and case.num_experts > 256 else ""
        except ValueError as error:
            theirs = str(error)
        accepted += ours.supported
        if ours.supported == bool(theirs):
            found.append(f"{case}: adapter: {ours.reason or 'yes'}; FlashInfer: {theirs or 'yes'}")
    return found if accepted > count // 10 else [f"only {accepted} of {count} cases are taken"]


def availability() -> str:
    """What the adapter says where FlashInfer is installed and there is no GPU."""
    return FlashInferTopkDeepseek().availability().reason


def on_hopper() -> str:
    """What it says on a GPU of compute capability 9.0, where nothing is compiled yet."""
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = "9.0a"
    with patch.object(torch.cuda, "is_available", return_value=True), \
            patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)):
        return availability()


def sources() -> dict[str, Any]:
    """The compiled module that the call needs, as FlashInfer names it, and its source files."""
    from flashinfer.jit import dsv3_optimizations

    seen: dict[str, Any] = {}
    dsv3_optimizations.gen_jit_spec = lambda name, sources, **rest: seen.update(name=name, sources=[one.name for one in sources])
    dsv3_optimizations.gen_dsv3_fused_routing_module()
    return seen


def answers() -> dict[str, Any]:
    """All of it."""
    return {"on_hopper": on_hopper(), "bound": bound(), "disagreements": disagreements(200), "availability": availability(),
            "sources": sources()}
