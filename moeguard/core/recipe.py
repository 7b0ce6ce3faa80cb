"""Quantisation recipes: what is stored in which format, and the rounding points that follow."""

from __future__ import annotations

from dataclasses import dataclass

from moeguard.core.numerics import Numerics


@dataclass(frozen=True, slots=True)
class Recipe:
    """One row of the recipe table.

    x_format, weight_format: storage of ``batch.x`` and of the weights.
    x_scale, weight_scale: granularity of their float32 scales (``none``, ``per_tensor``, ``128x128``).
    output: dtype name of ``out``.
    """

    name: str
    x_format: str
    x_scale: str
    weight_format: str
    weight_scale: str
    output: str
    numerics: Numerics


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("bf16", "bf16", "none", "bf16", "none", "bf16", Numerics(intermediate="bf16")),
        Recipe("fp16", "fp16", "none", "fp16", "none", "fp16", Numerics(intermediate="fp16")),
        Recipe("fp8_per_tensor", "e4m3", "per_tensor", "e4m3", "per_tensor", "bf16",
               Numerics(intermediate="e4m3_per_tensor")),
        Recipe("fp8_block", "bf16", "none", "e4m3", "128x128", "bf16",
               Numerics(input="e4m3_1x128", intermediate="e4m3_1x128")),
    )
}

#: Named by the case format, but without a codec in this version; asking for one is refused by name.
PLANNED_RECIPES = ("mxfp8", "mxfp4_bf16", "mxfp4_fp8", "int4_fp8", "nvfp4", "nvfp4_bf16")
