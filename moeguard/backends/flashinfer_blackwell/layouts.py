"""Weight and scale layouts of these kernels: the library's own helpers where it has them, with the layout that each must keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from moeguard.backends.flashinfer_blackwell import entries
from moeguard.backends.flashinfer_blackwell.library import Library
from moeguard.layouts import rows, scales
from moeguard.layouts.contract import Probe

#: Rows of a group in which up and gate alternate for CuteDSL.
GROUP = 64
#: Rows of the epilogue tile that TRTLLM-gen's kernels are shuffled for.
TILE = 128
#: Shape [E, rows, bytes] of the tensors that layouts are probed with: more than one tile each way.
_PROBE, _PROBE_SCALES = (2, 256, 256), (2, 256, 12)


def interleaved(library: Library, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [up; gate] of GEMM1 [E, 2I, ..] and its scales in groups of 64; engines did it themselves before 0.7."""
    if entries.INTERLEAVE.lacking(library.release) is None:
        done: tuple[Tensor, Tensor] = library.call(entries.INTERLEAVE, weight=weight, block_scales=scale)
        return done

    def grouped(value: Tensor) -> Tensor:
        experts, count, width = value.shape
        return value.view(experts, 2, count // 2 // GROUP, GROUP, width).transpose(1, 2).reshape(value.shape).contiguous()

    return grouped(weight), grouped(scale)


def swizzled(library: Library, scale: Tensor) -> Tensor:
    """Block scales uint8 [E, rows, groups] in tiles of 128x4, one axis, padded."""
    done: Tensor = library.call(entries.SWIZZLE, unswizzled_sf=scale.contiguous())
    return done


def mma_scales(library: Library, scale: Tensor, columns: int, group: int) -> Tensor:
    """Block scales [E, rows, columns / group] as the view [32, 4, row tiles, 4, group tiles, E]."""
    done: Tensor = library.call(entries.MMA_VIEW, sf=swizzled(library, scale), m=scale.shape[1], k=columns,
                                num_groups=scale.shape[0], sf_vec_size=group)
    return done


def first_rows(library: Library, value: Tensor, *, gated: bool, cache: dict[Any, Any], scale_group: int | None = None) -> Tensor:
    """Rows of GEMM1 [E, rows, ..] as TRTLLM-gen reads them: up and gate in turn where gated, then shuffled."""
    return _permuted(value, lambda one: library.call(
        entries.W1_ROWS, _cache_permute_indices=cache, dst_w3_w1_weight=one, epilogue_tile_m=TILE, num_elts_per_sf=scale_group,
        is_gated_act_gemm=gated))


def second_rows(library: Library, value: Tensor, *, gated: bool, cache: dict[Any, Any],
                scale_group: int | None = None) -> Tensor:
    """Rows of GEMM2 [E, rows, ..], shuffled."""
    more = {"is_gated_act_gemm": gated} if entries.W2_ROWS.takes(library.release, "is_gated_act_gemm") else {}
    return _permuted(value, lambda one: library.call(
        entries.W2_ROWS, _cache_permute_indices=cache, dst_w2_weight=one, epilogue_tile_m=TILE, num_elts_per_sf=scale_group,
        **more))


def _permuted(value: Tensor, indices: Callable[[Tensor], Tensor]) -> Tensor:
    raw = value.contiguous().view(torch.uint8)
    return raw[:, indices(raw[0]).to(raw.device)].view(value.dtype)


def block_major(library: Library, value: Tensor) -> Tensor:
    """Weights [E, rows, K] as [E, K / blockK, rows, blockK], 128 bytes a block."""
    raw = value.contiguous().view(torch.uint8)
    done = [library.call(entries.BLOCK_LAYOUT, input_tensor=one, blockK=rows.BLOCK_BYTES) for one in raw]
    return torch.stack(done).view(value.dtype)


def cutedsl_probes(library: Library, *, gated: bool) -> Mapping[str, Probe]:
    """What the CuteDSL adapters prepare by."""
    probes = {
        "scale view": Probe(scales.MMA_128X4, lambda scale: mma_scales(library, scale, scale.shape[2] * 16, 16), _PROBE_SCALES),
        "scale swizzle": Probe(scales.SWIZZLED_128X4, lambda scale: swizzled(library, scale), _PROBE_SCALES)}
    if gated:
        probes["up and gate"] = Probe(rows.INTERLEAVED_64, lambda weight: interleaved(library, weight, weight)[0], _PROBE)
    return probes


def trtllm_probes(library: Library, *, gated: bool) -> Mapping[str, Probe]:
    """What the TRTLLM-gen adapters prepare by."""
    first = rows.GATED_SHUFFLED_128 if gated else rows.SHUFFLED_128
    return {
        "rows of GEMM1": Probe(first, lambda weight: first_rows(library, weight, gated=gated, cache={}), _PROBE),
        "rows of GEMM2": Probe(rows.SHUFFLED_128, lambda weight: second_rows(library, weight, gated=gated, cache={}), _PROBE),
        "rows of the scales of GEMM1": Probe(
            first, lambda scale: first_rows(library, scale, gated=gated, cache={}, scale_group=16), _PROBE_SCALES),
        "scale swizzle": Probe(scales.SWIZZLED_128X4, lambda scale: swizzled(library, scale), _PROBE_SCALES),
        "blocks of K": Probe(rows.BLOCK_MAJOR, lambda weight: block_major(library, weight), _PROBE)}
