"""Rounding points of a recipe or of one kernel: where values lose bits, and how many."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

Accumulate = Literal["fp32", "fp8_hopper"]
Combine = Literal["fp32", "bf16", "output"]
#: e4m3 with one static scale (``weights.input_scale`` or ``weights.intermediate_scale``), one dynamic scale a token (row of this
#: rank), or one a block of 1x128; mxfp8: e4m3 with a dynamic e8m0 scale a block of 1x32, the power of two at or above amax / 448;
#: nvfp4: e2m1 with a dynamic e4m3 scale a block of 1x16 below a static float32 global scale (``weights.intermediate_scale``).
ROUNDINGS = ("none", "bf16", "fp16", "e4m3_per_tensor", "e4m3_per_token", "e4m3_1x128", "mxfp8", "nvfp4")
#: Roundings that need no scale.
UNSCALED = ("none", "bf16", "fp16")

#: Unit roundoff of one accumulation step. Hopper's FP8 tensor cores keep about 14 bits between promotions
#: (DeepSeek-V3 technical report, section 3.3.2).
ACCUMULATOR_ROUNDOFF: dict[str, float] = {"fp32": 2.0**-24, "fp8_hopper": 2.0**-13}


@dataclass(frozen=True, slots=True)
class Numerics:
    """Declared rounding points of one MoE kernel.

    input: format to which the kernel itself rounds ``batch.x`` (``none`` when it is stored as consumed).
    projection: format to which the gate and up projections are rounded before the activation (before or after the bias).
    intermediate: format of ``act(gate) * up``; a chain such as ``bf16+e4m3_1x128`` rounds twice, left first.
    expert_output: format of each expert's output before the weighted combine, or ``none``.
    accumulate: ``fp32``, or ``fp8_hopper`` (14-bit partial sums).
    combine: format in which the K weighted expert outputs are added (``output`` means the dtype of ``out``).

    Raises ValueError when a name is unknown.
    """

    input: str = "none"
    intermediate: str = "none"
    expert_output: str = "none"
    accumulate: Accumulate = "fp32"
    combine: Combine = "fp32"
    projection: Literal["none", "bf16", "fp16"] = "none"

    def __post_init__(self) -> None:
        for field in ("input", "intermediate", "expert_output"):
            for part in getattr(self, field).split("+"):
                if part not in ROUNDINGS:
                    raise ValueError(f"numerics.{field}: unknown rounding {part!r}; allowed: {', '.join(ROUNDINGS)}")
        if self.projection not in ("none", "bf16", "fp16"):
            raise ValueError(f"numerics.projection: {self.projection!r}; allowed: none, bf16, fp16")
        if self.accumulate not in get_args(Accumulate):
            raise ValueError(f"numerics.accumulate: {self.accumulate!r}; allowed: {', '.join(get_args(Accumulate))}")
        if self.combine not in get_args(Combine):
            raise ValueError(f"numerics.combine: {self.combine!r}; allowed: {', '.join(get_args(Combine))}")

    @classmethod
    def of(cls, recipe: str) -> Numerics:
        """The recipe's own rounding points: stored operands exact, float32 accumulation and combine, one output rounding."""
        from moeguard.core.recipe import RECIPES

        return RECIPES[recipe].numerics

    @property
    def u_acc(self) -> float:
        """Unit roundoff of one accumulation step."""
        return ACCUMULATOR_ROUNDOFF[self.accumulate]

    def finer_variants(self) -> tuple[Numerics, ...]:
        """Rounding points that lose fewer bits than declared: legitimate for a kernel, but worth a note."""
        candidates = [
            replace(self, projection="none"),
            replace(self, intermediate="none"),
            replace(self, expert_output="none", combine="fp32"),
            replace(self, projection="none", intermediate="none", expert_output="none", combine="fp32"),
        ]
        if "+" in self.intermediate:
            candidates.append(replace(self, intermediate=self.intermediate.split("+")[-1]))
        elif self.intermediate not in UNSCALED:
            candidates.append(replace(self, intermediate="bf16"))
        return tuple(dict.fromkeys(c for c in candidates if c != self))
