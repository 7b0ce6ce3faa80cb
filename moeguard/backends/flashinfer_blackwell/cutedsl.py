"""``flashinfer_cutedsl``: the block-scaled CuteDSL MoE in the standard activation format."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from moeguard.backends.flashinfer_blackwell import entries, layouts, scales
from moeguard.backends.flashinfer_blackwell.backend import Blackwell, Served
from moeguard.backends.flashinfer_blackwell.library import Library
from moeguard.backends.protocol import Refused, Support, Traits
from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.layouts.contract import Probe
from moeguard.tensors.operand import Batch, Weights

#: Name of the compute mode, and the elements of one block scale, by recipe.
MODES = {"nvfp4": ("w4a4", 16), "nvfp4_bf16": ("w4a16", 16), "mxfp8": ("mxfp8", 32), "mxfp4_fp8": ("w4a8", 32)}
#: Members of ``flashinfer.ActivationType``, whose values these are in every release that the adapter knows.
ACTIVATIONS = {"swiglu": 3, "swiglu_oai": 3, "relu2": 6, "geglu_tanh": 8}


@dataclass(frozen=True, slots=True)
class Prepared(Served):
    """w1 [E, 2I or I, H] and w2 [E, H, I] as the kernels take them, with their block scales in the MMA view.

    w1_factor, w2_factor: float32 [E], what is known of the two alphas without the batch. intermediate: ``fc2_input_scale``,
    float32 [1], None where the intermediate is not quantised with a static scale.
    """

    w1: Tensor
    w1_scale: Tensor
    w2: Tensor
    w2_scale: Tensor
    w1_factor: Tensor
    w2_factor: Tensor
    intermediate: Tensor | None


class FlashInferCuteDSL(Blackwell):
    """``cute_dsl_fused_moe`` (``cute_dsl_fused_moe_nvfp4`` before 0.7) with the fused finalize, as serving engines call it."""

    name = "flashinfer_cutedsl"

    def entries(self, recipe: str, release: str) -> Sequence[entries.Entry]:
        return (entries.CUTE_DSL,) if entries.CUTE_DSL.lacking(release) is None else (entries.CUTE_DSL_NVFP4,)

    def capabilities(self, release: str) -> Sequence[tuple[int, int]]:
        """As its decorator ``supported_compute_capability`` says; 0.6.6 has none, and its kernels are those of 0.6.11."""
        return ((10, 0), (10, 3)) if release in entries.RELEASES[:2] else ((10, 0), (10, 3), (10, 7))

    def supports(self, case: Case) -> Support:
        if case.recipe not in MODES:
            return Support.no(f"no CuteDSL kernel for recipe {case.recipe}")
        if case.activation_format != "standard":
            return Support.no("the standard activation format only; flashinfer_cutedsl_batched takes the other")
        if case.activation.kind not in ACTIVATIONS:
            return Support.no(f"no CuteDSL kernel for activation {case.activation.kind}")
        if case.weights.bias:
            return Support.no("the kernels add no biases")
        if case.activation.kind == "swiglu_oai" and case.recipe.startswith("nvfp4"):
            return Support.no("gate and up share one global scale in the kernel; with swiglu_oai that of up is no factor")
        half = 64 if case.activation.gated and case.recipe.startswith("nvfp4") else 128
        for name, size, unit in (("hidden_size", case.shape.hidden_size, 128),
                                 ("intermediate_size", case.intermediate_local, half)):
            if size % unit:
                return Support.no(f"{name} {size} of a rank is not a multiple of {unit}")
        return self.known(case)

    def parameters(self, case: Case) -> Sequence[str]:
        needed = [] if case.recipe == "nvfp4" else ["quant_mode"]
        return [*needed, *(["activation_type"] if case.activation.kind != "swiglu" else []),
                *(["swiglu_alpha"] if case.activation.kind == "swiglu_oai" else [])]

    def known(self, case: Case) -> Support:
        """MXFP8 activations are a mode of ``cute_dsl_fused_moe`` alone, and it has none for Rubin (``validate_w4a8_inputs``)."""
        release = self.release()
        if release is not None and case.recipe in ("mxfp8", "mxfp4_fp8"):
            reason = entries.CUTE_DSL.lacking(release)
            if reason is not None:
                return Support.no(reason)
            if torch.cuda.is_available() and torch.cuda.get_device_capability() == (10, 7):
                return Support.no(f"no CuteDSL kernel for recipe {case.recipe} on compute capability 10.7")
        return super().known(case)

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        """Engines rely on it as they do for the CUTLASS kernels: repeated ids of NaN logits, no tokens on an idle rank.

        The fused finalize adds with atomics. Ids outside of the rank are skipped by moe_sort (flashinfer/fused_moe/api.py,
        MoEActivationPack). CUDA graphs are documented for the wrapper class alone.
        """
        return Traits(deterministic=False, graph_safe=False, invalid_ids="drop", noncontiguous="unsupported")

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        """The activation is applied to float32 sums; the fused finalize adds in the output's dtype."""
        numerics = replace(Numerics.of(case.recipe), combine="output")
        if case.recipe == "mxfp4_fp8":
            numerics = replace(numerics, input="mxfp8", intermediate="mxfp8")
        return numerics

    def prepare_with(self, library: Library, weights: Weights, case: Case) -> Prepared:
        experts, group = case.experts_local, MODES[case.recipe][1]
        w1, (w1_scale, w1_factor, ratio) = scales.up_gate(weights), scales.one_factor(weights, experts)
        if weights.up is not None:
            w1, w1_scale = layouts.interleaved(library, w1, w1_scale)
        w2, w2_scale = weights.down.data.contiguous(), scales.block_scales(weights.down)
        static = weights.intermediate_scale if case.recipe == "nvfp4" else None
        down = scales.factor(weights.down, experts)
        return Prepared(
            case, weights, {}, w1, layouts.mma_scales(library, w1_scale, case.shape.hidden_size, group), w2,
            layouts.mma_scales(library, w2_scale, case.intermediate_local, group), w1_factor,
            down * ratio * (1.0 if static is None else static), None if static is None else 1 / static)

    def launch(self, library: Library, prepared: Any, batch: Batch, out: Tensor, *, tactic: Any = None,
               workspace: Tensor | None = None) -> None:
        case, release = prepared.case, library.release
        if batch.topk_ids is None:
            raise Refused("the batched activation format is not supported")
        entry = self.entries(case.recipe, release)[0]
        x, x_scale = self._input(library, prepared, batch)
        alpha = prepared.w1_factor if batch.x.global_scale is None else prepared.w1_factor * batch.x.global_scale
        named: dict[str, Any] = {
            "x": x, "x_sf": x_scale, "token_selected_experts": batch.topk_ids, "token_final_scales": batch.topk_weights,
            "w1_weight": prepared.w1, "w1_weight_sf": prepared.w1_scale, "w1_alpha": alpha,
            "fc2_input_scale": prepared.intermediate, "w2_weight": prepared.w2, "w2_weight_sf": prepared.w2_scale,
            "w2_alpha": prepared.w2_factor, "num_experts": case.shape.num_experts, "top_k": batch.topk_ids.shape[1],
            "num_local_experts": case.experts_local, "local_expert_offset": case.first_expert,
            "output_dtype": out.dtype, "use_fused_finalize": True, "moe_output": out, **_activation(case)}
        if entry.takes(release, "quant_mode"):
            named["quant_mode"] = MODES[case.recipe][0]
        if tactic is not None:
            named["tactic"] = tactic
        library.call(entry, **named)

    def forces(self, release: str) -> bool:
        return entries.CUTE_DSL.lacking(release) is None

    def probes_with(self, library: Library, case: Case) -> Mapping[str, Probe]:
        return layouts.cutedsl_probes(library, gated=case.activation.gated)

    def _input(self, library: Library, prepared: Prepared, batch: Batch) -> tuple[Tensor, Tensor | None]:
        recipe = prepared.case.recipe
        if recipe == "nvfp4_bf16":
            return batch.x.data, None
        if recipe == "nvfp4":
            return batch.x.data, scales.block_scales(batch.x).unsqueeze(-1)
        x, x_scale = library.call(entries.MXFP8_QUANTIZE, input=batch.x.data, is_sf_swizzled_layout=False)
        return x, x_scale.view(torch.uint8).reshape(x.shape[0], x.shape[1] // 32)


def _activation(case: Case) -> dict[str, Any]:
    """Arguments for the activation; none for swiglu, which is all that early releases have."""
    spec = case.activation
    if spec.kind == "swiglu":
        return {}
    named: dict[str, Any] = {"activation_type": ACTIVATIONS[spec.kind]}
    if spec.kind == "swiglu_oai":
        named |= {"swiglu_alpha": 1.702 if spec.alpha is None else spec.alpha,
                  "swiglu_beta": 1.0 if spec.beta is None else spec.beta}
        if spec.limit is not None:
            named["swiglu_limit"] = spec.limit
    return named
