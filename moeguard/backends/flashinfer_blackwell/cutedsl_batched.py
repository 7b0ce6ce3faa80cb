"""``flashinfer_cutedsl_batched``: two masked grouped GEMMs of CuteDSL around a quantised SwiGLU, in the batched format.

The sequence of calls is that of vLLM's batched experts for CuteDSL (vllm#38050): GEMM1 into a buffer of bf16, SwiGLU with
quantisation, GEMM2 into ``out``. Rows beyond ``expert_num_tokens`` are left as they are.
"""

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

#: Elements of a block scale.
GROUP = 16
#: Types of both GEMMs as the library names them.
_TYPES = {"ab_dtype": "float4_e2m1fn", "sf_dtype": "float8_e4m3fn", "c_dtype": "bfloat16", "sf_vec_size": GROUP,
          "alpha_dtype": "float32"}


@dataclass(frozen=True, slots=True)
class Prepared(Served):
    """w1 [E, 2I, H/2] with the gate rows first and w2 [E, H, I/2], uint8, with their block scales in the MMA view.

    w1_factor, w2_factor: float32 [E]. quantiser: float32 [E], by which the intermediate is multiplied before it is quantised.
    """

    w1: Tensor
    w1_scale: Tensor
    w2: Tensor
    w2_scale: Tensor
    w1_factor: Tensor
    w2_factor: Tensor
    quantiser: Tensor


class FlashInferCuteDSLBatched(Blackwell):
    """``grouped_gemm_nt_masked`` and ``silu_and_mul_scaled_nvfp4_experts_quantize``."""

    name = "flashinfer_cutedsl_batched"

    def entries(self, recipe: str, release: str) -> Sequence[entries.Entry]:
        return (entries.MASKED_GEMM, entries.SILU_QUANTIZE, entries.SWIZZLE, entries.MMA_VIEW)

    def capabilities(self, release: str) -> Sequence[tuple[int, int]]:
        """The Rubin kernel came with the wrapper of 0.6.18."""
        return ((10, 0), (10, 3)) if release in entries.RELEASES[:2] else ((10, 0), (10, 3), (10, 7))

    def supports(self, case: Case) -> Support:
        if case.recipe != "nvfp4":
            return Support.no(f"NVFP4 weights and activations only, not recipe {case.recipe}")
        if case.activation_format != "batched":
            return Support.no("the batched activation format only; flashinfer_cutedsl takes the other")
        if case.activation.kind != "swiglu":
            return Support.no(f"the quantising activation is swiglu, not {case.activation.kind}")
        if case.weights.bias:
            return Support.no("the GEMMs add no biases")
        for name, size, unit in (("hidden_size", case.shape.hidden_size, 128),
                                 ("intermediate_size", case.intermediate_local, 64)):
            if size % unit:
                return Support.no(f"{name} {size} of a rank is not a multiple of {unit}")
        return self.known(case)

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        """Each row is the work of one tile; nothing is added with atomics. Engines capture it in CUDA graphs (vllm#38050)."""
        return Traits(deterministic=True, graph_safe=True, noncontiguous="unsupported")

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        """GEMM1 writes bf16, which SwiGLU reads."""
        return replace(Numerics.of(case.recipe), projection="bf16")

    def prepare_with(self, library: Library, weights: Weights, case: Case) -> Prepared:
        """The factor of up differs from that of gate in the quantiser alone, which takes one number an expert."""
        experts = case.experts_local
        w1, w1_scale = (scales.up_gate(weights, part, gate_first=True) for part in ("data", "scale"))
        assert weights.intermediate_scale is not None
        static = weights.intermediate_scale.expand(experts)
        return Prepared(
            case, weights, {}, w1, layouts.mma_scales(library, w1_scale.view(torch.uint8), case.shape.hidden_size, GROUP),
            weights.down.data.contiguous(),
            layouts.mma_scales(library, scales.block_scales(weights.down), case.intermediate_local, GROUP),
            scales.factor(weights.gate, experts), scales.factor(weights.down, experts) * static,
            (scales.up_over_gate(weights, experts) / static).contiguous())

    def launch(self, library: Library, prepared: Any, batch: Batch, out: Tensor, *, tactic: Any = None,
               workspace: Tensor | None = None) -> None:
        """workspace: the bf16 result of GEMM1 is put there, otherwise it is allocated."""
        counts, x = batch.expert_num_tokens, batch.x
        if counts is None or x.global_scale is None:
            raise Refused("the batched activation format with NVFP4 activations only")
        experts, most = x.data.shape[:2]
        width = 2 * prepared.case.intermediate_local
        held = None if workspace is None else workspace[: experts * most * width * 2].view(torch.bfloat16)
        between = torch.empty(experts, most, width, dtype=torch.bfloat16, device=out.device) if held is None \
            else held.view(experts, most, width)
        x_scale = layouts.mma_scales(library, scales.block_scales(x), prepared.case.shape.hidden_size, GROUP)
        library.call(
            entries.MASKED_GEMM, lhs=(x.data.permute(1, 2, 0), x_scale.view(torch.float8_e4m3fn)),
            rhs=(prepared.w1.permute(1, 2, 0), prepared.w1_scale.view(torch.float8_e4m3fn)), out=between.permute(1, 2, 0),
            masked_m=counts, alpha=prepared.w1_factor * x.global_scale, **_TYPES)
        quantised, quantised_scale = library.call(
            entries.SILU_QUANTIZE, a=between, mask=counts, a_global_sf=prepared.quantiser)
        library.call(
            entries.MASKED_GEMM, lhs=(quantised, quantised_scale),
            rhs=(prepared.w2.permute(1, 2, 0), prepared.w2_scale.view(torch.float8_e4m3fn)), out=out.permute(1, 2, 0),
            masked_m=counts, alpha=prepared.w2_factor, **_TYPES)

    def run(self, prepared: Any, batch: Batch, out: Tensor, *, tactic: Hashable | None = None,
            workspace: Tensor | None = None) -> None:
        if tactic is not None:
            raise ValueError(f"tactic {tactic!r}; the masked GEMM has none, and its tile is fixed")
        self.launch(self.library(), prepared, batch, out, workspace=workspace)

    def tactics(self, prepared: Any, batch: Batch) -> tuple[Hashable, ...]:
        """None: the masked GEMM does not ask the tuner."""
        return ()

    def tune(self, prepared: Any, batch: Batch) -> Hashable | None:
        return None

    def workspace_bytes(self, prepared: Any, batch: Batch) -> int:
        """GEMM1's result in bf16, as vLLM's workspace shapes have it."""
        experts, most = batch.x.data.shape[:2]
        return int(experts * most * 2 * prepared.case.intermediate_local * 2)

    def probes_with(self, library: Library, case: Case) -> Mapping[str, Probe]:
        return layouts.cutedsl_probes(library, gated=False)
