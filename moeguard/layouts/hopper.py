"""4-bit weights as the mixed-input kernels for Hopper read them. Elements are bits of bytes [E, rows, columns / 2].

All three are read off ``moe_gemm_mixed_utils.cu`` of FlashInfer's wheels (csrc/nv_internal/tensorrt_llm/kernels/cutlass_kernels/
moe_gemm), statement by statement; rows go by 16 and columns by 64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moeguard.layouts.layout import Layout, flat

SOURCE = "moe_gemm_mixed_utils.cu of FlashInfer {}: {}"


def _nibbles(index: tuple[Tensor, ...], sizes: tuple[int, ...]) -> Tensor:
    """Low nibbles of rows r and r + 8 make a byte, then their high nibbles."""
    expert, row, byte, bit = index
    lane = byte % 32
    target_row = row // 16 * 16 + row % 8 + lane // 8 % 2 * 8
    target = byte // 32 * 32 + lane // 16 * 16 + lane % 4 * 4 + lane % 8 // 4 * 2
    later, high = row % 16 // 8, bit // 4
    return flat((expert, target_row, target + high, bit % 4 + 4 * later), sizes)


def _bits(index: tuple[Tensor, ...], sizes: tuple[int, ...]) -> Tensor:
    """Eight codes of two rows make a word in which sign and magnitude lie where bf16 wants them."""
    expert, row, byte, bit = index
    lane = byte % 32
    word_bit = bit + 8 * (row % 16 // 8) + 16 * (lane % 8 // 4)
    target_bit = _target().to(row.device)[word_bit]
    group = lane // 8  # the thread's block of 8 bytes
    target_row = row // 16 * 16 + row % 8 + group % 2 * 8
    target = byte // 32 * 32 + group // 2 * 16 + lane % 4 * 4 + target_bit // 8
    return flat((expert, target_row, target, target_bit % 8), sizes)


def _target() -> Tensor:
    """Bit 0 to 31 of a word of eight codes to its new bit."""
    target = torch.empty(32, dtype=torch.int64)
    for code in range(8):
        pair, upper = code // 2, 16 * (code % 2)
        places = [start - 3 * pair for start in (6, 7, 8, 15)] if pair < 3 else [13, 10, 11, 14]  # magnitude, then sign
        target[4 * code: 4 * code + 4] = torch.tensor(places) + upper
    return target


def _int4(index: tuple[Tensor, ...], sizes: tuple[int, ...]) -> Tensor:
    """Two bytes of row r, then the two of row r + 8."""
    expert, row, byte, bit = index
    word = byte // 2
    lane = word % 16
    target_row = row // 16 * 16 + row % 8 + lane % 8 // 4 * 8
    target = word // 16 * 16 + lane // 8 * 8 + lane % 4 * 2 + row % 16 // 8
    return flat((expert, target_row, target * 2 + byte % 2, bit), sizes)


MXFP4_NIBBLES = Layout("MXFP4 weights interleaved by nibbles", SOURCE.format("0.6.11.post2 and 0.6.14", "interleave_fp4_weights"),
                       _nibbles, bitwise=True)
MXFP4_BITS = Layout("MXFP4 weights interleaved by bits", SOURCE.format("0.6.18.post1 and 0.7.4", "interleave_fp4_weights"),
                    _bits, bitwise=True)
INT4 = Layout("int4 weights interleaved", SOURCE.format("0.6.11.post2 to 0.7.4", "interleave_int4_weights"), _int4, bitwise=True)
