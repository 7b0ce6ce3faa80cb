"""The interleaved layout of 4-bit weights and their scales that FlashInfer's mixed-input kernels for Hopper read from 0.6.10 on.

For releases that do not have it, to ask them what they make of it; others interleave by their own functions. Read off
``moe_gemm_mixed_utils.cu`` and ``interleave_moe_scales_for_sm90_mixed_gemm`` of FlashInfer 0.7.4.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Where the bits of four bytes of MXFP4 go in a 32-bit word: first bit, number of bits, first bit of the target.
_BITS = ((0, 3, 6), (3, 1, 15), (4, 3, 22), (7, 1, 31), (8, 3, 3), (11, 1, 12), (12, 3, 19), (15, 1, 28),
         (16, 3, 0), (19, 1, 9), (20, 3, 16), (23, 1, 25), (24, 1, 13), (25, 2, 10), (27, 1, 14), (28, 1, 29),
         (29, 2, 26), (31, 1, 30))


def mxfp4_weights(packed: Tensor) -> Tensor:
    """Weights uint8 [E, N, K/2], N a multiple of 16 and K of 64, interleaved; the same shape."""
    experts, rows, columns = packed.shape
    block = packed.view(experts, rows // 16, 2, 8, columns // 32, 4, 2, 4).to(torch.int64)  # half, row, k, quarter, high, lane
    low, high = block[..., 0, :], block[..., 1, :]
    word = low[:, :, 0] | low[:, :, 1] << 8 | high[:, :, 0] << 16 | high[:, :, 1] << 24
    moved = torch.zeros_like(word)
    for start, width, target in _BITS:
        moved |= ((word >> start) & ((1 << width) - 1)) << target
    taken = torch.stack([(moved >> 8 * byte) & 0xFF for byte in range(4)], -1).to(torch.uint8)
    parts = taken.view(experts, rows // 16, 8, columns // 32, 2, 2, 4, 4)
    return parts.permute(0, 1, 5, 2, 3, 4, 6, 7).reshape(experts, rows, columns)


def int4_weights(packed: Tensor) -> Tensor:
    """Weights uint8 [E, N, K/2], N a multiple of 16 and K of 64, interleaved; the same shape."""
    experts, rows, columns = packed.shape
    block = packed.contiguous().view(torch.int16).view(experts, rows // 16, 2, 8, columns // 32, 2, 2, 4)
    moved = block.permute(0, 1, 6, 3, 4, 5, 7, 2).contiguous()  # quad, row, k, half of k, lane, half of rows
    return moved.view(torch.uint8).view(experts, rows, columns)


def scales(values: Tensor, group: int) -> Tensor:
    """Scales [E, N, K/group], N a multiple of 64 and K of 128, with 16 bytes of each 64 x 128 block side by side."""
    across = 128 // group
    slices = 16 // (values.element_size() * across)
    experts, rows, groups = values.shape
    block = values.reshape(experts, rows // 64, slices, 64 // slices, groups // across, across)
    return block.permute(0, 1, 4, 3, 2, 5).contiguous().flatten(-2)


def early_scales(values: Tensor) -> Tensor:
    """MXFP4 scales [E, N, K/32], K a multiple of 128, as releases up to 0.6.9 read them: the four of 128 columns for each row.

    The result is [E, K/128, N, 4]. Scales that are left as they are were answered rightly at K = 128 alone (0.6.9 on an H200).
    """
    experts, rows, groups = values.shape
    return values.reshape(experts, rows, groups // 4, 4).transpose(1, 2).contiguous()
