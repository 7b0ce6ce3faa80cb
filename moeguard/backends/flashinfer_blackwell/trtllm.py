"""``flashinfer_trtllm`` and ``flashinfer_trtllm_logits``: FlashInfer's TRTLLM-gen MoE, pre-routed or with its own router."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from moeguard.backends.flashinfer_blackwell import entries, layouts, trtllm_calls, trtllm_weights
from moeguard.backends.flashinfer_blackwell.backend import Blackwell
from moeguard.backends.flashinfer_blackwell.entries import Entry
from moeguard.backends.flashinfer_blackwell.library import Library
from moeguard.backends.flashinfer_blackwell.trtllm_weights import Prepared
from moeguard.backends.protocol import Refused, Support, Traits
from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.layouts.contract import Probe
from moeguard.tensors.operand import Batch, Weights

#: The function that serves a recipe, by the key of ``entries.TRTLLM``.
KINDS = {"bf16": "bf16", "fp8_per_tensor": "fp8_per_tensor", "fp8_block": "fp8_block", "mxfp8": "fp8_block", "mxfp4_bf16": "fp4",
         "mxfp4_fp8": "fp4", "nvfp4": "fp4"}
#: Recipes without a scale that the parameters of swiglu_oai would have to be divided by.
_OAI = ("bf16", "fp8_block", "mxfp8", "mxfp4_bf16", "mxfp4_fp8")


class FlashInferTRTLLM(Blackwell):
    """The ``trtllm_*_routed_moe`` functions: ids and router weights are given."""

    name = "flashinfer_trtllm"
    routed: ClassVar[bool] = True

    def entries(self, recipe: str, release: str) -> Sequence[entries.Entry]:
        kind = KINDS.get(recipe)
        return () if kind is None else (entries.TRTLLM[kind, self.routed],)

    def capabilities(self, release: str) -> Sequence[tuple[int, int]]:
        """``_TRTLLM_ROUTED_ARCHS`` of flashinfer/fused_moe/api.py from 0.6.18 on."""
        return ((10, 0), (10, 3)) if release in entries.RELEASES[:2] else ((10, 0), (10, 3), (10, 7))

    def supports(self, case: Case) -> Support:
        kind = KINDS.get(case.recipe)
        if kind is None:
            return Support.no(f"no TRTLLM-gen kernel for recipe {case.recipe}")
        if case.activation_format != "standard":
            return Support.no("the standard activation format only")
        if case.activation.kind not in ("swiglu", "relu2", "swiglu_oai"):
            return Support.no(f"no TRTLLM-gen kernel is documented for activation {case.activation.kind}")
        if case.activation.kind == "swiglu_oai" and case.recipe not in _OAI:
            return Support.no(f"the parameters of swiglu_oai would have to be scaled in recipe {case.recipe}")
        if case.activation.kind == "relu2" and case.recipe == "fp8_block":
            return Support.no("the documented activations of DeepSeek FP8 before 0.7 are gated")
        if case.weights.bias and not case.recipe.startswith("mxfp4"):
            return Support.no(f"no biases in recipe {case.recipe}")
        for name, size in (("hidden_size", case.shape.hidden_size), ("intermediate_size", case.intermediate_local)):
            if size % layouts.TILE:
                return Support.no(f"{name} {size} of a rank is not a multiple of {layouts.TILE}")
        return self.known(case)

    def parameters(self, case: Case) -> Sequence[str]:
        return [*(["activation_type"] if case.activation.kind != "swiglu" else []),
                *(["gemm1_alpha"] if case.activation.kind == "swiglu_oai" else [])]

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        """The finalize kernel adds in a fixed order. Ids outside of the rank are skipped (flashinfer/fused_moe/api.py,
        MoEActivationPack). Engines rely on an idle data-parallel rank (no tokens), on repeated ids of padded rows, and capture
        the call in CUDA graphs.
        """
        return Traits(deterministic=True, graph_safe=True, invalid_ids="drop", noncontiguous="unsupported")

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        """GEMM2 writes bf16, and the finalize kernel adds in float32.

        Router weights in bf16 (its own router; packed ids before 0.6.18) are off by as much as the bf16 of GEMM2, for which one
        rounding point stands.
        """
        numerics = replace(Numerics.of(case.recipe), expert_output="bf16")
        if case.recipe == "mxfp4_fp8":
            numerics = replace(numerics, input="mxfp8", intermediate="mxfp8")
        return numerics

    def prepare_with(self, library: Library, weights: Weights, case: Case) -> Prepared:
        return trtllm_weights.prepare(library, weights, case)

    def launch(self, library: Library, prepared: Any, batch: Batch, out: Tensor, *, tactic: Any = None,
               workspace: Tensor | None = None) -> None:
        if batch.topk_ids is None:
            raise Refused("the batched activation format is not supported")
        case, kind = prepared.case, KINDS[prepared.case.recipe]
        entry = entries.TRTLLM[kind, self.routed]
        named = trtllm_calls.arguments(library, prepared, batch, kind) | self._routing(library.release, case, batch, entry)
        takes = entry.takes(library.release, "output")
        done = library.call(entry, **named, **({"output": out} if takes else {}))
        if not takes:
            out.copy_(done[0] if isinstance(done, list | tuple) else done)

    def probes_with(self, library: Library, case: Case) -> Mapping[str, Probe]:
        return layouts.trtllm_probes(library, gated=case.activation.gated)

    def _routing(self, release: str, case: Case, batch: Batch, entry: Entry) -> dict[str, Any]:
        return trtllm_calls.given(release, batch, entry)


class FlashInferTRTLLMLogits(FlashInferTRTLLM):
    """The ``trtllm_*_moe`` functions: the kernel routes by the logits, and its router weights are bf16."""

    name = "flashinfer_trtllm_logits"
    routed: ClassVar[bool] = False

    def supports(self, case: Case) -> Support:
        if case.routing.kind in ("duplicate_ids", "invalid_ids", "balanced"):
            return Support.no(f"the ids of kind {case.routing.kind} do not follow from the logits")
        if case.routing.kind == "nan_logits":
            return Support.no("the library does not say what its router makes of NaN")
        if case.inputs.kind == "exact":
            return Support.no("the router weights of exact inputs do not follow from the logits")
        reason = trtllm_calls.unroutable(case)
        return super().supports(case) if reason is None else Support.no(reason)

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        """There are no ids that could be wrong."""
        return replace(super().traits(case, tactic), invalid_ids="unsupported")

    def _routing(self, release: str, case: Case, batch: Batch, entry: Entry) -> dict[str, Any]:
        return trtllm_calls.own(release, case, batch, entry)
