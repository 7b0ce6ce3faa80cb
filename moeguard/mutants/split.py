"""A pipeline with several right tactics: the same sums in one, two or three pieces."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from moeguard.mutants.base import Call, Pipeline

PIECES = {"whole": 1, "halves": 2, "thirds": 3}


class Split(Pipeline):
    """Tactic ``whole`` (the default), ``halves`` or ``thirds``: every product's K is cut into as many pieces."""

    choices: ClassVar[tuple[str, ...]] = tuple(PIECES)

    def product(self, call: Call, which: str, rows: Tensor, matrix: Tensor) -> Tensor:
        pieces = PIECES[str(call.tactic)]
        total = rows.new_zeros(rows.shape[0], matrix.shape[0])
        for left, right in zip(rows.chunk(pieces, 1), matrix.chunk(pieces, 1), strict=True):
            total += left @ right.T
        return total
