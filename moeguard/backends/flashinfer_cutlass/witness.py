"""Which kernels ran: names from the profiler, and the configuration that a name tells.

Names are those that FlashInfer's CUTLASS instantiations have after demangling: the TMA kernels carry CTA tile, cluster and
epilogue as template arguments, the Ampere-style ones are ``cutlass::gemm::kernel::MoeFCGemm`` or ``fused_moe`` kernels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from moeguard.backends.flashinfer_cutlass.tactics import Configuration


@dataclass(frozen=True, slots=True)
class Kernel:
    """What one GEMM kernel's name tells. shape: tile M, N, K as named; cluster M, N; ``ampere`` kernels have neither."""

    name: str
    shape: tuple[int, int] | None = None
    cluster: tuple[int, int] | None = None
    finalize: bool = False
    ampere: bool = False


def record(call: Callable[[], None]) -> list[str]:
    """Names of the kernels that ``call`` launches, in order of their start."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    found = [(event.start_ns(), event.name()) for event in profile.profiler.kineto_results.events()
             if "CUDA" in str(event.device_type())]
    return [name for _, name in sorted(found)]


_TUPLE = re.compile(r"cute::tuple<cute::C<(\d+)>, cute::C<(\d+)>, cute::C<(\d+)>\s*>")


def gemms(names: Sequence[str]) -> list[Kernel]:
    """The GEMM kernels among ``names``, in order."""
    return [kernel for kernel in map(parse, names) if kernel is not None]


def parse(name: str) -> Kernel | None:
    """The GEMM that a kernel name describes; None for any other kernel."""
    if "fused_moe::Fused_Moe_Kernel" in name or "MoeFCGemm" in name or "run_global" in name:
        return Kernel(name, ampere=True)
    if "GemmUniversal" not in name and "device_kernel" not in name:
        return None
    triples = [tuple(map(int, match)) for match in _TUPLE.findall(name)]
    clusters = [triple for triple in triples if triple[2] == 1 and max(triple) <= 4]
    tiles = [triple for triple in triples if triple[2] > 1]
    if not tiles:
        return None
    shape, cluster = tiles[0], clusters[0] if clusters else (1, 1, 1)
    return Kernel(name, (shape[0], shape[1]), (cluster[0], cluster[1]), "ScatterPtrArray" in name or "Finalize" in name)


def agrees(kernel: Kernel, wanted: Configuration) -> bool:
    """Whether ``kernel`` is of the configuration ``wanted``."""
    if wanted.ampere or kernel.ampere:
        return wanted.ampere and kernel.ampere
    return kernel.shape == wanted.tile and kernel.cluster == wanted.cluster and kernel.finalize == wanted.finalize
