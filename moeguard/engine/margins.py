"""How near a right answer came to each limit: what ``target()`` is to Hypothesis, read from the numbers of an execution."""

from __future__ import annotations

import math
from typing import Any

from moeguard.oracle.limits import Limits

#: Blocks with a limit of their own.
_BLOCKS = ("row", "tile", "column", "expert")


def margins(numbers: dict[str, Any]) -> dict[str, float]:
    """By rule, the share of its limit that an answer took, to three digits; empty when one is beyond its limit.

    Three digits, because sums on a GPU are not always made in the same order.
    """
    pairs = [("element", "max_z", numbers.get("tau")), ("global", "rho", Limits().ratio),
             ("gain", "gain", numbers.get("gain_limit")), ("expert gain", "expert_gain", numbers.get("expert_gain_limit")),
             *((rule, f"{rule}_rms", numbers.get(f"{rule}_limit")) for rule in _BLOCKS)]
    shares = {}
    for rule, name, limit in pairs:
        value = numbers.get(name)
        if isinstance(value, int | float) and isinstance(limit, int | float) and 0 < limit < math.inf:
            shares[rule] = float(f"{abs(value) / limit:.3g}")
    return shares if all(share <= 1 for share in shares.values()) else {}
