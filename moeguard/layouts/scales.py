"""Layouts of block scales. Elements are bytes [E, rows, groups]: one e4m3 or e8m0 scale each, or two bytes a bf16 scale."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from moeguard.layouts.layout import Formula, Layout, flat

SWIZZLE = ("get_sf_out_offset_128x4 and get_sf_out_offset_8x4 in "
           "csrc/nv_internal/tensorrt_llm/kernels/quantization_utils.cuh of FlashInfer; block scaling factors layout of cuBLAS")
SM90 = "flashinfer/fused_moe: interleave_moe_scales_for_sm90_mixed_gemm; 16 bytes of each block of 64x128 lie side by side"


def _up(size: int, unit: int) -> int:
    return -(-size // unit)


def _swizzled(tile: int) -> Formula:
    """Tiles of ``tile`` rows and 4 groups; within one of 128 rows, rows r, r + 32, r + 64, r + 96 lie together."""
    def formula(index: tuple[Tensor, ...], sizes: tuple[int, ...]) -> Tensor:
        expert, row, group = index
        inner, outer = (tile // 32, 32) if tile == 128 else (1, tile)
        return flat((expert, row // tile, group // 4, row % outer, row % tile // outer, group % 4),
                    (sizes[0], _up(sizes[1], tile), _up(sizes[2], 4), outer, inner, 4))

    return formula


def _padded(tile: int) -> Callable[[tuple[int, ...]], int]:
    return lambda shape: shape[0] * _up(shape[1], tile) * tile * _up(shape[2], 4) * 4


def _mma(index: tuple[Tensor, ...], sizes: tuple[int, ...]) -> Tensor:
    """Logical order of the view [32, 4, row tiles, 4, group tiles, E] that CuteDSL kernels take."""
    expert, row, group = index
    return flat((row % 32, row % 128 // 32, row // 128, group % 4, group // 4, expert),
                (32, 4, _up(sizes[1], 128), 4, _up(sizes[2], 4), sizes[0]))


def _by_columns(index: tuple[Tensor, ...], sizes: tuple[int, ...]) -> Tensor:
    """The four scales of 128 columns, row after row."""
    expert, row, group = index
    return flat((expert, group // 4, row, group % 4), (sizes[0], sizes[2] // 4, sizes[1], 4))


def _folded(across: int, width: int) -> Formula:
    """Blocks of 64 rows and 128 columns: ``across`` scales of ``width`` bytes a row, 16 bytes from rows that lie side by side."""
    slices = 16 // (across * width)

    def formula(index: tuple[Tensor, ...], sizes: tuple[int, ...]) -> Tensor:
        expert, row, byte = index
        group, part = byte // width, byte % width
        inner = 64 // slices
        return flat((expert, row // 64, group // across, row % inner, row % 64 // inner, group % across, part),
                    (sizes[0], sizes[1] // 64, sizes[2] // width // across, inner, slices, across, width))

    return formula


SWIZZLED_128X4 = Layout("scales swizzled in tiles of 128x4", SWIZZLE, _swizzled(128), length=_padded(128))
SWIZZLED_8X4 = Layout("scales in tiles of 8x4", SWIZZLE, _swizzled(8), length=_padded(8))
MMA_128X4 = Layout(
    "scales as the MMA view [32, 4, m, 4, k, E]",
    "flashinfer/cute_dsl/utils.py: get_mma_sf_shape and the mapping in the documentation of convert_sf_to_mma_layout", _mma,
    length=_padded(128))
SM90_MXFP4_EARLY = Layout("MXFP4 scales by 128 columns for Hopper",
                          "interleave_moe_scales_for_sm90_mixed_gemm of FlashInfer 0.6.11.post2 and 0.6.14", _by_columns)
SM90_MXFP4 = Layout("MXFP4 scales folded for Hopper", SM90, _folded(4, 1))
SM90_INT4 = Layout("int4 scales folded for Hopper", SM90, _folded(1, 2))
