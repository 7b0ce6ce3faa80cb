"""Quantisation recipes: what is stored in which format, and the rounding points that follow.

Where the four-bit recipes round is what the Hopper kernels for them do (FlashInfer 0.7.4, CUTLASS backend,
cutlass_fused_moe_kernels.cuh): MXFP4 x BF16 stores the intermediate in bf16; MXFP4 x FP8 quantises the input
(expandInputRowsKernel) and the intermediate (doActivationKernel, from float32) to e4m3 with a dynamic scale amax / 448 for each
row; INT4 x FP8 multiplies both by static factors, the intermediate being stored in bf16 before (applyPrequantScale).

The recipes of Blackwell quantise blocks along the reduction axis: mxfp8 the input and the intermediate (32 elements, dynamic
e8m0 scale), nvfp4 the intermediate (16 elements, dynamic e4m3 scale below one static float32 scale,
``weights.intermediate_scale``). The recipe rounds once, from float32, accumulates and combines in float32 and rounds the answer.
FlashInfer's CUTLASS kernels (0.7.4: doActivationKernel, quantizePackedFPXValue) round the projections to bf16 and the activation
to bf16 before its codes, so that they declare ``projection="bf16"`` and ``bf16+nvfp4`` or ``bf16+mxfp8``.
"""

from __future__ import annotations

from dataclasses import dataclass

from moeguard.core.numerics import UNSCALED, Numerics


@dataclass(frozen=True, slots=True)
class Recipe:
    """One row of the recipe table.

    x_format, weight_format: storage of ``batch.x`` and of the weights.
    x_scale, weight_scale: granularity of their scales (``none``; float32 ``per_tensor``, ``128x128``; ``e8m0_1x32``,
    ``bf16_1x128``, ``e4m3_1x16``: that type, one a group along the reduction axis; ``e4m3_1x16`` has a float32 global scale
    besides, one for ``batch.x``, one an expert of gate, up and down each). output: dtype name of ``out``.
    group: elements of such a group; H and the I of a rank are multiples of it.
    """

    name: str
    x_format: str
    x_scale: str
    weight_format: str
    weight_scale: str
    output: str
    numerics: Numerics
    group: int = 1

    @property
    def packed(self) -> bool:
        """Whether weights are four-bit codes, two to a byte."""
        return self.weight_format in ("e2m1", "int4")

    @property
    def narrow(self) -> bool:
        """Whether the intermediate is rounded to a format of eight bits or less."""
        return self.numerics.intermediate.split("+")[-1] not in UNSCALED


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("bf16", "bf16", "none", "bf16", "none", "bf16", Numerics(intermediate="bf16")),
        Recipe("fp16", "fp16", "none", "fp16", "none", "fp16", Numerics(intermediate="fp16")),
        Recipe("fp8_per_tensor", "e4m3", "per_tensor", "e4m3", "per_tensor", "bf16",
               Numerics(intermediate="e4m3_per_tensor")),
        Recipe("fp8_block", "bf16", "none", "e4m3", "128x128", "bf16",
               Numerics(input="e4m3_1x128", intermediate="e4m3_1x128")),
        Recipe("mxfp4_bf16", "bf16", "none", "e2m1", "e8m0_1x32", "bf16", Numerics(intermediate="bf16"), 32),
        Recipe("mxfp4_fp8", "bf16", "none", "e2m1", "e8m0_1x32", "bf16",
               Numerics(input="e4m3_per_token", intermediate="e4m3_per_token"), 32),
        Recipe("int4_fp8", "bf16", "none", "int4", "bf16_1x128", "bf16",
               Numerics(input="e4m3_per_tensor", intermediate="bf16+e4m3_per_tensor"), 128),
        Recipe("mxfp8", "bf16", "none", "e4m3", "e8m0_1x32", "bf16", Numerics(input="mxfp8", intermediate="mxfp8"), 32),
        Recipe("nvfp4", "e2m1", "e4m3_1x16", "e2m1", "e4m3_1x16", "bf16", Numerics(intermediate="nvfp4"), 16),
        Recipe("nvfp4_bf16", "bf16", "none", "e2m1", "e4m3_1x16", "bf16", Numerics(intermediate="bf16"), 16),
    )
}
