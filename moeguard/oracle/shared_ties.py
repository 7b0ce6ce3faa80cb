"""Intermediate values that are equal and lie on a tie of their codes: a kernel rounds all of them up, or all of them down.

A clamped activation gives many elements of a row one value, and the row its largest: with limit 7 and beta 1, as in gpt-oss,
6/8 of the largest, which is code 336 of e4m3, between 320 and 352. Which of the two a kernel takes depends on the last bit of its
sigmoid and of its quotient, and it takes the same one for all. The oracle takes one of them; the step to the other, for all at
once, is part of the noise. Other values lie that close to a tie by chance, one here and there, and are flips like any.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moeguard.core.numerics import UNSCALED
from moeguard.oracle.noise import QUOTIENT
from moeguard.oracle.scale_edges import before_scale
from moeguard.quant.blocks import code_format
from moeguard.quant.formats import round_to

#: Relative distance from a tie within which the last bits of float32 decide: the quotient, a fast sigmoid, a few products.
NEAR = 4 * QUOTIENT
#: Undecided elements of a row from which on they are taken for equal ones.
FEWEST = 4


def shared_ties(rounding: str, raw: Tensor, hidden: Tensor, scale: Tensor | None) -> Tensor | None:
    """From the oracle's rounded value to the other one, float64 [S, I], 0 where the code is decided; None when all are.

    raw, hidden [S, I]: the intermediate before and after the chain ``rounding``. scale: of its last point, broadcastable to
    ``raw``.
    """
    last = rounding.rsplit("+", 1)[-1]
    if last in UNSCALED or scale is None or not raw.numel():
        return None
    code, form = (before_scale(rounding, raw) / scale).where(scale > 0, 0.0), code_format(last)  # nvfp4: zeros have scale 0
    low, high = (round_to(code * (1 + tilt), form) * scale for tilt in (-NEAR, NEAR))
    step = torch.where(low == high, 0.0, low + high - 2 * hidden)
    step = torch.where((step != 0).sum(1, keepdim=True) >= FEWEST, step, 0.0)
    return step if bool((step != 0).any()) else None
