"""Layouts that move whole rows of a weight matrix, and its cut into blocks of columns. Elements are bytes [E, rows, columns]."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from moeguard.layouts.layout import Formula, Layout, flat

TRTLLM = "flashinfer/fused_moe/core.py and flashinfer/utils.py: reorderRowsForGatedActGemm and shuffleMatrixA of TensorRT-LLM-gen"
#: Bytes of a block of columns of a block-major weight.
BLOCK_BYTES = 128


def alternated(row: Tensor, rows: int) -> Tensor:
    """Rows of [first; second] halves taken in turn: one of the first, one of the second."""
    half = rows // 2
    return row % half * 2 + row // half


def shuffled(row: Tensor, tile: int) -> Tensor:
    """Rows for an epilogue tile of ``tile`` rows: in blocks of 32 (16 where 128 does not divide it), 8 rows each a stride apart.

    The formula is that of ``shuffled_matrix_row_index`` in flashinfer/prims_ts/batched_gemm/batched_gemm_config.py (0.7.4).
    """
    block = 16 if tile % 128 else 32
    groups = block // 8
    return row // block * block + row % block % groups * 8 + row % block // groups


def grouped(row: Tensor, rows: int, group: int) -> Tensor:
    """Rows of [up; gate] in groups of ``group``: a group of up, the same group of gate, and so on."""
    half = rows // 2
    return row % half // group * 2 * group + row // half * group + row % group


def _by_rows(move: Callable[[Tensor, int], Tensor]) -> Formula:
    def formula(index: tuple[Tensor, ...], sizes: tuple[int, ...]) -> Tensor:
        expert, row, column = index
        return flat((expert, move(row, sizes[1]), column), sizes)

    return formula


def _block_major(index: tuple[Tensor, ...], sizes: tuple[int, ...]) -> Tensor:
    expert, row, byte = index
    experts, rows, width = sizes
    blocks = width // BLOCK_BYTES
    return flat((expert, byte // BLOCK_BYTES, row, byte % BLOCK_BYTES), (experts, blocks, rows, BLOCK_BYTES))


GATED_ROWS = Layout("rows of up and gate in turn", TRTLLM, _by_rows(alternated))
SHUFFLED_128 = Layout("rows shuffled for an epilogue tile of 128", TRTLLM, _by_rows(lambda row, rows: shuffled(row, 128)))
SHUFFLED_64 = Layout("rows shuffled for an epilogue tile of 64", TRTLLM, _by_rows(lambda row, rows: shuffled(row, 64)))
GATED_SHUFFLED_128 = Layout("rows of up and gate in turn, then shuffled for an epilogue tile of 128", TRTLLM,
                            _by_rows(lambda row, rows: shuffled(alternated(row, rows), 128)))
INTERLEAVED_64 = Layout(
    "up and gate interleaved by 64 rows", "flashinfer/fused_moe/cute_dsl/fused_moe.py: gated FC1 weights have up64/gate64 rows",
    _by_rows(lambda row, rows: grouped(row, rows, 64)))
BLOCK_MAJOR = Layout("block-major, 128 bytes of K a block",
                     "flashinfer/tllm_enums.py: WeightLayout.BlockMajorK is [K/blockK, Mn, blockK]", _block_major)
