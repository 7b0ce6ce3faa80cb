"""Which kernels ran: names from the profiler, and the configuration that a name tells.

The TMA kernels are ``cutlass::device_kernel<GemmUniversal<...>>``, under names that the profiler does not demangle: cluster and
CTA tile follow the mainloop's number of stages, the fused finalize is an epilogue that scatters, and with swapped operands the
output has its constant stride first. The Ampere-style ones are ``Fused_Moe_Kernel_sm80`` (with the activation) or
``MoeFCGemm``, with tile and stages as arguments. Names as of FlashInfer 0.7.4, CUDA 13.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from moeguard.backends.flashinfer_cutlass.tactics import AMPERE_STAGES, AMPERE_TILES, Configuration

_MAINLOOP = re.compile(r"Mainloop\w*?ILi\d+ENS\w_IJ(?P<cluster>\w*?NS\w_\d+Kernel)[A-Za-z0-9]+?EEENS\w_IJ(?P<tile>\w*)")
#: One of cute's constants, spelled out; later ones refer to it (Itanium C++ ABI, section 5.1.10).
_SPELLED = re.compile(r"NS\w_(?:1C)?ILi(\d+)EE")
_COLUMN_STRIDE = re.compile(r"IJS\w_l")
_FUSED = re.compile(r"Fused_Moe_Kernel_sm80<[^,]*, [^,]*, [^,]*, (\d+), (\d+), (\d+), (\d+),")
_GROUPED = re.compile(r"MoeFCGemmINS\w_11threadblock13MmaMultistageINS\w_9GemmShapeILi(\d+)E")
_STAGES = re.compile(r"Li(\d+)ELNS\w_23SharedMemoryClearOption")


def record(call: Callable[[], None]) -> list[str]:
    """Names of the kernels that ``call`` launches, in order of their start."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        call()
        torch.cuda.synchronize()
    found = [(event.start_ns(), event.name()) for event in profile.profiler.kineto_results.events()
             if "CUDA" in str(event.device_type())]
    return [name for _, name in sorted(found)]


def gemms(names: Sequence[str]) -> list[Configuration]:
    """The configurations of the GEMM kernels among ``names``, in order."""
    return [found for found in map(parse, names) if found is not None]


@lru_cache(maxsize=1024)
def parse(name: str) -> Configuration | None:
    """The configuration that a kernel's name tells; None when it is no GEMM of the MoE, or does not tell."""
    fused, grouped, stages = _FUSED.search(name), _GROUPED.search(name), _STAGES.search(name)
    if fused:
        return Configuration(None, None, number=ampere_number(int(fused[1]), int(fused[4])))
    if grouped and stages:
        return Configuration(None, None, number=ampere_number(int(grouped[1]), int(stages[1])))
    mainloop = _MAINLOOP.search(name)
    if mainloop is None or "GemmUniversal" not in name:
        return None
    cluster, tile = _sizes(mainloop["cluster"], mainloop["tile"])
    finalize = "Scatter" in name
    swapped = "PerRowBiasPerColScaleScatter" in name if finalize else bool(_COLUMN_STRIDE.search(name))
    return Configuration(tile, cluster, swapped, finalize)


def _sizes(cluster: str, tile: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """M and N of both tuples. A constant that was spelled out before is a reference, counted from the first one, ``SD_``.

    Between the tuples three more components are counted: the cluster's tuple, the schedule and the mainloop.
    """
    known: dict[int, int] = {}
    place = _digit("D")

    def read(text: str) -> tuple[int, int]:
        nonlocal place
        values: list[int] = []
        while len(values) < 3:
            spelled, named = _SPELLED.match(text), re.match(r"S(\w)_", text)
            if spelled:
                known[place] = int(spelled[1])
                values.append(known[place])
                place, text = place + 1, text[spelled.end():].removeprefix("E")
            elif named:
                values.append(known.get(_digit(named[1]), 0))
                text = text[named.end():]
            else:
                break
        return (values[0], values[1]) if len(values) > 1 else (0, 0)

    first = read(cluster)
    place += 3
    return first, read(tile)


def _digit(letter: str) -> int:
    """A base-36 digit of a reference."""
    return int(letter, 36)


def ampere_number(tile: int, stages: int) -> int:
    """Place of an Ampere-style configuration among its nine; -1 when it is none of them."""
    known = tile in AMPERE_TILES and stages in AMPERE_STAGES
    return AMPERE_TILES.index(tile) * len(AMPERE_STAGES) + AMPERE_STAGES.index(stages) if known else -1
