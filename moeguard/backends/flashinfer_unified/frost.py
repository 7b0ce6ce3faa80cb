"""``flashinfer_frost``: FlashInfer's low-latency kernels for at most eight tokens."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from moeguard.backends.flashinfer_unified.backend import FlashInferUnified, named
from moeguard.backends.flashinfer_unified.config import Formats
from moeguard.backends.flashinfer_unified.library import Library, frost_refusal, frost_runner
from moeguard.backends.flashinfer_unified.prepared import Prepared
from moeguard.backends.flashinfer_unified.views import frost_view
from moeguard.backends.protocol import Support, Traits
from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.tensors.operand import Weights

#: Most tokens (``FrostLowLatencyConfig.max_num_tokens``) and most experts of a token (``_check_support``).
MAX_TOKENS, MAX_TOP_K = 8, 32


class FlashInferFrost(FlashInferUnified):
    """``FrostLowLatencyRunner`` with float32 router weights (``UnpackedPrecomputed``; packed ones are rounded to bf16).

    fp8_per_tensor runs with e4m3 activations where the activation has no gate. With one, gate and up have one scale each, and
    the static scale of the intermediate is one number for all experts, so that the codes are multiplied with bf16 activations.
    """

    name = "flashinfer_frost"
    formats: ClassVar[dict[str, Formats]] = {
        "bf16": Formats("BF16", "BF16"), "fp16": Formats("FP16", "FP16", "FP16"),
        "fp8_per_tensor": Formats("FP8PerTensor", "BF16"), "fp8_block": Formats("DeepSeekFp8", "DeepSeekFp8"),
        "mxfp4_bf16": Formats("MXFP4", "BF16")}
    routing = "UnpackedPrecomputed"

    def named_formats(self, case: Case) -> Formats:
        if case.recipe == "fp8_per_tensor" and not case.activation.gated:
            return Formats("FP8PerTensor", "FP8PerTensor")
        return self.formats[case.recipe]

    def lacking(self) -> str | None:
        return frost_refusal()

    def supports(self, case: Case) -> Support:
        found = self.common(case)
        if not found.supported:
            return found
        if case.shape.num_tokens > MAX_TOKENS:
            return Support.no(f"num_tokens {case.shape.num_tokens} is above {MAX_TOKENS}")
        if case.shape.top_k > MAX_TOP_K:
            return Support.no(f"top_k {case.shape.top_k} is above {MAX_TOP_K}")
        unit = 128 if case.recipe == "fp8_block" else 32
        for name, size, multiple in (("hidden_size", case.shape.hidden_size, 128),
                                     ("intermediate_size", case.intermediate_local, unit)):
            if size % multiple:
                return Support.no(f"{name} {size} of a rank is not a multiple of {multiple}")
        return Support.yes()

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        """The combine is ordered, equal ids stay apart, and ids must be in range (``FrostLowLatencyConfig``).

        Engines capture the call after a first one, which compiles (``execute``). No tokens and rows with gaps: ``pack_inputs``
        raises.
        """
        return Traits(deterministic=True, graph_safe=True, invalid_ids="unsupported", zero_tokens="unsupported",
                      noncontiguous="unsupported")

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        """Sums are float32 but in the ``wgmma`` kernels for e4m3; each expert's output is rounded to the dtype of ``out``.

        Sources: ``FrostLowLatencyConfig`` in fused_moe/api.py; ``_single_route_body`` in fma/bf16/fma_fc1.py: e4m3 and MXFP4
        weights round gate and up to 16 bits before the activation, the others do not; ``_kernel`` in fma/bf16/fma_fc2.py. In
        fp8_block no scale of 1x128 values is below 1e-4 / 448 (``quantize`` in fma/deepseek_fp8_kernel.py), which these names
        cannot say: a block of smaller values keeps fewer bits.
        """
        formats, numerics = self.named_formats(case), Numerics.of(case.recipe)
        numerics = replace(numerics, expert_output="fp16" if formats.output == "FP16" else "bf16")
        if formats.weight in ("FP8PerTensor", "MXFP4"):
            numerics = replace(numerics, projection="bf16")
        if formats.activation == "BF16":
            numerics = replace(numerics, intermediate="bf16")
        chosen = named(tactic)
        if isinstance(chosen, tuple) and chosen[0] == "wgmma" and "8" in formats.activation:
            numerics = replace(numerics, accumulate="fp8_hopper")
        return numerics

    def candidate(self, library: Library, case: Case) -> Any:
        return library.api.FrostLowLatencyConfig(max_num_tokens=MAX_TOKENS)

    def runner(self, library: Library, case: Case) -> Any:
        return frost_runner()

    def view(self, library: Library, weights: Weights, case: Case) -> dict[str, Tensor]:
        return frost_view(library, weights, case, self.candidate(library, case))

    def offered(self, prepared: Prepared, inputs: Any) -> tuple[tuple[Any, ...], ...]:
        """What the runner lists, which measures nothing for it."""
        return tuple(tuple(tactic) for tactic in prepared.runner.get_valid_tactics(inputs, None))
