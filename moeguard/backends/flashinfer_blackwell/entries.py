"""Entry points of FlashInfer by release. Nothing here imports FlashInfer.

Every row was read off the sources of the releases in RELEASES, and is compared with their wheels by ``moeguard doctor --wheels``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

#: The releases that the adapters know, oldest first. Others may have other layouts, which nothing would notice.
RELEASES = ("0.6.6", "0.6.11.post2", "0.6.18.post1", "0.7.4")
_EARLY, _MIDDLE, _LATE, _LAST = RELEASES


@dataclass(frozen=True, slots=True)
class Entry:
    """A function of FlashInfer. first: the first release of RELEASES that has it.

    since: parameters that came later, with their first release. dsl: whether it is there with nvidia-cutlass-dsl alone.
    """

    module: str
    name: str
    first: str = _EARLY
    since: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    dsl: bool = False

    @property
    def path(self) -> str:
        """Dotted name."""
        return f"{self.module}.{self.name}"

    def lacking(self, release: str, parameters: Iterable[str] = ()) -> str | None:
        """Why ``release`` cannot be called with ``parameters``, in one clause; None when it can."""
        if _before(release, self.first):
            return f"FlashInfer {release} has no {self.path} (first in {self.first})"
        for parameter in parameters:
            if _before(release, self.since.get(parameter, _EARLY)):
                return f"{self.path} of FlashInfer {release} takes no {parameter} (first in {self.since[parameter]})"
        return None

    def takes(self, release: str, parameter: str) -> bool:
        """Whether the function of ``release`` has ``parameter``, one of ``since`` or an older one."""
        return not _before(release, self.since.get(parameter, _EARLY))


def _before(release: str, other: str) -> bool:
    return RELEASES.index(release) < RELEASES.index(other)


def unknown(release: str) -> str | None:
    """Why the adapters do not drive ``release``; None when they do."""
    if release in RELEASES:
        return None
    return f"FlashInfer {release} is not in the version table; known: {', '.join(RELEASES)}"


def _since(*parameters: str, release: str) -> dict[str, str]:
    return dict.fromkeys(parameters, release)


_OAI = ("gemm1_alpha", "gemm1_beta", "gemm1_clamp_limit")

CUTE_DSL = Entry("flashinfer.fused_moe", "cute_dsl_fused_moe", first=_LAST, dsl=True)
CUTE_DSL_NVFP4 = Entry(
    "flashinfer.fused_moe", "cute_dsl_fused_moe_nvfp4", dsl=True,
    since=_since("enable_pdl", release=_MIDDLE)
    | _since("activation_type", "swiglu_alpha", "swiglu_beta", "swiglu_limit", "quant_mode", release=_LATE))
MASKED_GEMM = Entry("flashinfer.gemm", "grouped_gemm_nt_masked", dsl=True)
SILU_QUANTIZE = Entry("flashinfer", "silu_and_mul_scaled_nvfp4_experts_quantize")
MMA_VIEW = Entry("flashinfer.cute_dsl.utils", "convert_sf_to_mma_layout", dsl=True)
INTERLEAVE = Entry("flashinfer.fused_moe.prepare", "interleave_cute_dsl_moe_weights", first=_LAST)
SWIZZLE = Entry("flashinfer", "block_scale_interleave")
MXFP8_QUANTIZE = Entry("flashinfer", "mxfp8_quantize")
W1_ROWS = Entry("flashinfer.fused_moe.core", "_maybe_get_cached_w3_w1_permute_indices")
W2_ROWS = Entry("flashinfer.fused_moe.core", "get_w2_permute_indices_with_cache", since={"is_gated_act_gemm": _LAST})
BLOCK_LAYOUT = Entry("flashinfer.fused_moe.core", "convert_to_block_layout")

TRTLLM: dict[tuple[str, bool], Entry] = {
    # by kind of weights, and whether the ids are given
    ("bf16", False): Entry("flashinfer.fused_moe", "trtllm_bf16_moe",
                           since=_since("activation_type", "norm_topk_prob", release=_MIDDLE)
                           | _since("output", *_OAI, release=_LATE)),
    ("bf16", True): Entry("flashinfer.fused_moe", "trtllm_bf16_routed_moe", since=_since("activation_type", release=_MIDDLE)
                          | _since("output", *_OAI, release=_LATE)),
    ("fp8_per_tensor", False): Entry("flashinfer.fused_moe", "trtllm_fp8_per_tensor_scale_moe",
                                     since=_since("norm_topk_prob", release=_MIDDLE) | _since("output", release=_LATE)),
    ("fp8_per_tensor", True): Entry("flashinfer.fused_moe", "trtllm_fp8_per_tensor_scale_routed_moe", first=_LATE),
    ("fp8_block", False): Entry("flashinfer.fused_moe", "trtllm_fp8_block_scale_moe",
                                since=_since("activation_type", "norm_topk_prob", release=_MIDDLE)
                                | _since("output", *_OAI, release=_LATE)),
    ("fp8_block", True): Entry("flashinfer.fused_moe", "trtllm_fp8_block_scale_routed_moe",
                               since=_since("activation_type", release=_MIDDLE) | _since(*_OAI, release=_LATE)),
    ("fp4", False): Entry("flashinfer.fused_moe", "trtllm_fp4_block_scale_moe", since=_since("norm_topk_prob", release=_MIDDLE)),
    ("fp4", True): Entry("flashinfer.fused_moe", "trtllm_fp4_block_scale_routed_moe"),
}
#: First release whose routed functions take ids and float32 weights apart; before, the weight is packed with its id, as bf16.
UNPACKED_IDS = _LATE
