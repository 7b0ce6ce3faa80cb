"""The interleaved layout of 4-bit weights: every bit goes to one place, and no two to the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from moeguard.backends.flashinfer_cutlass import interleaving


@pytest.mark.parametrize("move", [interleaving.mxfp4_weights, interleaving.int4_weights])
def test_each_bit_of_a_block_has_a_place_of_its_own(move: Callable[[Tensor], Tensor]) -> None:
    bits = 16 * 32 * 8
    one = torch.eye(bits, dtype=torch.bool).view(bits, 16, 32, 8)
    shifts = torch.arange(8)
    packed = (one.to(torch.int64) << shifts).sum(-1).to(torch.uint8)
    moved = ((move(packed)[..., None].to(torch.int64) >> shifts) & 1).view(bits, bits)
    assert moved.sum(1).eq(1).all() and moved.sum(0).eq(1).all()
    assert not torch.equal(moved, torch.eye(bits, dtype=torch.int64))


@pytest.mark.parametrize("move", [interleaving.mxfp4_weights, interleaving.int4_weights])
def test_blocks_are_moved_alike(move: Callable[[Tensor], Tensor]) -> None:
    packed = torch.randint(0, 256, (2, 48, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    whole = move(packed)
    for row in range(0, 48, 16):
        for column in range(0, 96, 32):
            part = packed[:, row: row + 16, column: column + 32].contiguous()
            assert torch.equal(whole[:, row: row + 16, column: column + 32], move(part))


def test_int4_codes_of_two_rows_lie_side_by_side() -> None:
    packed = torch.zeros(1, 16, 32, dtype=torch.uint8)
    packed[0, 3, :2] = torch.tensor([0x21, 0x43], dtype=torch.uint8)
    packed[0, 11, :2] = torch.tensor([0x65, 0x87], dtype=torch.uint8)
    moved = interleaving.int4_weights(packed)
    assert moved[0, 3, :4].tolist() == [0x21, 0x43, 0x65, 0x87] and int((moved != 0).sum()) == 4


@pytest.mark.parametrize(("dtype", "group", "folded"), [(torch.uint8, 32, 16), (torch.bfloat16, 128, 8)])
def test_scales_of_a_block_lie_in_sixteen_bytes(dtype: torch.dtype, group: int, folded: int) -> None:
    rows, blocks = 128, 3
    across = 128 // group
    plain = torch.arange(rows * blocks * across).remainder(251).view(1, rows, blocks * across).to(dtype)
    moved = interleaving.scales(plain, group)
    assert moved.shape == (1, rows // 64, blocks, folded, 16 // dtype.itemsize) and moved.is_contiguous()
    assert torch.equal(moved[0, 1, 2, 5, :across], plain[0, 64 + 5, 2 * across: 3 * across])
    assert torch.equal(moved[0, 1, 2, 5, across: 2 * across], plain[0, 64 + folded + 5, 2 * across: 3 * across])
