"""One call of ``cutlass_fused_moe``, as an engine makes it: nothing is checked that the library does not check."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from moeguard.backends.flashinfer_cutlass.layouts import Prepared
from moeguard.backends.flashinfer_cutlass.library import Library
from moeguard.core.case import Case
from moeguard.tensors.operand import Batch

#: Name of each activation in ``flashinfer.ActivationType``; swiglu_oai is Swiglu with parameters.
ACTIVATIONS = {"swiglu": "Swiglu", "swiglu_oai": "Swiglu", "geglu": "Geglu", "geglu_tanh": "GegluTanh", "relu2": "Relu2",
               "silu": "Silu", "gelu": "Gelu"}
#: Tokens up to which FlashInfer tunes by default.
CAP = 8192


def arguments(library: Library, prepared: Prepared, batch: Batch, out: Tensor, *, fused: bool,
              workspace: Tensor | None = None, cap: int = CAP) -> dict[str, Any]:
    """Keyword arguments of the call. fused: ``use_fused_finalize``; cap: ``tune_max_num_tokens``."""
    case, parallel = prepared.case, prepared.case.parallel
    named: dict[str, Any] = {
        "input": batch.x.data, "token_selected_experts": batch.topk_ids, "token_final_scales": batch.topk_weights,
        "fc1_expert_weights": prepared.fc1, "fc2_expert_weights": prepared.fc2, "output_dtype": prepared.output_dtype,
        "quant_scales": scales(prepared, batch), "output": out, "ep_size": parallel.ep_size, "ep_rank": parallel.ep_rank,
        "tp_size": parallel.tp_size, "tp_rank": parallel.tp_rank, "tune_max_num_tokens": cap,
        "activation_type": activation(library, case), **parameters(case, out.device), **prepared.flags}
    if prepared.biases is not None:
        named |= {"fc1_expert_biases": prepared.biases[0], "fc2_expert_biases": prepared.biases[1]}
    if library.release.fused_finalize:
        named["use_fused_finalize"] = fused
    if library.release.workspace and workspace is not None:
        named["workspace_buffer"] = workspace
    return named


def activation(library: Library, case: Case) -> Any:
    """The member of FlashInfer's enumeration for the activation of ``case``."""
    return getattr(library.core.ActivationType, ACTIVATIONS[case.activation.kind])


def parameters(case: Case, device: torch.device) -> dict[str, Tensor]:
    """Per-expert parameters of swiglu_oai, float32 [E_local]; None means 1.702, 1 and no clamp."""
    spec = case.activation
    if spec.kind != "swiglu_oai":
        return {}
    values = {"swiglu_alpha": 1.702 if spec.alpha is None else spec.alpha,
              "swiglu_beta": 1.0 if spec.beta is None else spec.beta, "swiglu_limit": spec.limit}
    return {name: torch.full((case.experts_local,), value, dtype=torch.float32, device=device)
            for name, value in values.items() if value is not None}


def scales(prepared: Prepared, batch: Batch) -> list[Tensor]:
    """``quant_scales`` in the order of the recipe; fp8_per_tensor folds the scale of x into that of GEMM1."""
    if prepared.case.recipe != "fp8_per_tensor":
        return list(prepared.scales)
    gate, quant, down = prepared.scales
    assert batch.x.scale is not None
    return [gate * batch.x.scale, quant, down, batch.x.scale.reshape(())]
