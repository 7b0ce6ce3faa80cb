"""What a case costs in Triton's interpreter, which takes about a tenth of a millisecond for every operation on a tile."""

from __future__ import annotations

from moeguard.backends.triton_moe.alignment import block_bound
from moeguard.backends.triton_moe.tactics import Tactic, offered
from moeguard.core.case import Case

#: Milliseconds of a program of a product, of one of its steps, and of finalizing one slot.
PROGRAM, STEP, SLOT = 4.0, 4.0, 0.8
#: Most milliseconds of one call that are accepted.
LIMIT = 160.0
#: Tactics that are offered: those that cost least.
CANDIDATES = 3


def milliseconds(case: Case, tokens: int, top_k: int, tactic: Tactic) -> float:
    """Estimated time of one call with ``tokens`` tokens on one core."""
    slots, hidden, inter = tokens * top_k, case.shape.hidden_size, case.intermediate_local
    if not slots:
        return 0.0
    blocks = block_bound(slots, case.experts_local, tactic.m)
    first, second = tactic.gate_up, tactic.down
    total = SLOT * (slots + tokens * (1 + 4 * (case.recipe == "fp8_block")))
    for columns, depth, tile, splits in ((inter, hidden, first, 1), (hidden, inter, second, tactic.splits)):
        total += blocks * -(-columns // tile.n) * (splits * PROGRAM + STEP * -(-depth // tile.k))
    return total


def cheapest(case: Case, tokens: int, top_k: int) -> list[Tactic]:
    """The CANDIDATES tactics that cost least for ``tokens`` tokens, cheapest first."""
    tactics = offered(case.recipe, tokens * top_k, case.shape.hidden_size)
    return sorted(tactics, key=lambda tactic: milliseconds(case, tokens, top_k, tactic))[:CANDIDATES]
