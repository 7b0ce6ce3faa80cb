"""The router ``flashinfer_topk_deepseek``: ``flashinfer.fused_moe.fused_topk_deepseek``, on Hopper among others.

What is said here holds for FlashInfer 0.6.6 to 0.7.4 and was read in ``fused_moe/fused_routing_dsv3.py`` and
``data/csrc/fused_moe/noAuxTcKernels.cu``. Its other routing functions are for other architectures (``trtllm_gen_routing``,
``alphamoe_fused_router``) or read experts from a table (``hash_topk``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from moeguard.backends.flashinfer_cutlass.library import PACKAGE, does_not_import, installed
from moeguard.backends.protocol import Availability, Support
from moeguard.backends.routers.protocol import Router
from moeguard.core.router import Precision, RouterCase

#: Compute capabilities of the kernel (of all releases; some later ones know more).
CAPABILITIES = ((8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1))
#: Most experts a token, experts a group, experts in the kept groups; experts with groups and without.
LARGEST_TOP_K, LARGEST_GROUP, LARGEST_KEPT, LARGEST_GROUPED, LARGEST_SINGLE = 8, 32, 128, 256, 384
LARGEST_GROUPS = 32
#: The kernel's sigmoid is 0.5 * tanhf(0.5 * x) + 0.5, compiled with -use_fast_math. CUDA 13 makes that tanh.approx.f32, whose
#: relative error is 2**-11 (PTX ISA), so that of the sigmoid is half of it, absolute.
SIGMOID_ERROR = 2.0**-12


class FlashInferTopkDeepseek(Router):
    """Sigmoid plus bias, groups by the sum of their two best, K best, weights divided by their sum."""

    name = "flashinfer_topk_deepseek"

    def availability(self) -> Availability:
        reason = _refusal()
        return Availability.yes() if reason is None else Availability.no(reason)

    def supports(self, case: RouterCase) -> Support:
        """The limits that its documentation and its checks name, and no others."""
        if not case.biased:
            return Support.no(f"sigmoid with a bias only, not {case.method}")
        limits = [("top_k", case.top_k, LARGEST_TOP_K),
                  ("top_k", case.top_k, case.num_groups * case.topk_groups)]  # as the library checks it, whatever E is
        if case.num_groups == 1:
            limits.append(("num_experts", case.num_experts, LARGEST_SINGLE))
        else:
            limits += [("num_experts", case.num_experts, LARGEST_GROUPED), ("num_groups", case.num_groups, LARGEST_GROUPS),
                       ("num_experts / num_groups", case.group_size, LARGEST_GROUP),
                       ("num_experts / num_groups * topk_groups", case.group_size * case.topk_groups, LARGEST_KEPT)]
        for name, value, largest in limits:
            if value > largest:
                return Support.no(f"{name} {value} is more than {largest}")
        return Support.yes()

    def precision(self, case: RouterCase) -> Precision:
        return Precision(sigmoid_error=SIGMOID_ERROR)

    def weights_dtype(self, case: RouterCase) -> torch.dtype:
        return torch.float32 if case.dtype == "float32" else torch.bfloat16

    def route(self, case: RouterCase, logits: Tensor, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        from flashinfer.fused_moe import fused_topk_deepseek

        fused_topk_deepseek(**arguments(case, logits, bias, ids, weights))


def arguments(case: RouterCase, logits: Tensor, bias: Tensor | None, ids: Tensor, weights: Tensor) -> dict[str, Any]:
    """The call, by FlashInfer's names."""
    return {"scores": logits, "bias": bias, "n_group": case.num_groups, "topk_group": case.topk_groups, "topk": case.top_k,
            "routed_scaling_factor": case.scaling_factor, "topk_values": weights, "topk_indices": ids}


def _refusal() -> str | None:
    """Why it cannot run here; None when it can. Nothing is compiled."""
    found = installed()
    if found is None:
        return f"{PACKAGE} is not installed"
    if not torch.cuda.is_available():
        return "no CUDA device"
    capability = torch.cuda.get_device_capability()
    if capability not in CAPABILITIES:
        return f"compute capability {capability[0]}.{capability[1]}; allowed: {', '.join(f'{a}.{b}' for a, b in CAPABILITIES)}"
    try:
        from flashinfer.fused_moe import fused_topk_deepseek  # noqa: F401
        from flashinfer.jit import gen_dsv3_fused_routing_module

        spec = gen_dsv3_fused_routing_module()
    except Exception as error:
        return does_not_import(found, error)
    if not spec.is_compiled:
        return (f"FlashInfer's compiled module {spec.name} is missing; build with: python -c "
                "'from flashinfer.jit import gen_dsv3_fused_routing_module as module; module().build_and_load()'")
    return None
