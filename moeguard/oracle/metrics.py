"""Published comparison rules, kept for comparison only: what other harnesses would have said of the same answer.

Sources: FlashInfer's unit tests, fused-MoE test helper and fuzz tests; flashinfer-bench; DeepGEMM's calc_diff; the SQNR of
pytorch/ao; torch.allclose. Every rule accepts defects that the judge finds (for Gaussian outputs below ``zero_sigma`` even
an answer of zeros).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from scipy import special
from torch import Tensor


def hit_rate(answer: Tensor, reference: Tensor, atol: float, rtol: float) -> float:
    """Share of elements with \\|answer - reference\\| <= atol + rtol * \\|reference\\|; tensors of equal shape, float64."""
    return float(((answer - reference).abs() <= atol + rtol * reference.abs()).double().mean())


def helper_rate(answer: Tensor, reference: Tensor) -> float:
    """Share with \\|d\\| < max(0.05, 1.5 * std(reference)) or \\|d\\| / \\|reference\\| < 0.5; the helper asks for 97 %."""
    difference = (answer - reference).abs()
    limit = max(0.05, 1.5 * float(reference.std()))
    return float(((difference < limit) | (difference < 0.5 * reference.abs())).double().mean())


def either_rate(answer: Tensor, reference: Tensor, tolerance: float = 1e-2) -> float:
    """Share whose absolute or relative error is at most ``tolerance``; flashinfer-bench asks for 95 %."""
    difference = (answer - reference).abs()
    return float(((difference <= tolerance) | (difference <= tolerance * reference.abs())).double().mean())


def within_fraction(answer: Tensor, reference: Tensor, fraction: float, rtol: float) -> bool:
    """All elements within fraction * max\\|reference\\| + 1e-3 + rtol * \\|reference\\| (FlashInfer fuzz)."""
    limit = fraction * float(reference.abs().max()) + 1e-3
    return bool(((answer - reference).abs() <= limit + rtol * reference.abs()).all())


def calc_diff(answer: Tensor, reference: Tensor) -> float:
    """1 - 2 <x, y> / (\\|x\\|^2 + \\|y\\|^2); 0 for equal tensors, also when both are zero."""
    total = float(answer.square().sum() + reference.square().sum())
    return 0.0 if total == 0 else 1.0 - 2.0 * float((answer * reference).sum()) / total


def sqnr(answer: Tensor, reference: Tensor) -> float:
    """Signal to quantisation noise in dB; infinite for equal tensors."""
    noise = float((answer - reference).square().sum())
    return math.inf if noise == 0 else 10.0 * math.log10(max(float(reference.square().sum()), 1e-300) / noise)


#: Name of a published rule -> whether it accepts (answer, reference), both float64 of equal shape.
PUBLISHED: Mapping[str, Callable[[Tensor, Tensor], bool]] = MappingProxyType({
    "isclose .1/.85, 79 %": lambda y, r: hit_rate(y, r, 0.1, 0.85) >= 0.79,
    "helper 97 %": lambda y, r: helper_rate(y, r) >= 0.97,
    "flashinfer-bench": lambda y, r: either_rate(y, r) >= 0.95,
    "fuzz .15/.85": lambda y, r: within_fraction(y, r, 0.15, 0.85),
    "fuzz .05/.05": lambda y, r: within_fraction(y, r, 0.05, 0.05),
    "calc_diff 1e-3": lambda y, r: calc_diff(y, r) <= 1e-3,
    "SQNR 25 dB": lambda y, r: sqnr(y, r) >= 25.0,
    "allclose 1e-2": lambda y, r: bool(torch.allclose(y, r, rtol=1e-2, atol=1e-2)),
})


def published(answer: Tensor, reference: Tensor) -> dict[str, bool]:
    """What every published rule says of ``answer`` against ``reference`` (any equal shapes and dtypes)."""
    y, r = answer.double(), reference.double()
    return {name: accepts(y, r) for name, accepts in PUBLISHED.items()}


def zero_sigma(atol: float, rtol: float, share: float) -> float:
    """Standard deviation of a Gaussian output up to which isclose(atol, rtol) in ``share`` of elements accepts all zeros.

    atol / ((1 - rtol) * z) with P(\\|N(0,1)\\| <= z) = share; infinite for rtol >= 1.
    """
    return math.inf if rtol >= 1 else atol / ((1.0 - rtol) * float(special.ndtri((1.0 + share) / 2.0)))
