"""Arguments of the TRTLLM-gen functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from moeguard.backends.flashinfer_blackwell.entries import MXFP8_QUANTIZE, RELEASES, UNPACKED_IDS, Entry
from moeguard.backends.flashinfer_blackwell.library import Library
from moeguard.backends.flashinfer_blackwell.scales import block_scales
from moeguard.backends.flashinfer_blackwell.trtllm_weights import Prepared
from moeguard.core.case import Case
from moeguard.quant.blocks import BLOCK, expand_rows, row_scales
from moeguard.quant.formats import encode
from moeguard.tensors.operand import Batch

#: Members of FlashInfer's enumerations, whose values these are in every release that the adapter knows.
ACTIVATIONS = {"swiglu": 3, "swiglu_oai": 3, "relu2": 6}
BLOCK_MAJOR_K, DEEPSEEK_FP8, MX_FP8 = 2, 1, 2
#: Routing methods that need nothing but logits: softmax then top-k, top-k then softmax, top-1 then sigmoid.
METHODS = {"softmax_topk": 0, "renormalize": 1, "llama4_sigmoid": 3}


def unroutable(case: Case) -> str | None:
    """Why the kernel cannot route as the case does; None when it can."""
    method = case.routing.method
    if method not in METHODS:
        return f"routing method {method} needs the selection bias, which the batch does not carry"
    if method == "llama4_sigmoid" and case.shape.top_k != 1:
        return "the kernel's Llama 4 method picks one expert"
    return None


def given(release: str, batch: Batch, entry: Entry) -> dict[str, Any]:
    """Ids and router weights: a pair, or before 0.6.18 packed, id << 16 | bits of the weight in bf16."""
    assert batch.topk_ids is not None and batch.topk_weights is not None
    packed = RELEASES.index(release) < RELEASES.index(UNPACKED_IDS)
    ids: Any = (batch.topk_ids, batch.topk_weights)
    if packed:
        bits = batch.topk_weights.to(torch.bfloat16).view(torch.int16).to(torch.int32) & 0xFFFF
        ids = (batch.topk_ids << 16) | bits
    return {"topk_ids": ids} | ({} if entry.name == "trtllm_bf16_routed_moe" else {"routing_bias": None})


def own(release: str, case: Case, batch: Batch, entry: Entry) -> dict[str, Any]:
    """Logits and the method that the kernel routes by."""
    named: dict[str, Any] = {"routing_logits": batch.router_logits, "routing_bias": None,
                             "routing_method_type": METHODS[case.routing.method]}
    if entry.takes(release, "norm_topk_prob"):
        named["norm_topk_prob"] = case.routing.method == "renormalize"
    return named


def arguments(library: Library, prepared: Prepared, batch: Batch, kind: str) -> dict[str, Any]:
    """Keyword arguments but for routing and output. kind: ``bf16 fp8_per_tensor fp8_block fp4``."""
    case = prepared.case
    assert batch.topk_ids is not None
    named: dict[str, Any] = {
        "gemm1_weights": prepared.gemm1, "gemm2_weights": prepared.gemm2, "num_experts": case.shape.num_experts,
        "top_k": batch.topk_ids.shape[1], "n_group": None, "topk_group": None, "intermediate_size": case.intermediate_local,
        "local_expert_offset": case.first_expert, "local_num_experts": case.experts_local, "routed_scaling_factor": None,
        "do_finalize": True, **_activation(case, kind, batch.topk_ids.device)}
    if kind == "bf16":
        return named | {"hidden_states": batch.x.data, "use_shuffled_weight": True, "weight_layout": BLOCK_MAJOR_K}
    if kind == "fp8_per_tensor":
        return named | _per_tensor(prepared, batch)
    x, x_scale = _quantised(library, case.recipe, batch)
    assert prepared.scales is not None
    named |= {"hidden_states": x, "hidden_states_scale": x_scale, "gemm1_weights_scale": prepared.scales[0],
              "gemm2_weights_scale": prepared.scales[1]}
    if kind == "fp8_block":
        micro = case.recipe == "mxfp8"
        return named | {"use_shuffled_weight": micro, "weight_layout": 0,
                        "fp8_quantization_type": MX_FP8 if micro else DEEPSEEK_FP8}
    return named | _four_bit(prepared, batch)


def _per_tensor(prepared: Prepared, batch: Batch) -> dict[str, Any]:
    assert batch.x.scale is not None and prepared.static is not None
    first, gate = _first_scales(prepared, batch.x.scale)
    return {"hidden_states": batch.x.data, "output1_scales_scalar": first, "output1_scales_gate_scalar": gate,
            "output2_scales_scalar": prepared.down * prepared.static, "use_routing_scales_on_input": False}


def _four_bit(prepared: Prepared, batch: Batch) -> dict[str, Any]:
    case = prepared.case
    biases = prepared.biases or (None, None)
    named: dict[str, Any] = {"gemm1_bias": biases[0], "gemm2_bias": biases[1], "output1_scale_scalar": None,
                             "output1_scale_gate_scalar": None, "output2_scale_scalar": None}
    if case.activation.kind != "swiglu_oai":
        named |= {"gemm1_alpha": None, "gemm1_beta": None, "gemm1_clamp_limit": None}
    if case.recipe == "nvfp4":
        assert batch.x.global_scale is not None and prepared.static is not None
        first, gate = _first_scales(prepared, batch.x.global_scale)
        named |= {"output1_scale_scalar": first, "output1_scale_gate_scalar": gate,
                  "output2_scale_scalar": prepared.down * prepared.static}
    return named


def _first_scales(prepared: Prepared, x: Tensor) -> tuple[Tensor, Tensor]:
    """Scales of GEMM1 [E]: of up with the quantisation of the result, and of gate before the activation.

    Without a gate the second is applied before the activation, and the first quantises alone.
    """
    assert prepared.static is not None
    gate = prepared.gate * x
    first = prepared.up * x if prepared.case.activation.gated else torch.ones_like(gate)
    return first / prepared.static, gate


def _quantised(library: Library, recipe: str, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """Activations and their scales, as engines quantise them before the call."""
    x = batch.x.data
    if recipe == "mxfp4_bf16":
        return x, None
    if recipe == "nvfp4":
        return x, block_scales(batch.x).view(torch.float8_e4m3fn)
    if recipe == "fp8_block":
        wide = x.float()
        scale = row_scales(wide, BLOCK)
        return encode(wide / expand_rows(scale, wide.shape[-1]), "e4m3"), scale.t().contiguous()
    q, scale = library.call(MXFP8_QUANTIZE, input=x, is_sf_swizzled_layout=False)
    linear = scale.view(torch.uint8).reshape(x.shape[0], x.shape[1] // 32)
    return q, linear if recipe == "mxfp8" else linear.view(torch.float8_e4m3fn)


def _activation(case: Case, kind: str, device: torch.device) -> dict[str, Any]:
    """Nothing for swiglu, which every release has."""
    spec = case.activation
    if spec.kind == "swiglu":
        return {}
    named: dict[str, Any] = {"activation_type": ACTIVATIONS[spec.kind]}
    if spec.kind != "swiglu_oai":
        return named

    def filled(value: float) -> Tensor:
        return torch.full((case.experts_local,), value, dtype=torch.float32, device=device)

    return named | {"gemm1_alpha": filled(1.702 if spec.alpha is None else spec.alpha),
                    "gemm1_beta": filled(1.0 if spec.beta is None else spec.beta),
                    "gemm1_clamp_limit": None if spec.limit is None else filled(spec.limit)}
