"""Pairs of tactics: FlashInfer's CUTLASS MoE has two stages, and a tactic names one id of each, ``(gemm1, gemm2)``.

-1 stands for the default of a stage. Sweeps and campaigns force one stage at a time; the tuner chooses both.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import NamedTuple

DEFAULT = -1


class Pair(NamedTuple):
    """An id of each stage, GEMM2's behind all of GEMM1's, -1 for the default of a stage."""

    gemm1: int
    gemm2: int

    def __str__(self) -> str:
        return f"({self.gemm1}, {self.gemm2})"

    @property
    def singles(self) -> tuple[str, ...]:
        """Names of the tactics that force one of its stages alone; the pair itself when one stage is at its default."""
        alone = (Pair(self.gemm1, DEFAULT), Pair(DEFAULT, self.gemm2))
        return tuple(str(one) for one in alone if one != (DEFAULT, DEFAULT))


def pair_of(name: str) -> Pair | None:
    """The pair that ``name`` is, ``default`` being (-1, -1); None when it is none."""
    if name == "default":
        return Pair(DEFAULT, DEFAULT)
    match = re.fullmatch(r"\((-1|\d{1,6}), (-1|\d{1,6})\)", name)
    return Pair(int(match[1]), int(match[2])) if match else None


def combined(name: str, known: Container[str]) -> bool:
    """Whether ``name`` is a pair of two tactics that are ``known`` one by one."""
    singles = singles_of(name)
    return bool(singles) and all(one in known for one in singles)


def singles_of(name: str) -> tuple[str, ...]:
    """The single tactics that a pair of two ids is made of; none for any other name."""
    pair = pair_of(name)
    return pair.singles if pair is not None and DEFAULT not in pair else ()
