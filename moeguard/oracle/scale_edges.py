"""Groups of the intermediate whose narrow scale a healthy kernel may round either way.

The dynamic scale of mxfp8 and nvfp4 is itself rounded, to e8m0 or e4m3. Where accumulation noise carries a group's largest
value over an edge between two scales, the kernel quantises the whole group on another grid than the oracle. Either grid is
right; the difference is part of the noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from moeguard.oracle.noise import QUOTIENT, REACH
from moeguard.quant.blocks import dynamic_scales, through_codes
from moeguard.quant.formats import round_to
from moeguard.quant.microscaling import MX_GROUP, NVFP4_GROUP

#: Elements of a group of the roundings that have a narrow scale.
GROUPS = {"mxfp8": MX_GROUP, "nvfp4": NVFP4_GROUP}


@dataclass(frozen=True, slots=True)
class ScaleEdges:
    """N undecided groups: slot, group int64 [N] (place in the row), width: elements of a group.

    amax, spread float64 [N]: the largest magnitude before any rounding, and the noise of that element. high [N]: the largest
    scale that noise reaches. swing [N, width]: how far the quantised values move between the smallest scale and the largest.
    """

    slot: Tensor
    group: Tensor
    width: int
    amax: Tensor
    spread: Tensor
    high: Tensor
    swing: Tensor

    def fill(self, value: Tensor, like: Tensor) -> Tensor:
        """``value`` [N] or [N, width] at the places of the groups, zeros elsewhere: [S, I] like ``like``."""
        full = torch.zeros(like.shape[0], like.shape[1] // self.width, self.width, dtype=like.dtype, device=like.device)
        full[self.slot, self.group] = value if value.dim() == 2 else value[:, None].expand(-1, self.width)
        return full.flatten(1)

    def of_slots(self, kept: Tensor) -> ScaleEdges | None:
        """The groups of the slots that the mask ``kept`` [S] keeps, renumbered; None when none is left."""
        mine = kept[self.slot]
        if not bool(mine.any()):
            return None
        number = kept.cumsum(0) - 1
        return replace(self, slot=number[self.slot[mine]], group=self.group[mine], amax=self.amax[mine],
                       spread=self.spread[mine], high=self.high[mine], swing=self.swing[mine])


def scale_edges(rounding: str, raw: Tensor, spread: Tensor, static: Tensor | None) -> ScaleEdges | None:
    """Undecided groups of ``raw`` [S, I] under the chain ``rounding``; None when there are none.

    spread [S, I]: standard deviation of its noise. static: the global scale of nvfp4.
    """
    part = rounding.rsplit("+", 1)[-1]
    width = GROUPS.get(part)
    if width is None or not raw.numel():
        return None
    size, reach = raw.abs(), REACH * spread
    low = scales_of(rounding, (size - reach).clamp_min_(0), static, -QUOTIENT)[:, ::width]
    high = scales_of(rounding, size + reach, static, QUOTIENT)[:, ::width]
    slot, group = (low != high).nonzero(as_tuple=True)
    if not len(slot):
        return None
    value = before_scale(rounding, raw.unflatten(1, (-1, width))[slot, group])
    low, high = low[slot, group], high[slot, group]
    swing = (through_codes(value, high[:, None], part) - through_codes(value, low[:, None], part)).abs()
    amax, where = size.unflatten(1, (-1, width))[slot, group].max(1)
    noise = spread.unflatten(1, (-1, width))[slot, group].gather(1, where[:, None])[:, 0]
    moved = (swing > 0).any(1)
    if not bool(moved.any()):
        return None
    return ScaleEdges(slot[moved], group[moved], width, amax[moved], noise[moved], high[moved], swing[moved])


def before_scale(rounding: str, value: Tensor) -> Tensor:
    """``value`` (float64) after all points of the chain but the last."""
    for part in rounding.split("+")[:-1]:
        value = value if part == "none" else round_to(value, part)
    return value


def scales_of(rounding: str, value: Tensor, static: Tensor | None, tilt: Tensor | float) -> Tensor:
    """Scales of the last point of the chain for ``value`` [..., I], before any of its points; [..., I].

    tilt: relative error of the quotient that is rounded to the scale.
    """
    return dynamic_scales(before_scale(rounding, value) * (1 + tilt), rounding.rsplit("+", 1)[-1], static)
