"""Tactics: the tile of each product, the share of I that one program sums, and how e4m3 operands are multiplied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from moeguard.core.recipe import RECIPES

#: SCHEME of the kernels by recipe: plain, e4m3 with one scale, e4m3 with scales of 128 blocks.
SCHEMES = {"bf16": 0, "fp16": 0, "fp8_per_tensor": 1, "fp8_block": 2}
#: Most float32 elements of partial sums for which the down product may be split.
SPLIT_LIMIT = 1 << 27


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile of one product: columns ``n`` and depth ``k``, with ``warps`` warps and ``stages`` pipeline stages."""

    n: int
    k: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"n{self.n}k{self.k}w{self.warps}s{self.stages}"


@dataclass(frozen=True, slots=True)
class Tactic:
    """One configuration. m: slots of a block. splits: parts of I whose sums are added by the finalize kernel.

    group: blocks that take turns on one column tile of weights. wide: e4m3 operands multiplied as fp16, so that sums are
    float32 throughout (Hopper's e4m3 products keep 14 bits between promotions).
    """

    m: int
    gate_up: Tile
    down: Tile
    splits: int = 1
    group: int = 8
    wide: bool = False

    def __str__(self) -> str:
        extra = f"_split{self.splits}" if self.splits > 1 else ""
        return f"m{self.m}_{self.gate_up}_{self.down}_g{self.group}{extra}{'_wide' if self.wide else ''}"


def _sixteen_bit() -> tuple[Tactic, ...]:
    thin = Tactic(16, Tile(64, 128, 4, 3), Tile(64, 128, 4, 4))
    return (
        thin,
        replace(thin, splits=4),
        Tactic(32, Tile(64, 128, 4, 3), Tile(128, 64, 4, 4)),
        Tactic(64, Tile(64, 64, 4, 4), Tile(128, 64, 4, 4)),
        Tactic(64, Tile(128, 64, 8, 4), Tile(256, 64, 8, 4)),
        Tactic(128, Tile(64, 64, 4, 4), Tile(128, 64, 4, 4)),
        Tactic(128, Tile(128, 64, 8, 4), Tile(128, 64, 8, 4), group=16),
        Tactic(128, Tile(128, 64, 8, 3), Tile(256, 64, 8, 3)),
    )


def _per_tensor() -> tuple[Tactic, ...]:
    thin = Tactic(16, Tile(64, 128, 4, 4), Tile(64, 128, 4, 4))
    return (
        thin,
        replace(thin, splits=4),
        Tactic(32, Tile(64, 128, 4, 4), Tile(128, 128, 4, 4)),
        Tactic(64, Tile(64, 128, 4, 4), Tile(128, 128, 4, 4)),
        Tactic(64, Tile(128, 128, 8, 4), Tile(128, 128, 8, 4)),
        Tactic(128, Tile(64, 128, 8, 4), Tile(128, 128, 8, 4)),
        Tactic(64, Tile(64, 64, 4, 3), Tile(128, 64, 8, 3), wide=True),
    )


def _block() -> tuple[Tactic, ...]:
    """The column tile of gate/up is one block of 128, over which the intermediate's scale is taken."""
    thin = Tactic(16, Tile(128, 128, 4, 3), Tile(64, 128, 4, 4))
    return (
        thin,
        replace(thin, splits=4),
        Tactic(32, Tile(128, 128, 4, 2), Tile(128, 128, 4, 3)),
        Tactic(64, Tile(128, 128, 8, 3), Tile(64, 128, 4, 4)),
        Tactic(64, Tile(128, 128, 8, 4), Tile(128, 128, 8, 4)),
        Tactic(128, Tile(128, 128, 8, 3), Tile(128, 128, 8, 4)),
        Tactic(64, Tile(128, 128, 8, 2), Tile(128, 128, 8, 3), wide=True),
    )


TACTICS: dict[str, tuple[Tactic, ...]] = {
    "bf16": _sixteen_bit(), "fp16": _sixteen_bit(), "fp8_per_tensor": _per_tensor(), "fp8_block": _block(),
}


def offered(recipe: str, slots: int, hidden: int) -> tuple[Tactic, ...]:
    """The tactics of ``recipe`` for ``slots`` slots of H ``hidden``: those whose partial sums stay within SPLIT_LIMIT."""
    return tuple(t for t in TACTICS[recipe] if t.splits == 1 or t.splits * slots * hidden <= SPLIT_LIMIT)


def default(recipe: str, slots: int, experts: int, fits: Callable[[Tactic], bool] = lambda tactic: True) -> Tactic:
    """The tactic that is taken untuned: the smallest block that holds the mean number of slots of an expert.

    experts: local experts. fits: whether the device can hold a tactic. The 16-row tactic is taken without a split, and
    ``wide`` never. Raises ValueError when no tactic fits.
    """
    mean = slots / max(1, min(experts, slots))
    fitting = [tactic for tactic in TACTICS[recipe] if tactic.splits == 1 and not tactic.wide and fits(tactic)]
    if not fitting:
        raise ValueError(f"{recipe}: no tactic fits into the shared memory of this device")
    return next((tactic for tactic in fitting if tactic.m >= mean), fitting[-1])


def shared_bytes(tactic: Tactic, recipe: str, gated: bool) -> int:
    """Bytes of shared memory that the pipelines of the larger product hold, an upper estimate."""
    size = 1 if RECIPES[recipe].weight_format == "e4m3" else 2
    columns = tactic.gate_up.n * (2 if gated else 1)
    return max(_pipeline(tactic, tactic.gate_up, columns, size), _pipeline(tactic, tactic.down, tactic.down.n, size))


def _pipeline(tactic: Tactic, tile: Tile, columns: int, size: int) -> int:
    elements = tile.k * (tactic.m + columns)
    return elements * (size * tile.stages + 2 * tactic.wide)
