"""``flashinfer_cutile``: FlashInfer's cuTile kernels for 16-bit activations."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from moeguard.backends.flashinfer_unified.backend import FlashInferUnified
from moeguard.backends.flashinfer_unified.config import CAP, Formats
from moeguard.backends.flashinfer_unified.library import Library, cutile_refusal
from moeguard.backends.flashinfer_unified.prepared import Prepared
from moeguard.backends.flashinfer_unified.views import cutile_view
from moeguard.backends.protocol import Support, Traits
from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.tensors.operand import Weights

#: Configuration and runner of each recipe are called ``CuTile{name}Config`` and ``CuTile{name}Runner``.
NAMES = {"bf16": "Bf16", "fp8_per_tensor": "Fp8PerTensorBf16", "mxfp4_bf16": "Mxfp4Bf16"}
#: H and the I of a rank: a multiple of the first (``prepare_cutile_*_weights``), and no less than the second, so that the
#: smallest tile of a stage is at most twice its size (``_cutile_*_config_rejection_reason``).
SIZES = {"bf16": (1, 32), "fp8_per_tensor": (32, 32), "mxfp4_bf16": (32, 64)}


class FlashInferCuTile(FlashInferUnified):
    """cuTile's BF16 runner, and those that multiply bf16 activations with e4m3 or MXFP4 weights.

    ``CuTileFp8PerTensorConfig`` quantises activations with dynamic scales of the whole tensor, which is another recipe.
    """

    name = "flashinfer_cutile"
    formats: ClassVar[dict[str, Formats]] = {
        "bf16": Formats("BF16", "BF16"), "fp8_per_tensor": Formats("FP8PerTensor", "BF16"),
        "mxfp4_bf16": Formats("MXFP4", "BF16")}
    routing = "PackedPrecomputed"

    def lacking(self) -> str | None:
        return cutile_refusal()

    def supports(self, case: Case) -> Support:
        found = self.common(case)
        if not found.supported:
            return found
        unit, least = SIZES[case.recipe]
        for name, size in (("hidden_size", case.shape.hidden_size), ("intermediate_size", case.intermediate_local)):
            if size % unit:
                return Support.no(f"{name} {size} of a rank is not a multiple of {unit}")
            if size < least:
                return Support.no(f"{name} {size} of a rank is less than {least}, and no tile of the kernel fits")
        if case.shape.num_tokens > CAP:
            return Support.no(f"num_tokens {case.shape.num_tokens} is above tune_max_num_tokens {CAP}")
        return Support.yes()

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        """The combine adds in the order of the slots (cutile/moe.py), and the tuner replays graphs (``use_cuda_graph``).

        ids outside of the experts: left undefined (``MoEActivationPack``). No tokens and rows with gaps: ``_validate_inputs``
        raises. Equal ids are separate assignments in ``_permute``.
        """
        return Traits(deterministic=True, graph_safe=True, invalid_ids="unsupported", zero_tokens="unsupported",
                      noncontiguous="unsupported")

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        """Each GEMM stores its result in bf16, before the activation and before the combine; the combine adds in float32.

        Sources: ``_grouped_gemm_bf16_impl`` and ``_combine_impl`` in cutile/moe.py, ``_sorted_gemm_tile`` in cutile/fp8.py,
        ``_grouped_gemm_w4a16_impl`` in cutile/fp4.py. e4m3 and MXFP4 weights are exact in bf16.
        """
        return replace(Numerics.of(case.recipe), projection="bf16", intermediate="bf16", expert_output="bf16")

    def candidate(self, library: Library, case: Case) -> Any:
        return getattr(library.api, f"CuTile{NAMES[case.recipe]}Config")()

    def runner(self, library: Library, case: Case) -> Any:
        return getattr(library.runners, f"CuTile{NAMES[case.recipe]}Runner")

    def view(self, library: Library, weights: Weights, case: Case) -> dict[str, Tensor]:
        return cutile_view(library, weights, case, self.candidate(library, case))

    def offered(self, prepared: Prepared, inputs: Any) -> tuple[tuple[Any, ...], ...]:
        """Each configuration of either stage with the other at its default; e4m3 weights: in each mode of the tuner.

        The library's ``get_valid_tactics`` measures both stages alone and lists the best two of each.
        """
        runner, recipe = prepared.runner, prepared.case.recipe
        default = runner._fp4_fallback_tactic(inputs) if recipe == "mxfp4_bf16" else runner._fallback_tactic(inputs)
        listed = [default]
        for stage in (1, 2):
            for values in runner._stage_tactics(inputs, stage=stage, block_size=default[0]):
                one = list(default)
                one[runner._stage_tactic_slice(stage)] = values
                listed.append(tuple(one))
        listed = list(dict.fromkeys(listed))
        if recipe != "fp8_per_tensor":
            return tuple(listed)
        return tuple((mode, *one) for mode in runner._fp8_sorted_modes(inputs) for one in listed)
