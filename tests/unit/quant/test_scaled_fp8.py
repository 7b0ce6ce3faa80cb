"""Scaled FP8: row blocks, weight blocks, static scales, chains."""

from __future__ import annotations

import pytest
import torch

from moeguard.quant.blocks import BLOCK, E4M3_MAX, expand_blocks, expand_rows, fake_quantize, row_scales
from moeguard.quant.formats import round_to


def test_zero_blocks_have_scale_one_and_no_nan() -> None:
    value = torch.zeros(3, 300, dtype=torch.float64)
    value[1, 130] = 5.0
    assert row_scales(value).tolist() == [[1, 1, 1], [1, 5 / 448, 1], [1, 1, 1]]
    rounded, _ = fake_quantize(value, "e4m3_1x128")
    assert torch.equal(rounded, value)


def test_blocks_below_the_smallest_scale_count_as_zero() -> None:
    value = torch.full((1, BLOCK), 2.0**-130, dtype=torch.float64)
    assert row_scales(value).item() == 1.0
    assert not fake_quantize(value, "e4m3_1x128")[0].any()


def test_448_over_powers_of_two_are_exact() -> None:
    block = torch.zeros(1, BLOCK, dtype=torch.float64)
    block[0, :16] = 448 / 2.0 ** torch.arange(16)
    assert torch.equal(fake_quantize(block, "e4m3_1x128")[0], block)


def test_ragged_widths_use_the_last_partial_block() -> None:
    value = torch.randn(4, 200, dtype=torch.float64)
    scale = row_scales(value)
    assert scale.shape == (4, 2)
    torch.testing.assert_close(scale[:, 1], value[:, 128:].abs().amax(1) / E4M3_MAX)
    assert expand_rows(scale, 200).shape == (4, 200)


def test_rounding_error_is_within_the_unit_roundoff_or_half_a_quantum() -> None:
    value = torch.randn(50, 256, dtype=torch.float64) ** 3
    rounded, scale = fake_quantize(value, "e4m3_1x128")
    assert scale is not None
    assert bool(((rounded - value).abs() <= torch.maximum(value.abs() * 2.0**-4, scale * 2.0**-10) * (1 + 1e-12)).all())


def test_static_scale_saturates_and_is_required() -> None:
    value = torch.tensor([[1.0, 1000.0, -5000.0]], dtype=torch.float64)
    rounded, scale = fake_quantize(value, "e4m3_per_tensor", torch.tensor([2.0]))
    assert rounded.tolist() == [[1.0, 896.0, -896.0]]
    assert scale is not None and scale.item() == 2.0
    with pytest.raises(ValueError, match="static scale"):
        fake_quantize(value, "e4m3_per_tensor")


def test_a_chain_rounds_left_to_right() -> None:
    value = torch.randn(8, 128, dtype=torch.float64)
    chained, _ = fake_quantize(value, "bf16+e4m3_1x128")
    assert torch.equal(chained, fake_quantize(round_to(value, "bf16"), "e4m3_1x128")[0])
    assert fake_quantize(value, "none") == (value, None)


def test_float32_values_use_the_same_grid() -> None:
    value = torch.randn(64, 128)
    single, double = fake_quantize(value, "bf16")[0], fake_quantize(value.double(), "bf16")[0]
    assert single.dtype == torch.float32
    assert torch.equal(single.double(), double)


def test_weight_blocks_expand_to_ragged_shapes() -> None:
    scale = torch.arange(6.0).view(1, 2, 3)
    full = expand_blocks(scale, 130, 257)
    assert full.shape == (1, 130, 257)
    assert full[0, 127, 127] == 0
    assert full[0, 128, 256] == 5
