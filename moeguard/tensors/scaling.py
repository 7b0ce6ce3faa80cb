"""Magnitudes of weight scales: per expert or per block factors that make a wrong scale visible."""

from __future__ import annotations

import torch
from torch import Tensor

from moeguard.core.case import Case
from moeguard.core.recipe import RECIPES
from moeguard.tensors.counter import Stream

#: Exponents beyond which a healthy kernel would overflow float32 (positive) on its way to the output.
LARGEST_EXPONENT = 100
#: What a float16 or a static-scale FP8 layer can take without leaving the format.
_NARROW = {"fp16": 4, "fp8_per_tensor": 24, "int4_fp8": 24, "nvfp4": 24}
#: Binades that gate and up of one expert may be apart where kernels hold them with one scale. In mxfp4_fp8 a kernel that folds
#: e8m0 scales into e4m3 weights holds 11 binades of scales an expert, gate and up together (FlashInfer 0.7.4,
#: _preprocess_humming_e8m0_weight_scale); 5 of them belong to what the groups of a matrix (4) and the factors of experts (2)
#: spread over, one less than their sum. In NVFP4 many kernels have one global scale an expert for gate and up (FlashInfer's
#: w1_alpha, or fc1 global scale); the e4m3 scales of the smaller one, 4 to 5 binades from 2**4 on, can be shifted down by 10
#: binades without loss.
_FOLDED = 6
_ONE_SCALE = ("mxfp4_fp8", "nvfp4", "nvfp4_bf16")


def magnitudes(case: Case, stream: Stream) -> dict[str, Tensor]:
    """Factors by which the weights of each expert are multiplied: float32 [E_local, 1] for gate, up and down.

    ``normal``: within [1/2, 2) so that neighbours differ. ``tiny``: gate and up of every other expert times
    2**-|exponent|. ``zero``: gate and up of one expert times 0. ``bimodal``: experts at 1 or 2**exponent.
    ``heterogeneous``: up times 2**r, down times 2**-r with r spread over [-|exponent|, |exponent|], so that every expert
    still contributes. ``saturating``: stored codes and, where scales are static, the intermediate (and the input that
    the kernel quantises) run into their maximum.
    Powers of two are exact in every format whose range holds them; results are clipped to that range.
    Where they become global scales (NVFP4), gate and up of one expert differ by a power of two.
    """
    experts = range(case.first_expert, case.first_expert + case.experts_local)
    mantissa = _mantissas(stream, experts)
    if RECIPES[case.recipe].weight_scale == "e4m3_1x16":
        apart = stream.integers("scale-apart", 1, -1, 2, rows=experts).to(torch.int32)
        mantissa["up"] = torch.ldexp(mantissa["gate"], apart)
    kind, exponent = case.scales.kind, _clip(case)
    ones = torch.ones_like(mantissa["gate"])
    pick = (stream.integers("scale-pick", 1, 0, 2, rows=experts)).to(torch.float32)
    if kind == "tiny":
        factor = torch.where(pick == 1, _power(-abs(exponent), ones), ones)
        return {"gate": mantissa["gate"] * factor, "up": mantissa["up"] * factor, "down": mantissa["down"]}
    if kind == "zero":
        dead = case.seed % case.shape.num_experts
        alive = torch.tensor([[float(e != dead)] for e in experts], device=ones.device)
        return {"gate": mantissa["gate"] * alive, "up": mantissa["up"] * alive, "down": mantissa["down"]}
    if kind == "bimodal":
        factor = torch.where(pick == 1, _power(exponent, ones), ones)
        return {"gate": mantissa["gate"], "up": mantissa["up"] * factor, "down": mantissa["down"]}
    if kind == "heterogeneous":
        span = min(abs(exponent), 60)
        shift = stream.integers("scale-shift", 1, -span, span + 1, rows=experts).to(torch.int32)
        if not case.activation.gated:
            shift = torch.zeros_like(shift)
        return {"gate": mantissa["gate"], "up": torch.ldexp(mantissa["up"], shift),
                "down": torch.ldexp(mantissa["down"], -shift)}
    return mantissa


def fill(case: Case) -> float:
    """By how much drawn values exceed what just fills the range of their codes."""
    return 4.0 if case.scales.kind == "saturating" else 1.0


def largest_up(case: Case) -> float:
    """Power of two that a static intermediate scale must follow."""
    exponent = _clip(case)
    if case.scales.kind == "bimodal" and exponent > 0 and case.activation.gated:
        return float(2.0**exponent)
    return 1.0


def _clip(case: Case) -> int:
    limit = _NARROW.get(case.recipe, LARGEST_EXPONENT)
    low = -limit if case.recipe in _NARROW else -149
    if case.scales.kind == "heterogeneous" and case.recipe in _NARROW:
        limit, low = 3, -3
    if case.recipe in _ONE_SCALE and case.scales.kind in ("bimodal", "heterogeneous"):
        limit = min(limit, _FOLDED)
        low = -limit
    if case.recipe == "nvfp4_bf16" and case.scales.kind == "tiny":  # global scales are float32: above its subnormals
        low = -LARGEST_EXPONENT
    return max(low, min(case.scales.exponent, limit))


def _power(exponent: int, like: Tensor) -> Tensor:
    return torch.full_like(like, 2.0**exponent if exponent >= -149 else 0.0)


def _mantissas(stream: Stream, experts: range) -> dict[str, Tensor]:
    def draw(label: str) -> Tensor:
        return stream.integers(f"scale-{label}", 1, 1 << 15, 1 << 17, rows=experts).to(torch.float32) / 65536.0
    return {label: draw(label) for label in ("gate", "up", "down")}
