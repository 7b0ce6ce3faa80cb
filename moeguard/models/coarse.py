"""A healthy computation that rounds wherever sound kernels do: the noisier edge of the band."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Literal

from torch import Tensor

from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.core.recipe import RECIPES
from moeguard.mutants.base import Call, Pipeline, rounded


class Coarse(Pipeline):
    """Rounds both projections, the intermediate, each expert's output and each step of the combine to the output's dtype.

    These are the rounding points of FlashInfer's CUTLASS kernels with the fused finalize, see
    ``moeguard.backends.flashinfer_cutlass``.
    """

    name = "healthy_coarse"

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        narrow: Literal["bf16", "fp16"] = "fp16" if RECIPES[case.recipe].output == "fp16" else "bf16"
        recipe = Numerics.of(case.recipe)
        return replace(recipe, projection=narrow, intermediate=_after(narrow, recipe.intermediate), expert_output=narrow,
                       combine="output")

    def project(self, call: Call, which: str, expert: int, rows: Tensor) -> Tensor:
        value = super().project(call, which, expert, rows)
        return value if which == "down" else rounded(value, call.numerics.projection, None)


def _after(narrow: str, rounding: str) -> str:
    if rounding == "none":
        return narrow
    return rounding if rounding.partition("+")[0] == narrow else f"{narrow}+{rounding}"
