"""Tactic ids of FlashInfer's CUTLASS MoE on SM90, and the kernel configuration behind each.

Ids are those of ``profile_ids``: GEMM1 from 0, GEMM2 behind all of GEMM1; -1 is the default, the first of the stage. The order
was read off FlashInfer's CUTLASS heuristic (``get_candidate_configs`` for SM90): 18 TMA configurations without and then with
swapped operands; GEMM2 lists each of the two once without and once with the fused finalize epilogue; 16-bit types end with nine
Ampere-style configurations. With 4-bit weights there are 29 tiles in four cluster shapes each, always swapped, never fused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

#: CTA tile M x N and cluster M x N of the TMA warp-specialised configurations, in id order.
TILES: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = (
    *(((128, n), cluster) for n in (16, 32, 64) for cluster in ((1, 1), (2, 1))),
    *(((m, n), cluster) for m, n in ((128, 128), (128, 256), (256, 128)) for cluster in ((1, 1), (2, 1), (1, 2), (2, 2))),
)
#: The same for 4-bit weights: tiles of several depths, each with every cluster.
MIXED: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = tuple(
    ((m, n), cluster)
    for m, n, depths in (*((m, n, 3) for m in (64, 128) for n in (16, 32, 64, 128)), (128, 256, 2), (256, 128, 2), (256, 256, 1))
    for _ in range(depths)
    for cluster in ((1, 1), (2, 1), (1, 2), (2, 2)))
#: Ampere-style configurations of a 16-bit type.
AMPERE = 9


class Tactic(NamedTuple):
    """The pair that FlashInfer takes as ``profile_ids``: GEMM1 id, GEMM2 id (absolute), -1 for the default of a stage."""

    gemm1: int
    gemm2: int

    def __str__(self) -> str:
        return f"({self.gemm1}, {self.gemm2})"


#: What the library runs when nothing is chosen.
DEFAULT = Tactic(-1, -1)


@dataclass(frozen=True, slots=True)
class Configuration:
    """One kernel configuration. tile, cluster: M x N; None for an Ampere-style one, whose ``number`` is 0 to 8.

    swapped: A and B change places, so that tokens are the N side. finalize: the weighted sum over the experts of a token is
    done in the epilogue, by atomic additions in the output's dtype.
    """

    tile: tuple[int, int] | None
    cluster: tuple[int, int] | None
    swapped: bool = False
    finalize: bool = False
    number: int = -1

    @property
    def ampere(self) -> bool:
        """Whether it is no TMA kernel."""
        return self.tile is None


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of tactics that a runner reports for its two stages."""

    gemm1: int
    gemm2: int


def expected(recipe: str, *, fused: bool) -> Counts | None:
    """What the runner of ``recipe`` lists with or without ``use_fused_finalize``; None where ids select nothing."""
    ampere = AMPERE if recipe in ("bf16", "fp16") else 0
    if recipe in ("bf16", "fp16", "fp8_per_tensor"):
        one = 2 * len(TILES)
        return Counts(one + ampere, (2 * one if fused else one) + ampere)
    return Counts(len(MIXED), len(MIXED)) if recipe in ("mxfp4_bf16", "int4_fp8") else None


def singles(gemm1: list[int], gemm2: list[int]) -> tuple[Tactic, ...]:
    """Every tactic of either stage, the other stage at its default."""
    return (*(Tactic(one, -1) for one in gemm1), *(Tactic(-1, two) for two in gemm2))


def configuration(counts: Counts, stage: int, identity: int) -> Configuration | None:
    """The configuration behind an id of stage 1 or 2; None where this table does not describe the runner's list."""
    total = counts.gemm1 if stage == 1 else counts.gemm2
    offset = 0 if identity < 0 else identity if stage == 1 else identity - counts.gemm1
    if not 0 <= offset < total:
        return None
    if total == len(MIXED):
        return Configuration(*MIXED[offset], swapped=True)
    families: tuple[tuple[bool, bool], ...] = ((False, False), (True, False))
    if stage == 2 and total >= 4 * len(TILES):
        families = ((False, False), (False, True), (True, False), (True, True))
    listed = len(families) * len(TILES)
    if total not in (listed, listed + AMPERE):
        return None
    if offset >= listed:
        return Configuration(None, None, number=offset - listed)
    swapped, finalize = families[offset // len(TILES)]
    return Configuration(*TILES[offset % len(TILES)], swapped, finalize)
